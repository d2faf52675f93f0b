"""Tables of models are refreshed by the Python of their detector; one that fails there harms no other."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.models import SCORE, TEXT, TRAIN, add_model
from tests.rig.samples.project import copy_project
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.history import table_refresh

TODAY = datetime.now(UTC).date()


def test_models_are_made_where_the_packages_of_their_detector_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_project(tmp_path, "sources")
    (tmp_path / "detectors").mkdir()
    text = TEXT.format(more=", model=Model()", functions=TRAIN + SCORE, window='"1 hour"')
    for name in ("broken", "missing", "plain", "torch"):
        (tmp_path / "detectors" / f"{name}.py").write_text(text)
    settings, catalog = Settings(project=tmp_path, state=tmp_path / "state"), read_catalog(tmp_path)
    here: list[str] = []
    add_model(settings, catalog.table("model.torch"), TODAY - timedelta(days=1), 1)

    def python_for(_: Settings, name: str) -> Path | None:
        if name == "missing":
            raise ConfigError.one("environments/missing.in", "is not installed here")
        return None if name == "plain" else Path(f"/{name}/python")

    def run_by(python: Path, words: Sequence[str]) -> int:
        table = catalog.table(words[3])
        assert [*words] == ["-m", "tocsin.cli", "table", f"model.{python.parent.name}", "--refresh"]
        if table.trains == "torch":
            add_model(settings, table, TODAY, 2)
        return int(table.trains == "broken")

    @contextmanager
    def session(*_: Any) -> Iterator[None]:
        yield None

    def refresh(_: None, __: Settings, spec: Any, ___: Any) -> list[Any]:
        here.append(spec.name)
        return []

    for name, function in (("python_for", python_for), ("run_by", run_by), ("running_batch", session)):
        monkeypatch.setattr(table_refresh, name, function)
    monkeypatch.setattr(table_refresh, "refresh", refresh)
    outcome = table_refresh.refresh_tables(settings, catalog, catalog.history_tables())
    assert here == ["model.plain"]
    assert {name: [version.day for version in made] for name, made in outcome.made.items()} == {
        "model.torch": [TODAY],
        "model.plain": [],
    }
    assert outcome.failed.keys() == {"model.broken", "model.missing"}
    assert "/broken/python ended with code 1" in outcome.failed["model.broken"]
