"""Sealing: each event once, in buckets, sorted; what can be wrong with a day harms that day alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.sealing import DAY, History, Judge, login
from tocsin.history.versions import read_version
from tocsin.spark.history import sealed_events


def test_a_sealed_day_has_each_event_once_in_buckets_sorted_by_key_and_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    history, judge = History(tmp_path), Judge()
    events = [login(n, seconds=86399 - n) for n in range(500)]
    history.land(events[:300])
    history.land(events[200:])
    sealed = history.seal(spark, judge)
    facts = judge.facts[0]
    assert (facts.rows, facts.landed, facts.duplicates, facts.late, judge.rows) == (500, 600, 100, 0, [500])
    assert (facts.newest_event, facts.previous_rows) == (events[0]["event_time"], None)
    with history.table() as table:
        assert table.published() == {DAY: sealed.version.version}
        assert sum(table.files().values()) == 500
        assert table.audits() == set()
    version = read_version(history.places, DAY, sealed.version.version)
    assert (version.buckets, version.key, version.state) == (32, "user_id", "published")
    users: dict[str, str] = {}
    for file in version.files:
        path = history.places.version(DAY, version.version) / file.name
        rows = pq.read_table(path).to_pylist()
        assert rows == sorted(rows, key=lambda row: (row["user_id"], row["event_time"]))
        assert len(rows) == file.rows
        for row in rows:
            assert users.setdefault(row["user_id"], file.name) == file.name, "a user lies in one bucket"
        stamp = pq.read_schema(path).field("event_time").type
        assert (stamp.unit, stamp.tz) == ("us", "UTC")
        assert pq.read_metadata(path).row_group(0).column(7).compression == "ZSTD"
    read = sealed_events(spark, history.places, history.source, {DAY: version}).orderBy("raw_offset").collect()
    assert [row["raw_offset"] for row in read] == list(range(500))


def test_an_aggregate_by_the_key_over_days_plans_no_exchange(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path)
    history.land([login(n, seconds=n) for n in range(100)])
    version = history.seal(spark).version
    days = {DAY: version}
    events = sealed_events(spark, history.places, history.source, days)
    counts = events.groupBy(F.window("event_time", "10 seconds"), "user_id").count()
    plan = counts._jdf.queryExecution().executedPlan().toString()
    assert "Exchange" not in plan
    assert "Bucketed: true" in plan
    assert counts.agg(F.sum("count")).first() == (100,)
