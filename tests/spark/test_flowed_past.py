"""The past of a source that flows feed: what a file of raw lines gives is what the flows' stream would have written."""

import shutil
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.raw_records import ROOT
from tests.spark.sealing import History
from tocsin.cases.case_report import FileRequest
from tocsin.cases.spark.file_run import run_on_file
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.history.care import withdraw
from tocsin.history.history_retention import tidy
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import Places
from tocsin.history.spark.import_days import import_days
from tocsin.history.spark.import_files import import_files
from tocsin.history.spark.sealed_days import sealed_events

DAY = date(2026, 10, 1)
WORDS_MADE = '''"""Words of templates, one event each."""
from pyspark.sql import functions as F

from tocsin import flow


@flow(source="templates", to="words", owner="a@example.com", stage="live")
def flow(events):
    words = F.split("template", " ")
    return events.select("*", F.posexplode(words).alias("position", "word")).where("word != ''")
'''
WORDS = """title = "Words"
owner = "a@example.com"
format = "events"
key = "word"
[schema]
word = "string"
program = "string"
"""
LOUD = '''"""Words that come often."""
from pyspark.sql import functions as F

from tocsin import Levels, detector


@detector(source="words", entity="word", window="1 minute", levels=Levels(email=2), owner="a@example.com",
          runbook="https://example.com/r", stage="live")
def detect(events):
    return events.groupBy("window", "word").agg(F.count("*").alias("score"))
'''
LINES = [
    "2026-10-01T12:00:01Z billing timeout after 3000 ms",
    "2026-10-01T12:00:02Z billing timeout after 17 ms",
    "no line",
    "2026-10-01T12:00:59.5Z cart timeout again",
    "2026-10-01T12:01:00Z billing timeout after 9 ms",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = Path(shutil.copytree(ROOT / "examples" / "log_surges", tmp_path / "project"))
    for name, text in {"flows/worded.py": WORDS_MADE, "sources/words.toml": WORDS, "detectors/loud.py": LOUD}.items():
        (project / name).write_text(text, encoding="utf-8")
    (project / "lines.log").write_text("\n".join(LINES), encoding="utf-8")
    return project


def test_a_detector_behind_two_flows_runs_on_a_file_of_raw_lines(spark: SparkSession, project: Path) -> None:
    request = FileRequest(detector="loud", file=project / "lines.log", most=9)
    settings = Settings(project=project, state=project / "state")
    report = run_on_file(spark, settings, request, project, lambda _: None)
    assert [(one.reason, one.rows) for one in report.left_out] == [("no_match", [3])]
    assert (report.rows, report.events, report.source) == (5, 4 + 4 + 2 + 4, "words")
    assert (report.first, report.last) == (
        datetime(2026, 10, 1, 12, 0, 1, tzinfo=UTC), datetime(2026, 10, 1, 12, 1, tzinfo=UTC)
    )  # fmt: skip
    assert {(one.entity["word"], one.score) for one in report.findings} == {("timeout", 3.0)}


def test_a_file_of_raw_lines_becomes_days_of_a_source_that_a_flow_feeds(
    spark: SparkSession, starts: list[str], project: Path
) -> None:
    catalog = read_catalog(project)
    history = History(project / "state", catalog.source("words"))
    history.settings = history.settings.model_copy(update={"project": project})
    (done,) = import_files(
        history.settings, history.source, [project / "lines.log"], records=catalog.origin("words")
    )  # fmt: skip
    assert not isinstance(done, ConfigError)
    assert (done.entry.events, done.reasons) == (14, {"no_match": 1})
    version = history.seal(spark, day=DAY).version
    days = {DAY: history.version(DAY, version.version)}
    rows = sealed_events(spark, history.places, history.source, days).collect()
    assert Counter((row.program, row.word) for row in rows) == {
        ("billing", "timeout"): 3, ("billing", "after"): 3, ("billing", "<*>"): 3, ("billing", "ms"): 3,
        ("cart", "timeout"): 1, ("cart", "again"): 1,
    }  # fmt: skip
    assert done.entry.imported is not None
    file = f"file:{done.entry.imported.sha256[:32]}"
    assert {row.raw_topic for row in rows} == {f"flow:worded/{n}:flow:templates/:{file}" for n in range(4)}
    (project / "later.log").write_text("2026-10-01T12:02:00Z billing timeout after 1 ms", encoding="utf-8")
    list(import_files(history.settings, history.source, [project / "later.log"], records=catalog.origin("words")))
    assert history.seal(spark, day=DAY).version.facts.rows == 14 + 4
    with history.table() as table:
        tidy(history.settings, history.source, table)
    withdraw(history.settings, history.source, project / "lines.log")
    assert history.seal(spark, day=DAY).version.facts.rows == 4


def test_sealed_days_go_through_flows_that_are_new(spark: SparkSession, starts: list[str], project: Path) -> None:
    catalog = read_catalog(project)
    lines, words = catalog.source("lines"), catalog.source("words")
    history = History(project / "state", lines)
    history.settings = history.settings.model_copy(update={"project": project})
    assert list(import_days(history.settings, catalog, words, lines)) == []
    list(import_files(history.settings, lines, [project / "lines.log"]))
    history.seal(spark, day=DAY)
    (done,) = import_days(history.settings, catalog, words, lines)
    assert (done.entry.events, done.reasons, done.known) == (14, {}, False)
    (again,) = import_days(history.settings, catalog, words, lines)
    assert (again.entry, again.known) == (done.entry, True)
    withdraw(history.settings, words, DAY)
    (back,) = import_days(history.settings, catalog, words, lines)
    assert (back.entry.events, back.known) == (14, False)
    (project / "flows/worded.py").write_text(WORDS_MADE.replace("word != ''", "word NOT IN ('', 'ms')"))
    (changed,) = import_days(history.settings, read_catalog(project), words, lines)
    ledger = read_ledger(Places.of(history.settings, words.name))
    assert (changed.entry.events, [*ledger.runs(DAY)]) == (11, [changed.entry.run]), "it takes the place of the former"
    made = History(project / "state", words)
    made.settings = history.settings
    (of_file,) = import_files(made.settings, words, [project / "lines.log"], records=lines)
    assert not isinstance(of_file, ConfigError)
    assert of_file.entry.events == 11
    version = made.seal(spark, day=DAY).version
    assert (version.facts.rows, version.facts.duplicates) == (11, 11), "both ways give the same identities"


def test_of_which_source_a_file_is_must_be_said_where_flows_begin_with_several(project: Path) -> None:
    text = (project / "flows/templates.py").read_text(encoding="utf-8")
    shutil.copy(project / "sources/lines.toml", project / "sources/others.toml")
    (project / "flows/templates.py").write_text(
        text.replace('source="lines"', 'source=["lines", "others"]'), encoding="utf-8"
    )
    catalog = read_catalog(project)
    with pytest.raises(ConfigError, match=r"made of records of lines or others; say of which: --records NAME"):
        catalog.origin("words")
    assert catalog.origin("words", "others").name == "others"
    with pytest.raises(ConfigError, match=r"of lines or others, not of 'other'; did you mean 'others'"):
        catalog.origin("words", "other")
