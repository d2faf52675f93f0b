"""`tocsin run`: the findings on a file are those of a backfill of its events, and each row is accounted for."""

import json
import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.rig.samples.project import copy_project
from tests.spark.conftest import burst, tick
from tests.spark.sealing import History
from tocsin.cases.case_report import FileReport, FileRequest
from tocsin.cases.spark.file_run import run_on_file
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.history.places import begin, end
from tocsin.history.spark import import_files
from tocsin.history.spark.sealed_days import sealed_events, with_tick

DAY = date(2026, 10, 1)
EACH = '''"""Each login of root."""
from pyspark.sql import functions as F

from tocsin import Levels, detector


@detector(source="logins", entity="user_id", window=None, levels=Levels(email=0), owner="a@example.com", runbook="r",
          stage="draft")
def detect(events):
    return events.where("user_id = 'root'").withColumn("score", F.lit(1))
'''
SILENT = '''"""Users who ought to log in each minute."""
from pyspark.sql import functions as F

from tocsin import Entities, Levels, detector


@detector(source="logins", entity="user_id", window="1 minute", levels=Levels(email=0),
          expect=Entities(["ann", "bob"], minimum=1), owner="a@example.com", runbook="r", stage="draft")
def detect(events):
    return events.groupBy("window", "user_id").agg(F.count("*").alias("score"))
'''
WAITS = '''"""Users who stay away for a minute."""
from dataclasses import dataclass
from datetime import datetime, timedelta

from tocsin import Event, Levels, StepFinding, detector


@dataclass(frozen=True)
class Seen:
    timer: datetime | None = None


@detector(source="logins", entity="user_id", window=None, forget_after="1 hour", levels=Levels(email=0),
          owner="a@example.com", runbook="r", stage="draft")
def step(key: str, state: Seen, event: Event) -> tuple[Seen, list[StepFinding]]:
    if event.ip_address == "0":
        raise ValueError(event.ip_address)
    return Seen(event.event_time + timedelta(minutes=1)), []


def on_timer(key: str, state: Seen, at: datetime) -> tuple[Seen, list[StepFinding]]:
    return Seen(), [StepFinding(1, {"since": at - timedelta(minutes=1)})]
'''
Run = Callable[..., FileReport]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    copy_project(tmp_path, "sources", "detectors", "expectations")
    logins = tmp_path / "sources" / "logins.toml"
    logins.write_text(logins.read_text().replace("[schema]", 'ignore = "^#"\n\n[schema]'))
    for name, text in {"each": EACH, "silent": SILENT, "waits": WAITS}.items():
        (tmp_path / "detectors" / f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture
def run(spark: SparkSession, project: Path) -> Run:
    """Runs a detector on lines."""

    def run(detector: str, lines: list[str], *, most: int = 100, **asked: Any) -> FileReport:
        (project / "file").write_text("".join(f"{one}\n" for one in lines))
        work = project / "work"
        work.mkdir(exist_ok=True)
        request = FileRequest(detector=detector, file=project / "file", most=most, **asked)
        return run_on_file(spark, Settings(project=project, state=project / "state"), request, work, lambda _: None)

    return run


def line(user: str, seconds: float, address: str = "192.0.2.1") -> str:
    at = begin(DAY) + timedelta(seconds=seconds)
    return json.dumps({"user_id": user, "timestamp": at.isoformat(), "ip_address": address, "action": "login failed"})


def scores(report: FileReport) -> list[tuple[str, float, str, float]]:
    return [(one.entity["user_id"], (one.moment - begin(DAY)).total_seconds(), one.level, one.score)
            for one in report.findings]  # fmt: skip


def test_each_row_is_accounted_for_and_findings_come_in_the_order_of_their_times(run: Run) -> None:
    lines = [line("late", 40 + n / 100) for n in range(101)] + ["no login", "# a remark", "", "{}"]
    lines += [line("limit", 10 + n / 100) for n in range(50)] + [line("low", 20 + n / 100) for n in range(51)]
    lines += ["user_id: x | timestamp: 2999-01-01T00:00:00Z | ip_address: i | action: a"] * 7
    report = run("failed_logins", lines)
    assert (report.rows, report.events, report.total, report.urgent) == (len(lines), 202, 2, 1)
    assert scores(report) == [("low", 20, "email", 51), ("late", 40, "urgent", 101)]
    assert report.first == begin(DAY) + timedelta(seconds=10)
    assert report.last == begin(DAY) + timedelta(seconds=41)
    first = len(lines) - 6
    assert [(one.reason, one.count, one.rows) for one in report.left_out] == [
        ("time_ahead", 7, [*range(first, first + 5)]),
        ("empty", 1, [104]),
        ("ignored", 1, [103]),
        *((f"missing:{name}", 1, [105]) for name in ("action", "ip_address", "timestamp", "user_id")),
        ("not_key_value", 1, [102]),
    ]
    assert scores(run("failed_logins", lines, most=1)) == [("low", 20, "email", 51)]


def test_the_findings_are_those_of_a_backfill_of_the_imported_file(
    spark: SparkSession, run: Run, project: Path, starts: list[str]
) -> None:
    lines = [line("root", 86_399 - n / 100) for n in range(60)] + [line("x", 5)] * 40
    reports = {detector: run(detector, lines) for detector in ("failed_logins", "each")}
    assert {detector: report.total for detector, report in reports.items()} == {"failed_logins": 1, "each": 60}
    history = History(project / "state")
    assert len(list(import_files.import_files(history.settings, history.source, [project / "file"]))) == 1
    sealed = history.version(DAY, history.seal(spark, day=DAY).version.version)
    events = with_tick(sealed_events(spark, history.places, history.source, {DAY: sealed}))
    catalog: Catalog = read_catalog(project)
    wanted = Range(start=begin(DAY), end=end(DAY), run_id="file")
    reader = EventReader(lambda *_: events, is_exact=True)
    for detector, report in reports.items():
        rows = find_in_range(spark, reader, catalog.detector(detector), [history.source], wanted).collect()
        backfilled = [Finding.model_validate_json(row["value"]) for row in rows]
        assert sorted(report.findings, key=lambda one: one.finding_id) == sorted(backfilled, key=lambda o: o.finding_id)


def test_what_is_missing_is_told_of_the_time_that_the_file_covers(run: Run) -> None:
    minutes = [("ann", 30), ("ann", 61), ("bob", 62), ("ann", 150), ("ann", 200)]
    assert scores(run("silent", [line(user, at) for user, at in minutes])) == [("bob", 120, "email", 1)]
    report = run("waits", [line("ann", 0), line("ann", 30), line("ann", 95), line("bob", 100, "0")])
    assert scores(report) == [("ann", 90, "email", 1)]
    assert report.failed_in_step == 1


def test_one_wrong_time_makes_no_decades_of_silence(run: Run) -> None:
    lines = [line("ann", 30), line("ann", 200), line("bob", 1e9 - begin(DAY).timestamp())]
    with pytest.raises(
        ConfigError, match=r"file: has events from 2001-09-09 01:46 to 2026-10-01 00:03: 13,\d+,\d+ win"
    ):
        run("silent", lines)


def test_a_column_that_is_looked_up_in_a_file_of_networks_is_there(run: Run, project: Path) -> None:
    travel = Path(__file__).parents[2] / "examples" / "travel"
    for name in ("sources/logins.toml", "sources/networks.csv", "detectors/new_country.py"):
        shutil.copyfile(travel / name, project / name)
    shutil.rmtree(project / "expectations")
    addresses = ["198.51.100.7", "2001:db8:1fff::7", "10.0.0.1", "198.51.100.200"]
    report = run("new_country", [line("bob", 3600 * hour, address) for hour, address in enumerate(addresses)])
    assert (report.events, scores(report)) == (4, [("bob", 3 * 3600, "email", 1)])
    assert report.findings[0].context["address"] == addresses[-1]


def test_records_of_the_events_topic_are_read_once_each(run: Run) -> None:
    events = [json.dumps(one) for one in burst("low", 51, "12:00:00")]
    report = run("failed_logins", [*events, *events, json.dumps(tick("12:00:30")), "{}", "x"], is_events=True)
    assert (report.rows, report.total, report.findings[0].score) == (105, 1, 51)
    assert [(one.reason, one.count, one.rows) for one in report.left_out] == [
        ("not_an_event", 2, [104, 105]),
        ("ignored", 1, [103]),
    ]


def test_a_file_without_events_finds_nothing_and_one_that_is_not_there_is_told(run: Run, project: Path) -> None:
    report = run("failed_logins", [])
    assert (report.rows, report.events, report.total, report.first) == (0, 0, 0, None)
    with pytest.raises(ConfigError, match="no detector 'failed_login'"):
        run("failed_login", [])
    logins = project / "sources" / "logins.toml"
    logins.write_text(logins.read_text().replace('event_time = "timestamp"\n', 'event_time = "ingested_at"\n')
                      .replace('event_time_format = "iso8601"\n', ""))  # fmt: skip
    with pytest.raises(ConfigError, match="would seem to happen while it is read"):
        run("failed_logins", [])
