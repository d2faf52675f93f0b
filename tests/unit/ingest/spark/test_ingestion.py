"""Where an ingest goes on, what it counts as removed, and where it says that its query has failed."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tests.rig.samples.checkpoints import batch
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.settings import Settings
from tocsin.ingest.spark.ingestion import Ingest, RecentShare, ingestion
from tocsin.ingest.spark.mover import lost, not_ready
from tocsin.platform.kafka.topic_set import Position, TopicSet, place_of
from tocsin.spark.query import gaps
from tocsin.spark.query.progress import BatchProgress
from tocsin.spark.query.work import Run

RAW = "raw.logins"
R0, R1 = (place_of(RAW, partition) for partition in range(2))
SINCE = datetime(2026, 11, 19, 12, tzinfo=UTC)
UNTIL = {R0: SINCE + timedelta(hours=1), R1: SINCE + timedelta(hours=2)}
REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    ingest = made(Settings(project=REPOSITORY, state=tmp_path))
    batch(ingest.mover.query, 3, {RAW: {"0": 5, "1": 8}})
    return ingest


def made(settings: Settings) -> Ingest:
    ingest = Ingest(settings, "logins")
    ingest.mover._written_since = lambda: SINCE  # type: ignore[method-assign]  # it asks Kafka
    return ingest


def run_with(first: Position) -> Any:
    topics = SimpleNamespace(bounds=lambda: (first, {R0: 99, R1: 99}), appended_at=lambda place, *_: UNTIL[place])
    topics.ids, topics.recreated = dict, lambda *_: []
    return SimpleNamespace(topics=topics, topic_ids={}, places=[R0, R1], counts={})


def begin(ingest: Ingest, first: Position) -> tuple[Position, dict[str, int]]:
    """What `start` does up to the search."""
    run = run_with(first)
    checkpoint = ingest.open(run, "")
    return checkpoint.position(run.places), gaps.counts(ingest.mover.folders.stored)


def test_a_failure_behind_removed_records_is_counted_where_the_next_start_begins(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with({R0: 20, R1: 0})
    job = ingestion(ingest._settings, "logins")
    job._checkpoint = ingest.open(run, "")
    assert job._checkpoint.position(run.places) == {R0: 20, R1: 8}
    for _ in range(2):
        assert job.accept_failure(run, "a record ends the query")
    assert job._poison._state.failures == 2
    assert job._poison._state.position == begin(ingest, {R0: 20, R1: 0})[0]
    run.topics.bounds = lambda: ({R0: 21, R1: 0}, {})
    assert job.accept_failure(run, "more was removed")
    assert job._poison._state.failures == 2


def test_removed_records_count_once_however_often_it_starts(ingest: Ingest) -> None:
    begin(ingest, {R0: 20, R1: 0})
    _, counts = begin(ingest, {R0: 20, R1: 0})
    assert counts["removed_unread"] == 15
    assert lost(cast(Run, SimpleNamespace(counts=counts))).startswith("15 records were removed before they were read")
    assert begin(ingest, {R0: 30, R1: 10})[1]["removed_unread"] == 27
    first, second = gaps.read_gaps(ingest.mover.folders.stored)
    assert (first.offsets, first.since, first.until) == ({0: "5 to 20"}, SINCE, UNTIL[R0])
    assert (second.offsets, second.until) == ({0: "20 to 30", 1: "8 to 10"}, UNTIL[R1])


def test_a_raw_topic_that_was_recreated_is_read_from_its_start_however_long_it_is(ingest: Ingest) -> None:
    ends: Position = {R0: 99, R1: 99}
    ids = {RAW: "first"}

    def fit() -> Position:
        topics = TopicSet.__new__(TopicSet)
        topics.names = (RAW,)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TopicSet, "ids", lambda _: dict(ids))
            patch.setattr(TopicSet, "bounds", lambda _: ({R0: 0, R1: 0}, ends))
            patch.setattr(TopicSet, "first_at", lambda _, place, *__: UNTIL[place])
            run: Any = SimpleNamespace(topics=topics)
            checkpoint = ingest.open(run, "")
            assert checkpoint.topic_ids == run.topic_ids == ids
            return checkpoint.position([R0, R1])

    assert fit() == {R0: 5, R1: 8}, "the ids were not known before"
    ids[RAW] = "second"
    assert fit() == {R0: 0, R1: 0}
    assert fit() == {R0: 0, R1: 0}
    (gap,) = gaps.read_gaps(ingest.mover.folders.stored)
    assert (gap.is_recreated, gap.since, gap.until, gap.partitions) == (True, SINCE, UNTIL[R0], {})
    counts = gaps.counts(ingest.mover.folders.stored)
    assert counts["topics_recreated"] == 1
    assert lost(cast(Run, SimpleNamespace(counts=counts))).startswith("a topic that it reads was deleted and created")
    batch(ingest.mover.query, 0, {RAW: {"0": 5, "1": 8}})
    ends = {R0: 2, R1: 99}
    assert fit() == {R0: 0, R1: 0}, "a broker without ids tells by the length alone"


def test_removed_records_count_behind_a_restart_too(ingest: Ingest) -> None:
    begin(ingest, {R0: 20, R1: 0})
    batch(ingest.mover.query, 4, {RAW: {"0": 25, "1": 8}})
    position, counts = begin(made(ingest._settings), {R0: 20, R1: 0})
    assert (position, counts["removed_unread"]) == ({R0: 25, R1: 8}, 15)
    feeders = read_catalog(REPOSITORY).feeders_of(["logins"])
    assert [gap.records for _, gap in gaps.removed_upstream(ingest._settings, feeders)] == [15]


def take(ingest: Ingest, records: int, ignored: int, quarantined: int = 0) -> Any:
    """Take a finished batch as the first one; returns the run."""
    run: Any = SimpleNamespace(counts={"ignored": ignored})
    figures = {"records": records, "ignored": ignored, "quarantined": quarantined, "latest_event_time": None}
    ingest.take(run, figures, cast(BatchProgress, SimpleNamespace(end_offsets={})))
    return run


def test_what_is_ignored_is_said_and_is_no_part_of_what_is_quarantined(ingest: Ingest) -> None:
    assert ingest.reason(take(ingest, 4_000, 3_000, 51)) == "5.1% of the last 1000 records went to quarantine"
    assert ingest.reason(take(ingest, 2_000, 1_000)).endswith("; 1,000 records were ignored")


def test_a_pattern_that_ignores_everything_is_said_after_few_records(ingest: Ingest) -> None:
    assert take(ingest, 99, 99).counts["ignored_ratio"] == 0.0
    reason = ingest.reason(take(ingest, 1, 1))
    assert reason == "`ignore` leaves out 100.0% of the last 100 records; a pattern may be too wide"


def test_a_broken_file_of_networks_stops_no_ingest_that_had_a_usable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.ingest.spark.ingestion.check_source", lambda *_: None)
    project, spark = tmp_path / "project", cast(SparkSession, None)  # not asked for anything
    shutil.copytree(REPOSITORY / "examples/travel", project)
    settings = Settings(project=project, state=tmp_path / "state")
    usable = Ingest(settings, "logins")
    usable.plan(spark)
    (project / "sources/networks.csv").write_text("cidr,country\n192.0.2.0/24,DE\n192.0.2.1/24,BR\n")
    later = Ingest(settings, "logins")
    later.plan(spark)
    run: Any = SimpleNamespace(counts={})
    file = later.source.enrich["country"].file
    assert file.read_bytes() == (REPOSITORY / "examples/travel/sources/networks.csv").read_bytes()
    assert later.reason(run).startswith("looks up in the file before, since ")
    assert "networks.csv:3: '192.0.2.1/24' is an address in a network" in later.reason(run)


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def report(state: JobState, delay: float | None, age: float = 1.0) -> dict[str, JobReport]:
    at = MOMENT - timedelta(seconds=age)
    return {"detector:a": JobReport(job="detector:a", at=at, state=state, delay_seconds=delay)}


@pytest.mark.parametrize(
    ("state", "delay", "age", "waits"),
    [
        (JobState.RUNNING, 12.0, 1, True),  # would drop what is older than 12 s
        (JobState.DRAINING, 599.9, 1, True),
        (JobState.DRAINING, 600.0, 1, False),
        (JobState.RUNNING, None, 1, False),  # has no watermark
        (JobState.STARTING, None, 1, True),  # will read our report when it starts its query
        (JobState.WAITING, None, 1, True),
        (JobState.READY, None, 1, True),  # has just followed on the same checkpoint
        (JobState.STOPPED, 12.0, 1, False),
        (JobState.RUNNING, 12.0, 10.1, False),  # is dead
    ],
)
def test_who_is_waited_for(state: JobState, delay: float | None, age: float, waits: bool) -> None:
    assert not_ready(report(state, delay, age), ["detector:a"], 600.0, MOMENT) == (["detector:a"] if waits else [])


def test_nobody_else_is_waited_for() -> None:
    assert not_ready(report(JobState.RUNNING, 12.0), ["detector:b"], 600.0, MOMENT) == []
    assert not_ready({}, ["detector:a"], 600.0, MOMENT) == []


def test_few_records_prove_nothing() -> None:
    share = RecentShare()
    share.add(999, 999)
    assert share.value == 0.0
    share.add(1, 1)
    assert (share.value, share.records) == (1.0, 1_000)


def test_fewer_are_enough_where_there_is_no_other() -> None:
    share = RecentShare(enough_if_all=100)
    share.add(99, 99)
    assert share.value == 0.0
    share.add(1, 1)
    assert share.value == 1.0
    share.add(1, 0)
    assert share.value == 0.0


def test_a_bad_hour_is_forgotten_after_enough_good_records() -> None:
    share = RecentShare()
    share.add(2_000, 2_000)
    share.add(600, 0)
    assert share.value == pytest.approx(2_000 / 2_600)
    share.add(600, 0)
    assert share.value == 0.0
