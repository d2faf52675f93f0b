"""`tocsin new`: what it writes passes `tocsin check`, and it never writes over anything."""

import ast
from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.project import source_file
from tocsin.declare.catalog import read_catalog
from tocsin.declare.code.case_code import case_kinds
from tocsin.declare.model.errors import ConfigError

WORDS = source_file("word")
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


def test_lines_for_quarantine_and_times_without_a_zone_are_told(project: Path) -> None:
    sample = project / "sample.log"
    sample.write_text("".join(f"2026-01-31 14:05:{n} n{n} up\n" for n in range(10, 20)) + "a line without a time\n")
    output = invoke(["new", "source", "lines", "--sample", str(sample), *OWNER]).output
    assert "1 line of them would go to quarantine" in output
    assert "its times name no zone and are read as UTC" in output


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


def test_a_detector_of_a_source_or_of_a_sample_is_there_and_sound(project: Path) -> None:
    sample = project / "access log.2.jsonl"
    line = '{"at": "2026-01-31T14:05:09Z", "route": "%s", "n": 1}\n'
    sample.write_text((line % "/a") * 30 + (line % "/b") * 2_000)
    for name, call, source, limit in (
        ("words_often", ["--source", "words"], "words", 20),
        ("routes_often", ["--sample", str(sample)], "access_log", 300),
        ("routes_again", ["--sample", str(sample), "--source", "other"], "other", 300),
    ):
        result = invoke(["new", "detector", name, *call, *OWNER])
        assert result.exit_code == 0, result.exception or result.output
        assert f"  tocsin run {name} " in result.output
        assert ("read the first 1,000 lines of" in result.output) == ("--sample" in call)
        catalog = read_catalog(project)
        assert catalog.broken == {}
        spec = catalog.detector(name)
        assert (spec.sources, spec.levels.email, spec.stage.runs) == ((source,), limit, False)
        assert (project / spec.runbook).read_text().startswith(f"# Runbook: {name}\n")
        assert case_kinds(ast.parse(spec.path.read_text())) == (True, True)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (["--source", "word"], "did you mean 'words'?"),
        (["--sample", "missing"], "cannot be read"),
        ([], "a detector needs it, or --sample FILE"),
        (["--sample", "zeros"], "is not text"),
        (["--sample", "words.jsonl"], "is there already, and was not changed"),
        (["--sample", "class.jsonl"], "cannot be what a detector counts by"),
    ],
)
def test_a_detector_that_cannot_be_is_refused_and_nothing_is_written(
    project: Path, monkeypatch: pytest.MonkeyPatch, call: list[str], told: str
) -> None:
    monkeypatch.chdir(project)
    Path("zeros").write_bytes(b"\0\n" * 9)
    Path("words.jsonl").write_text('{"at": "2026-01-31T14:05:09Z", "word": "a"}\n')
    Path("class.jsonl").write_text('{"at": "2026-01-31T14:05:09Z", "class": "a"}\n')
    before = sorted(project.rglob("*"))
    result = invoke(["new", "detector", "often", *call, *OWNER])
    assert result.exit_code != 0
    assert told in " ".join(f"{result.output} {result.exception}".replace("│", " ").split())
    assert sorted(project.rglob("*")) == before


def test_nothing_is_written_over(project: Path) -> None:
    (project / "views").mkdir()
    (project / "views/counts.py").write_text("mine")
    result = invoke(["new", "view", "counts", "--source", "words", *OWNER])
    assert "is there already" in str(result.exception)
    assert (project / "views/counts.py").read_text() == "mine"
