"""Detectors that read the findings of others: what is declared for them, and what is refused."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.topics import wanted_topics

EXAMPLE = Path(__file__).parents[3] / "examples" / "takeover"
SPRAYING = "findings.failed_logins"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return shutil.copytree(EXAMPLE, tmp_path / "project")


def changed(project: Path, name: str, old: str, new: str) -> None:
    path = project / "detectors" / f"{name}.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def told(project: Path) -> dict[str, str]:
    return {name: str(error) for name, error in read_catalog(project).broken.items()}


def test_its_source_has_the_columns_of_findings_and_waits_a_window_longer(project: Path) -> None:
    catalog = read_catalog(project)
    assert catalog.broken == {}
    source = catalog.source(SPRAYING)
    assert list(source.columns) == ["finding_id", "detector", "level", "window_start", "window_end", "user_id"]
    assert source.lateness >= timedelta(minutes=1) + catalog.source("logins").lateness
    assert source.name not in catalog.sources  # so it has no ingest, no history and no quarantine
    assert catalog.read_findings.keys() == {SPRAYING, "findings.account_changes"}


def test_it_stands_behind_the_indexer_the_detector_and_its_ingest(project: Path) -> None:
    catalog = read_catalog(project)
    jobs = ["indexer", "detector:failed_logins", "ingest:logins"]
    assert [feeder.job for feeder in catalog.upstream(SPRAYING)] == jobs
    assert [feeder.job for feeder in catalog.upstream(SPRAYING) if feeder.is_query] == ["ingest:logins"]
    assert set(catalog.downstream("logins")) == {f"detector:{name}" for name in catalog.detectors}


def test_only_findings_that_somebody_reads_have_a_topic(project: Path) -> None:
    settings = Settings(project=project)
    topics = [name for name in wanted_topics(settings, read_catalog(project)) if "findings." in name]
    assert sorted(topics) == ["events.findings.account_changes", "events.findings.failed_logins"]
    for name in ("password_spraying", "taken_over"):
        changed(project, name, 'stage="live"', 'stage="draft"')
    assert read_catalog(project).read_findings == {}


def test_days_of_history_refuse_it_in_words(project: Path) -> None:
    catalog = read_catalog(project)
    spec = catalog.detector("password_spraying")
    assert catalog.only_source(spec).name == SPRAYING  # cases test it
    with pytest.raises(ConfigError, match="runs only on the stream: it reads the findings of failed_logins"):
        catalog.history_source(spec)
    assert spec.stream_only


@pytest.mark.parametrize(
    ("name", "old", "new", "reader", "why"),
    [
        ("password_spraying", "findings.failed_logins", "findings.failed_login", "password_spraying",
         "detector 'failed_login' does not exist; did you mean 'failed_logins'?"),
        ("failed_logins", "def detect", "def detect(", "password_spraying", "detector 'failed_logins' is broken"),
        ("failed_logins", 'stage="live"', 'stage="retired"', "password_spraying",
         "detector 'failed_logins' finds nothing, since its stage is retired"),
        ("failed_logins", 'entity="user_id"', 'entity=["user_id", "level"]', "password_spraying",
         "the entity column 'level' of 'failed_logins' is also a column of findings"),
        ("failed_logins", 'source="logins"', 'source="findings.taken_over"', "taken_over",
         "detectors read each other's findings in a loop: "),
        ("failed_logins", 'source="logins"', 'source="findings.failed_logins"', "failed_logins",
         "detectors read each other's findings in a loop: failed_logins -> failed_logins"),
    ],
)  # fmt: skip
def test_what_it_cannot_read_is_told(project: Path, name: str, old: str, new: str, reader: str, why: str) -> None:  # noqa: PLR0913, PLR0917
    changed(project, name, old, new)
    assert why in told(project)[f"detectors/{reader}"]
    assert "detectors/account_changes" not in told(project)


def test_who_reads_a_detector_that_is_taken_out_is_taken_out_too(project: Path) -> None:
    (project / "sources" / "logins.toml").unlink()
    assert told(project).keys() == {f"detectors/{path.stem}" for path in EXAMPLE.glob("detectors/*.py")}


def test_plan_and_explain_know_it(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOCSIN_PROJECT", str(project))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    planned = invoke(["plan"])
    assert "detector:password_spraying" in planned.stdout, planned.output
    assert "it reads the findings of failed_logins" in invoke(["explain", "password_spraying"]).stdout
