"""A project folder as a whole: a broken file hides nothing but itself."""

import itertools
import os
from datetime import timedelta
from pathlib import Path

import pytest

from tocsin.model.detector import Levels
from tocsin.model.durations import parse_duration, spark_interval
from tocsin.model.errors import ConfigError, Fault
from tocsin.model.names import Names, detector_job, file_name, ingest_job
from tocsin.project.catalog import read_catalog

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder, name in (("sources", "logins.toml"), ("detectors", "failed_logins.py")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes((ROOT / folder / name).read_bytes())
    return tmp_path


def test_what_we_ship_is_sound() -> None:
    catalog = read_catalog(ROOT)
    assert catalog.broken == {}
    assert "failed_logins" in {spec.name for spec in catalog.detectors_of("logins")}
    assert catalog.detector("failed_logins").levels == Levels(email=50, urgent=100)


def test_a_broken_file_hides_nothing_but_itself(project: Path) -> None:
    (project / "sources/broken.toml").write_text("=")
    (project / "detectors/broken.py").write_text("(")
    catalog = read_catalog(project)
    assert set(catalog.broken) == {"sources/broken", "detectors/broken"}
    assert (set(catalog.sources), set(catalog.detectors)) == ({"logins"}, {"failed_logins"})
    with pytest.raises(ConfigError, match="is not Python"):
        catalog.detector("broken")


def test_a_file_is_read_again_when_it_has_changed_and_only_then(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parsed = project / "detectors/failed_logins.py", itertools.count()
    monkeypatch.setattr("tocsin.project.declaration.version_of", lambda *_: str(next(parsed)))
    for moment in (1_000, 2_000):
        path.write_text(path.read_text().replace("urgent=100", "urgent=200"))
        os.utime(path, (moment, moment))
        assert read_catalog(project) == read_catalog(project)
    assert next(parsed) == 2
    path.write_text("(")
    assert set(read_catalog(project).broken) == {"detectors/failed_logins"}


def test_a_detector_of_an_unknown_source_says_which_is_near(project: Path) -> None:
    path = project / "detectors/failed_logins.py"
    path.write_text(path.read_text().replace('source="logins"', 'source="login"'))
    told = str(read_catalog(project).broken["detectors/failed_logins"])
    assert told == f"{path}: source: source 'login' does not exist; did you mean 'logins'?"


def test_an_unknown_name_says_which_there_are(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"no detector 'failed_login' \(there are: failed_logins\); did you mean"):
        read_catalog(project).detector("failed_login")


def test_a_draft_has_no_job(project: Path) -> None:
    path = project / "detectors/failed_logins.py"
    path.write_text(path.read_text().replace('stage="live"', 'stage="draft"'))
    catalog = read_catalog(project)
    assert catalog.detectors_of("logins") == []
    assert "failed_logins" in catalog.detectors


def test_files_with_a_leading_underscore_are_no_detectors(project: Path) -> None:
    (project / "detectors/__init__.py").write_text("")
    assert set(read_catalog(project).detectors) == {"failed_logins"}


def test_levels_are_strict() -> None:
    levels = Levels(email=50, urgent=100)
    assert [levels.reached(score) for score in (50, 51, 100, 101)] == [None, "email", "email", "urgent"]
    assert (levels.limit("email"), levels.limit("urgent"), levels.lowest, levels.highest) == (50, 100, 50, 100)
    assert Levels(urgent=3).reached(3.5) == "urgent"
    with pytest.raises(ValueError, match="no limit is declared for level 'email'"):
        Levels(urgent=3).limit("email")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10 seconds", 10), ("1 hour", 3600), ("1.5 days", 129600), ("250 milliseconds", 0.25), ("2  Minutes", 120)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "10", "0 seconds", "-1 hour", "ten seconds", "10 secs", "10 seconds ago"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write a number and a unit"):
        parse_duration(text)


def test_intervals_for_spark_are_exact() -> None:
    assert spark_interval(timedelta(seconds=1.5)) == "1500000 microseconds"


def test_names() -> None:
    names = Names("eu.")
    assert (names.raw("s"), names.events("s"), names.quarantine("s")) == ("eu.raw.s", "eu.events.s", "eu.quarantine.s")
    assert (names.findings, names.job_metrics) == ("eu.findings", "eu.job-metrics")
    assert names.group(detector_job("d")) == "eu.tocsin.detector:d"
    assert file_name(ingest_job("s")) == "ingest__s"


def test_a_fault_reads_as_one_line() -> None:
    assert str(Fault("f.toml", "is not a key", key="sorce", line=3, nearest="source")) == (
        "f.toml:3: sorce: is not a key; did you mean 'source'?"
    )
