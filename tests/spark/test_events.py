"""Events as detectors receive them, from a static DataFrame and from a stream."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import Feed, burst, event, moment, tick
from tests.spark.plans import SOURCE, SPEC
from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.spark.events import IDENTITY, filter_early, optimize, parse_events, prepare_events, used_columns
from tocsin.spark.query.progress import parse_progress

Records = Callable[[list[dict[str, Any]]], DataFrame]
DELAY = timedelta(seconds=10)


def ready(records: DataFrame, early: str | None = None, **spec: Any) -> DataFrame:
    return prepare_events(parse_events(records, SOURCE), replace(SPEC, **spec), DELAY, early=early)


def count(events: DataFrame) -> DataFrame:
    return events.groupBy("window", "user_id").agg(F.count("*").alias("n"))


def stream(feed: Feed, detect: Callable[[DataFrame], DataFrame] = count) -> DataFrame:
    """Make the rows of a detector as its job does."""
    return filter_early(lambda early: detect(ready(feed.records, early)))


def test_events_carry_envelope_declared_columns_and_window(records: Records) -> None:
    (row,) = ready(records([event("ann", "12:00:09.999999", offset=7, amount=2.5, tries=3, more="x")])).collect()
    assert (row.raw_topic, row.raw_partition, row.raw_offset) == ("raw.logins", 0, 7)
    assert (row.user_id, row.amount, row.tries, row.action) == ("ann", 2.5, 3, "login failed")
    assert row.event_time == moment("12:00:09.999999").replace(tzinfo=None)
    assert row.window.start == moment("12:00:00").replace(tzinfo=None)
    assert row.window.end == moment("12:00:10").replace(tzinfo=None)
    assert "tick" not in row


def test_the_edge_of_a_window_belongs_to_the_next(records: Records) -> None:
    rows = ready(records([event("ann", "12:00:09.999999"), event("ann", "12:00:10")])).collect()
    assert sorted(row.window.start.second for row in rows) == [0, 10]


def test_sliding_windows_give_a_row_for_each(records: Records) -> None:
    rows = ready(records([event("ann", "12:00:07")]), slide=timedelta(seconds=5)).collect()
    assert sorted(row.window.start.second for row in rows) == [0, 5]


def test_an_event_written_twice_is_there_once(records: Records) -> None:
    twice = [event("ann", "12:00:01", offset=1), event("ann", "12:00:01", offset=1)]
    others = [event("ann", "12:00:01", offset=1, partition=1), event("ann", "12:00:01", offset=2)]
    assert ready(records(twice + others)).count() == 3


def test_ticks_and_what_has_no_time_are_left_out(records: Records) -> None:
    assert ready(records([tick("12:00:01"), {"no": "event"}, event("ann", "12:00:02")])).count() == 1
    assert ready(records([tick("12:00:01"), {"no": "event"}, event("ann", "12:00:02")]), window=None).count() == 1


def test_single_events_have_no_window(records: Records) -> None:
    assert "window" not in ready(records([event("ann", "12:00:02")]), window=None).columns


def test_ticks_alone_move_the_watermark_and_close_a_window(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """Also while all that arrives is nothing that the detector looks at."""
    counts = stream(feed, lambda events: count(events.where("action = 'login failed'")))
    query = (
        counts.writeStream.format("memory").queryName("ticks").outputMode("append")
        .option("checkpointLocation", str(tmp_path / "query")).start()
    )  # fmt: skip
    try:
        for events in (
            burst("ann", 3, "12:00:01") + burst("ann", 3, "12:00:01"),
            [event("bob", "12:00:02", offset=50, action="login succeeded"), tick("12:00:15")],
            [tick("12:00:19.9")],
        ):
            feed.send(events)
            query.processAllAvailable()
        assert spark.table("ticks").count() == 0
        feed.send([tick("12:00:20.1")])
        query.processAllAvailable()
        (row,) = spark.table("ticks").collect()
        assert (row.user_id, row.n, row.window.start) == ("ann", 3, moment("12:00:00").replace(tzinfo=None))
        progress = [parse_progress(one.json) for one in query.recentProgress]
        assert progress[-1].watermark == moment("12:00:10.1")
        assert sum(one.dropped_late for one in progress) == 0
    finally:
        query.stop()


def test_out_of_order_within_the_delay_counts_and_later_is_dropped(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    counts = stream(feed)
    query = (
        counts.writeStream.format("memory").queryName("late").outputMode("update")
        .option("checkpointLocation", str(tmp_path / "query")).start()
    )  # fmt: skip
    try:
        for events in (
            burst("ann", 2, "12:00:01"),
            burst("ann", 1, "12:00:11", first=10),
            burst("ann", 1, "12:00:01.000001", first=20),  # just after the watermark: counts
            burst("ann", 1, "12:00:01", first=30),  # at it: late
        ):
            feed.send(events)
            query.processAllAvailable()
        first = spark.table("late").where(F.second("window.start") == 0)
        assert [row.n for row in first.agg(F.max("n").alias("n")).collect()] == [3]
        assert sum(parse_progress(one.json).dropped_late for one in query.recentProgress) == 1
    finally:
        query.stop()


def test_duplicates_are_dropped_across_batches_and_in_the_window_after(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    counts = stream(feed)
    query = (
        counts.writeStream.format("memory").queryName("twice").outputMode("update")
        .option("checkpointLocation", str(tmp_path / "query")).start()
    )  # fmt: skip
    try:
        for _ in range(3):  # as ingest repeats what followed its last commit
            feed.send(burst("ann", 60, "12:00:09"))
            query.processAllAvailable()
        feed.send(burst("ann", 60, "12:00:09") + burst("ann", 1, "12:00:12", first=60))
        query.processAllAvailable()
        best = spark.table("twice").groupBy("window.start").agg(F.max("n").alias("n")).orderBy("start").collect()
        assert [row.n for row in best] == [60, 1]
    finally:
        query.stop()


def test_batch_and_stream_agree(spark: SparkSession, records: Records, feed: Feed, tmp_path: Path) -> None:
    events = [
        event(f"user{number % 3}", f"12:00:{number % 40:02d}.{number * 7 % 1000:03d}", offset=number % 150)
        for number in range(200)
    ]
    batch = {(row.user_id, row.window.start): row.n for row in count(ready(records(events))).collect()}
    spark.conf.set("spark.sql.shuffle.partitions", 3)
    query = (
        stream(feed).writeStream.format("memory").queryName("agree").outputMode("update")
        .option("checkpointLocation", str(tmp_path / "query")).start()
    )  # fmt: skip
    try:
        in_order = sorted(events, key=lambda one: one["event_time"])
        for start in range(0, len(in_order), 40):
            feed.send(in_order[start : start + 40])
        query.processAllAvailable()
        best = spark.table("agree").groupBy("user_id", "window").agg(F.max("n").alias("n")).collect()
        assert {(row.user_id, row.window.start): row.n for row in best} == batch
        assert sum(batch.values()) == len({(one["raw_offset"], one["event_time"]) for one in events})
    finally:
        query.stop()
        spark.conf.set("spark.sql.shuffle.partitions", 1)


@pytest.mark.parametrize(
    ("asked", "remembered"),
    [
        ("action = 'it\\'s \\\\ \"x\"' AND amount > 1.5", 2),
        ("amount > 1.5 AND exists(array(action), a -> a LIKE '%x%')", 4),  # there is no SQL for what it becomes
    ],
)
def test_what_a_detector_leaves_out_is_not_remembered(
    spark: SparkSession, feed: Feed, tmp_path: Path, asked: str, remembered: int
) -> None:
    counts = stream(feed, lambda events: count(events.where(asked)))
    query = (
        counts.writeStream.format("memory").queryName("early").outputMode("update")
        .option("checkpointLocation", str(tmp_path / "query")).start()
    )  # fmt: skip
    try:
        action = 'it\'s \\ "x"'
        kept = [event("ann", "12:00:01", offset=number, action=action, amount=2.0) for number in range(2)]
        left_out = event("ann", "12:00:01", offset=2, action="y", amount=2.0)
        feed.send([*kept, *kept, left_out, event("bob", "12:00:01", offset=3, action=action)])
        query.processAllAvailable()
        assert [(row.user_id, row.n) for row in spark.table("early").collect()] == [("ann", 2)]
        (found,) = [one for one in query.recentProgress if one.numInputRows]
        (seen,) = [one.numRowsUpdated for one in found.stateOperators if one.operatorName == "dedupe"]
        assert seen == remembered
        assert query._jsq.explainInternal(False).count("Exchange SinglePartition") == 1
    finally:
        query.stop()


def largest(events: DataFrame) -> DataFrame:
    """Names a column, tries, that its findings do not need."""
    named = events.withColumn("again", F.col("tries") + 1).where("action = 'login failed'")
    return named.groupBy("window", "user_id").agg(F.count("*").alias("score"), F.max("amount").alias("largest"))


def test_only_the_columns_that_findings_need_are_read(spark: SparkSession) -> None:
    kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "a:1").option("subscribe", "t").load()
    rows = make_findings(largest(prepare_events(parse_events(kafka, SOURCE), SPEC, DELAY)), SPEC, Emission())
    used = used_columns(optimize(rows), [SOURCE])[SOURCE.name]
    assert used == {*IDENTITY, "event_time", "tick", "action", "user_id", "amount"}


def test_columns_that_are_not_read_are_there_and_null(records: Records) -> None:
    given = records([event("ann", "12:00:01", amount=2.5, tries=3)])
    (row,) = prepare_events(parse_events(given, SOURCE, frozenset({"event_time", "amount"})), SPEC, DELAY).collect()
    assert (row.amount, row.tries, row.user_id) == (2.5, None, None)
    assert row.asDict().keys() == set(ready(given).columns)


def test_findings_are_the_same_from_the_columns_they_need(records: Records) -> None:
    given = records(burst("ann", 60, "12:00:01", amount=2.5, tries=3))
    full = make_findings(largest(ready(given)), SPEC, Emission())
    used = used_columns(optimize(full), [SOURCE])[SOURCE.name]
    pruned = make_findings(largest(prepare_events(parse_events(given, SOURCE, used), SPEC, DELAY)), SPEC, Emission())
    assert pruned.collect() == full.collect() != []
