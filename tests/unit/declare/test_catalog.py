"""A project folder as a whole: a broken file hides nothing but itself."""

import itertools
import os
from datetime import timedelta
from pathlib import Path

import pytest

from tests.rig.samples.words import declare_words
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import Levels
from tocsin.declare.model.durations import parse_duration, spark_interval
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.names import Names, detector_job, file_name, ingest_job


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
    monkeypatch.setattr("tocsin.declare.declaration.version_of", lambda *_: str(next(parsed)))
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
    with pytest.raises(
        ValueError, match=r"is not a duration; write a number and a unit|is too short: a duration is longer"
    ):
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


WRITTEN = """title = "T"
owner = "a@example.com"
format = "events"
key = "word"
[schema]
word = "string"
"""
FLOW = '''"""Words."""
from tocsin import flow
@flow(source="{source}", to="{to}", owner="a@example.com", stage="live")
def flow(events):
    return events
'''


def declare(project: Path, flows: list[tuple[str, str]], *unfed: str) -> None:
    (project / "flows").mkdir()
    for name in {*unfed, *(to for _, to in flows)} - {"logins"}:
        (project / "sources" / f"{name}.toml").write_text(WRITTEN)
    for number, (source, to) in enumerate(flows):
        (project / "flows" / f"flow_{number}.py").write_text(FLOW.format(source=source, to=to))


def test_events_come_through_all_feeders_and_reach_all_that_keep_state(project: Path) -> None:
    declare(project, [("logins", "words"), ("words", "stems")])
    detector = (project / "detectors/failed_logins.py").read_text().replace('"logins"', '"stems"')
    (project / "detectors/of_stems.py").write_text(detector)
    catalog = read_catalog(project)
    assert catalog.broken == {}
    feeders = catalog.upstream("stems")
    assert [feeder.job for feeder in feeders] == ["flow:flow_1", "flow:flow_0", "ingest:logins"]
    topics = ("t.events.words",), ("t.events.logins",), ("t.raw.logins",)
    assert tuple(feeder.reads(Names("t.")) for feeder in feeders) == topics
    assert catalog.downstream("logins") == ["detector:failed_logins", "detector:of_stems"]
    assert catalog.downstream("words") == ["detector:of_stems"]
    assert catalog.recorded_source("logins").name == "logins"
    with pytest.raises(ConfigError, match=r"'words' has no records: a flow writes its events .*: logins\)"):
        catalog.recorded_source("words")


def test_a_flow_of_several_sources_has_the_feeders_of_each(project: Path) -> None:
    declare(project, [("logins", "words"), ('["words", "logins"]', "both")])
    path = project / "flows" / "flow_1.py"
    path.write_text(path.read_text().replace('"[', "[").replace(']"', "]"))
    catalog = read_catalog(project)
    assert catalog.broken == {}
    feeders = catalog.upstream("both")
    assert [feeder.job for feeder in feeders] == ["flow:flow_1", "flow:flow_0", "ingest:logins"]
    assert feeders[0].reads(Names()) == ("events.words", "events.logins")
    detector = (project / "detectors/failed_logins.py").read_text().replace('"logins"', '"both"')
    (project / "detectors/of_both.py").write_text(detector)
    assert read_catalog(project).downstream("logins") == ["detector:failed_logins", "detector:of_both"]


def test_a_detector_of_several_sources_stands_behind_each(project: Path) -> None:
    declare(project, [("logins", "words")])
    text = (project / "detectors/failed_logins.py").read_text()
    (project / "detectors/of_both.py").write_text(text.replace('source="logins"', 'source=["words", "logins"]'))
    (project / "detectors/of_none.py").write_text(text.replace('source="logins"', 'source=["word", "logins"]'))
    catalog = read_catalog(project)
    assert [source.name for source in catalog.sources_of(catalog.detector("of_both"))] == ["words", "logins"]
    assert "of_both" in {spec.name for spec in catalog.detectors_of("words")}
    assert [spec.name for spec in catalog.backfilled_of("logins")] == ["failed_logins"]
    assert catalog.downstream("logins") == ["detector:failed_logins", "detector:of_both"], "each once"
    (fault,) = catalog.broken["detectors/of_none"].faults
    assert str(fault).endswith("of_none.py: source: source 'word' does not exist; did you mean 'words'?")


@pytest.mark.parametrize(
    ("flows", "told"),
    [
        ([("logins", "logins")], {"flows/flow_0": "source 'logins' is read from records of its own"}),
        (
            [("logins", "words"), ("logins", "words")],
            {"flows/flow_0": "is also written by flow flow_1", "flows/flow_1": "is also written by flow flow_0"},
        ),
        (
            [("b", "a"), ("a", "b"), ("logins", "words")],
            {"flows/flow_0": "flows form a loop: ", "flows/flow_1": "flows form a loop: "},
        ),
        ([("login", "words")], {"flows/flow_0": "source 'login' does not exist; did you mean 'logins'?"}),
        (
            [("logins", "words"), ("unfed", "further")],
            {"sources/unfed": "is events, but no flow writes this source", "flows/flow_1": "source 'unfed' is broken"},
        ),
    ],
)
def test_what_flows_and_sources_have_wrong_together_is_told(
    project: Path, flows: list[tuple[str, str]], told: dict[str, str]
) -> None:
    declare(project, flows, *(["unfed"] if "sources/unfed" in told else []))
    broken = read_catalog(project).broken
    assert broken.keys() == told.keys()
    for place, what in told.items():
        assert what in str(broken[place])


def test_a_loop_names_its_sources_in_the_order_of_the_flow(project: Path) -> None:
    declare(project, [("c", "a"), ("a", "b"), ("b", "c")])
    (loop,) = {str(error).partition("loop: ")[2] for error in read_catalog(project).broken.values()}
    assert loop in ("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c")


def test_a_broken_flow_does_not_take_its_source_away(project: Path) -> None:
    declare(project, [("logins", "words")])
    (project / "flows" / "flow_0.py").write_text("(")
    catalog = read_catalog(project)
    assert set(catalog.broken) == {"flows/flow_0"}
    assert catalog.upstream("words") == []


@pytest.mark.parametrize(
    ("sink", "stage", "refused"),
    [("redis", "live", True), ("postgres", "shadow", True), ("redis", "draft", False), ("influx", "live", False),
     ("sqlite", "live", False)],
)  # fmt: skip
def test_one_view_writes_a_table(tmp_path: Path, sink: str, stage: str, refused: bool) -> None:
    declare_words(tmp_path, sink=sink, table="counts")
    declare_words(tmp_path, "copied", sink=sink, table="counts", stage=stage)
    declare_words(tmp_path, "counts", sink="topic")
    broken = read_catalog(tmp_path).broken
    assert broken.keys() == ({"views/word_counts", "views/copied"} if refused else set())
    assert not refused or "is also that of view copied; name another" in str(broken["views/word_counts"])
