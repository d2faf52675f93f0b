"""`tocsin model` over models that are there; what Spark would train is given."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.models import SCORE, TEXT, TRAIN, add_model
from tests.rig.samples.project import copy_project
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.declare.settings import Settings
from tocsin.detect.model_program import RefusedModel
from tocsin.history.backfill.backfill_status import without_table
from tocsin.history.backfill.trial import DayChoice, score_days
from tocsin.history.spark import table_versions
from tocsin.spark import batch_session
from tocsin.spark.tables.dated_versions import DatedVersion, DatedVersions

ONE = timedelta(days=1)
TODAY = datetime.now(UTC).date()
OLD, NEW = TODAY - 14 * ONE, TODAY - 7 * ONE


class Models:
    """The models of the detector `made`."""

    def __init__(self, project: Path) -> None:
        self.settings = Settings(project=project, state=project / "state")
        self.catalog = read_catalog(project)
        self.table = self.catalog.table("model.made")

    @property
    def versions(self) -> DatedVersions:
        return DatedVersions(self.settings, self.table)

    def add(self, day: date, rows: int) -> str:
        """Add that of `day`; returns its hash."""
        return add_model(self.settings, self.table, day, rows)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Models:
    copy_project(tmp_path, "sources")
    (tmp_path / "detectors").mkdir()
    more = ', model=Model(before="refuse")'
    (tmp_path / "detectors" / "made.py").write_text(TEXT.format(more=more, functions=TRAIN + SCORE, window='"1 hour"'))
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    return Models(tmp_path)


def said(*words: str) -> str:
    done = invoke(("model", *words))
    assert done.exit_code == 0, done.output
    return done.output


def fault(*words: str) -> str:
    done = invoke(("model", *words))
    assert isinstance(done.exception, TocsinError), done.output
    return str(done.exception)


def test_the_newest_is_shown_and_compared_unless_one_is_named(models: Models) -> None:
    assert "no model 'x' (there are: none)" in fault("show", "made", "x")
    old, new = models.add(OLD, 5), models.add(NEW, 9)
    assert json.loads(said("show", "made", "newest"))["hash"] == new
    assert json.loads(said("show", "made", str(OLD)))["hash"] == old
    assert json.loads(said("show", "made", old[:6]))["hash"] == old
    assert "rows: 5 -> 9" in said("show", "made", "--against", str(OLD))
    assert "rows: 9 -> 5" in said("show", "made", str(OLD), "--against", str(NEW))
    newest = models.add(TODAY, 12)
    (models.settings.state / "models" / "made" / f"{newest}.json").unlink()
    assert "are gone" in fault("show", "made", "newest"), "an older one is not shown in its place"


def test_models_and_refusals_are_listed_and_one_is_held(models: Models) -> None:
    assert "no model yet" in said("show", "made")
    assert "no model yet" in fault("hold", "made")
    digest = models.add(NEW, 9)
    models.versions.refuse(TODAY, "it drifts", datetime.now(UTC))
    first, refused = json.loads(said("show", "made", "--json"))
    assert (first["hash"], first["rows"], first["findings"], first["holds_until"]) == (digest, 9, 9, None)
    assert (refused["day"], refused["refused"]) == (str(TODAY), "it drifts")
    assert "stays in force until" in said("hold", "made", "--reason", "an audit")
    assert "an audit" in said("show", "made")
    assert models.versions.held is not None


@pytest.mark.parametrize(
    ("file", "changed", "expected"),
    [
        ("drafts/made.py", ("email=1", "email=2"), "no published day can run"),
        ("drafts/made.py", ("return 1", "return 2"), "judged by models that another version has trained"),
        ("drafts/other.py", ("email=1", "email=2"), "judged by models that another version has trained"),
        ("detectors/other.py", ("return 1", "return 2"), "no published day can run"),
    ],
)
def test_versions_are_compared_by_models_that_they_have_trained(
    models: Models, file: str, changed: tuple[str, str], expected: str
) -> None:
    draft = models.settings.project / file
    draft.parent.mkdir(exist_ok=True)
    draft.write_text((models.settings.project / "detectors/made.py").read_text().replace(*changed))
    assert expected in str(invoke(("evaluate", "made", "--against", str(draft))).exception)


def test_reverting_needs_a_model_before_whose_file_is_whole(models: Models) -> None:
    models.add(OLD, 5)
    assert "there is no model before" in fault("hold", "made", "--previous")
    models.add(NEW, 9)
    assert "not the model that was trained" in fault("hold", "made", "--previous")
    assert models.versions.held is None, "nothing has changed"


def test_reverting_again_goes_further_back_and_not_to_what_was_left(models: Models) -> None:
    oldest, _, _ = (models.add(day, rows) for day, rows in ((OLD, 5), (NEW, 9), (TODAY - ONE, 12)))
    models.versions.put_back(models.versions.read()[1], datetime.now(UTC) - timedelta(hours=1))
    assert f"{oldest}.pickle: the file is not the model" in fault("hold", "made", "--previous")


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(batch_session, "running_batch", session)


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("every", ["1 day", "1 week"])
def test_a_first_model_needs_a_day_of_history(models: Models, every: str) -> None:
    file = models.settings.project / "detectors" / "made.py"
    file.write_text(file.read_text().replace("Model(before", f'Model(every="{every}", before'))
    assert "published" in (found := fault("train", "made"))
    assert found.endswith("tocsin history seal --source logins"), found
    assert models.versions.read() == []


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(("words", "accepted"), [((), False), (("--accept",), True)])
def test_training_says_from_when_on_the_model_judges_or_why_it_is_refused(
    models: Models, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], accepted: bool
) -> None:
    def train(*_: Any, is_accepted: bool) -> list[DatedVersion]:
        assert is_accepted is accepted
        models.add(TODAY, 7)
        return models.versions.read()[-1:]

    def refuse(*_: Any, is_accepted: bool) -> None:
        raise RefusedModel("features have drifted")

    monkeypatch.setattr(table_versions, "train_now", train)
    assert "of 7 rows judges windows that begin from" in said("train", "made", *words)
    monkeypatch.setattr(table_versions, "train_now", refuse)
    assert "features have drifted" in fault("train", "made", *words)


def test_days_before_the_first_model_are_refused_where_that_is_declared(models: Models) -> None:
    models.add(NEW, 9)
    why = without_table(models.settings, models.catalog)
    assert (why("model.made", NEW), why("model.made", NEW + ONE)) == ("", "")
    assert 'before="refuse" is declared' in why("model.made", NEW - ONE)


def test_today_is_not_scored_without_a_model_where_that_is_declared(models: Models, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no model yet"):
        score_days(models.settings, "made", DayChoice(today=True), tmp_path / "scores.parquet")
