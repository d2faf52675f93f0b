"""`tocsin new`: what it writes passes `tocsin check`, and it never writes over anything."""

from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tocsin.model.errors import ConfigError
from tocsin.project.catalog import read_catalog

WORDS = """title = "t"
owner = "a@example.com"
format = "json"
key = "word"
event_time = "at"

[schema]
at = "timestamp"
word = "string"
"""
OWNER = ["--owner", "a@example.com"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/words.toml").write_text(WORDS)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    return tmp_path


def test_a_source_a_flow_and_a_view_are_there_and_sound(project: Path) -> None:
    sample = project / "sample"
    sample.write_text('{"at": "2026-01-31T14:05:09Z", "line": "a b"}\n{"at": "2026-01-31T14:05:10Z", "line": "b"}\n')
    shouted = WORDS.replace('format = "json"', 'format = "events"').replace('event_time = "at"\n', "")
    (project / "sources/shouted.toml").write_text(shouted)
    for call in (
        ["source", "lines", "--sample", str(sample)],
        ["flow", "shout", "--source", "lines", "--to", "shouted"],
        ["view", "counts", "--source", "words"],
    ):
        result = invoke(["new", *call, *OWNER])
        assert (result.exit_code, "written: " in result.output) == (0, True), result.exception or result.output
    catalog = read_catalog(project)
    assert catalog.broken == {}
    assert (catalog.source("lines").key, catalog.view("counts").key) == ("line", ("word",))
    assert catalog.flow("shout").to == "shouted"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (["view", "counts", "--source", "word"], "did you mean 'words'?"),
        (["view", "Counts!", "--source", "words"], "call it counts"),
        (["flow", "shout", "--source", "words", "--to", "none"], "no source 'none'"),
    ],
)
def test_what_cannot_be_is_refused(project: Path, call: list[str], told: str) -> None:
    result = invoke(["new", *call, *OWNER])
    assert isinstance(result.exception, ConfigError)
    assert told in str(result.exception)
    assert sorted(path.name for path in project.iterdir()) == ["sources"]


def test_nothing_is_written_over(project: Path) -> None:
    (project / "views").mkdir()
    (project / "views/counts.py").write_text("mine")
    result = invoke(["new", "view", "counts", "--source", "words", *OWNER])
    assert "is there already" in str(result.exception)
    assert (project / "views/counts.py").read_text() == "mine"
