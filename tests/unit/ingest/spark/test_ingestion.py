"""Where an ingest goes on, what it counts as removed, and where it says that its query has failed."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tests.rig.samples.checkpoints import batch
from tocsin.ingest.spark.ingestion import Ingest
from tocsin.kafka.topic_set import Position, TopicSet, place_of
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.sparkjob.query.gaps import read_gaps, removed_upstream

RAW = "raw.logins"
R0, R1 = (place_of(RAW, partition) for partition in range(2))
SINCE = datetime(2026, 11, 19, 12, tzinfo=UTC)
UNTIL = {R0: SINCE + timedelta(hours=1), R1: SINCE + timedelta(hours=2)}
REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    one = Ingest(Settings(project=REPOSITORY, state=tmp_path), "logins")
    one._written_since = lambda: SINCE  # type: ignore[method-assign]  # it asks Kafka
    batch(one._checkpoint(), 3, {RAW: {"0": 5, "1": 8}})
    return one


def begin(one: Ingest, first: Position) -> Position:
    """What `start` does up to the search."""
    topics = SimpleNamespace(bounds=lambda: (first, {R0: 99, R1: 99}), appended_at=lambda place, *_: UNTIL[place])
    run: Any = SimpleNamespace(topics=topics)
    one._began_at, _ = one._position(run)
    return one._began_at


def test_a_failure_behind_removed_records_is_counted_where_the_next_start_begins(ingest: Ingest) -> None:
    assert begin(ingest, {R0: 20, R1: 0}) == {R0: 20, R1: 8}
    run: Any = None  # not asked for anything
    for _ in range(2):
        assert ingest.accept_failure(run, "a record ends the query")
    assert ingest._poison._state.failures == 2
    assert ingest._poison._state.position == begin(ingest, {R0: 20, R1: 0})


def test_removed_records_count_once_however_often_it_starts(ingest: Ingest) -> None:
    begin(ingest, {R0: 20, R1: 0})
    begin(ingest, {R0: 20, R1: 0})
    assert ingest._counts["removed_unread"] == 15
    assert ingest._reason().startswith("15 records were removed before they were read, their events are lost; ")
    assert ingest._reason(90.0).endswith("their events are lost; drains a backlog up to 0:01:30 old")
    begin(ingest, {R0: 30, R1: 10})
    assert ingest._counts["removed_unread"] == 27
    first, second = read_gaps(ingest._folder)
    assert (first.offsets, first.since, first.until) == ({0: "5 to 20"}, SINCE, UNTIL[R0])
    assert (second.offsets, second.until) == ({0: "20 to 30", 1: "8 to 10"}, UNTIL[R1])


def test_a_raw_topic_that_was_recreated_is_read_from_its_start_however_long_it_is(ingest: Ingest) -> None:
    ends: Position = {R0: 99, R1: 99}
    ids = {RAW: "first"}

    def fit() -> Position:
        topics = TopicSet.__new__(TopicSet)
        topics.names, topics._readers = (RAW,), {RAW: Any}  # type: ignore[dict-item]  # nobody asks it
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TopicSet, "ids", lambda _: dict(ids))
            patch.setattr(TopicSet, "bounds", lambda _: ({R0: 0, R1: 0}, ends))
            patch.setattr(TopicSet, "first_at", lambda _, place, *__: UNTIL[place])
            run: Any = SimpleNamespace(topics=topics)
            ingest._fit_topics(run)
            assert run.topic_ids == ids
            return ingest._position(run)[0]

    assert fit() == {R0: 5, R1: 8}, "the ids were not known before"
    ids[RAW] = "second"
    assert fit() == {R0: 0, R1: 0}
    assert fit() == {R0: 0, R1: 0}
    (gap,) = read_gaps(ingest._folder)
    assert (gap.is_recreated, gap.since, gap.until, gap.partitions) == (True, SINCE, UNTIL[R0], {})
    assert ingest._counts["topics_recreated"] == 1
    assert ingest._reason().startswith("a topic that it reads was deleted and created again")
    batch(ingest._checkpoint(), 0, {RAW: {"0": 5, "1": 8}})
    ends = {R0: 2, R1: 99}
    assert fit() == {R0: 0, R1: 0}, "a broker without ids tells by the length alone"


def test_removed_records_count_behind_a_restart_too(ingest: Ingest) -> None:
    begin(ingest, {R0: 20, R1: 0})
    batch(ingest._checkpoint(), 4, {RAW: {"0": 25, "1": 8}})
    again = Ingest(ingest._settings, "logins")
    assert begin(again, {R0: 20, R1: 0}) == {R0: 25, R1: 8}
    assert again._counts["removed_unread"] == 15
    feeders = read_catalog(REPOSITORY).feeders_of(["logins"])
    assert [gap.records for _, gap in removed_upstream(ingest._settings, feeders)] == [15]


def test_what_is_ignored_is_said_and_is_no_part_of_what_is_quarantined(ingest: Ingest) -> None:
    ingest.count_figures({"records": 4_000, "ignored": 3_000, "quarantined": 51, "latest_event_time": None})
    assert ingest.sentence() == "5.1% of the last 1000 records went to quarantine"
    ingest.count_figures({"records": 2_000, "ignored": 1_000, "quarantined": 0, "latest_event_time": None})
    assert ingest.sentence().endswith("; 4,000 records were ignored")
    ingest.count_figures({"records": 100, "ignored": 100, "quarantined": 0, "latest_event_time": None})
    assert ingest.sentence().endswith("; 4,100 records were ignored")


def test_a_pattern_that_ignores_everything_is_said_after_few_records(ingest: Ingest) -> None:
    ingest.count_figures({"records": 99, "ignored": 99})
    assert ingest._counts["ignored_ratio"] == 0.0
    ingest.count_figures({"records": 1, "ignored": 1})
    assert ingest.sentence() == "`ignore` leaves out 100.0% of the last 100 records; a pattern may be too wide"


def test_a_broken_file_of_networks_stops_no_ingest_that_had_a_usable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.ingest.spark.ingestion.check_source", lambda *_: None)
    project, spark = tmp_path / "project", cast(SparkSession, None)  # not asked for anything
    shutil.copytree(REPOSITORY / "examples/travel", project)
    settings = Settings(project=project, state=tmp_path / "state")
    usable = Ingest(settings, "logins")
    usable.check(spark)
    (project / "sources/networks.csv").write_text("cidr,country\n192.0.2.0/24,DE\n192.0.2.1/24,BR\n")
    later = Ingest(settings, "logins")
    later.check(spark)
    file = later.source.enrich["country"].file
    assert file.read_bytes() == (REPOSITORY / "examples/travel/sources/networks.csv").read_bytes()
    assert later.sentence().startswith("looks up in the file before, since ")
    assert "networks.csv:3: '192.0.2.1/24' is an address in a network" in later.sentence()
