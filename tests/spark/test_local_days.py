"""Days of a time zone: a stream, a backfill day by day and a plain count by the clock of Berlin find the same."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import Feed
from tests.spark.plans import SOURCE, SPEC
from tocsin.declare.model.detector import DetectorSpec, Entities, Levels
from tocsin.declare.model.finding import Finding
from tocsin.detect.spark.expected_windows import Silence, fill_in
from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.history.backfill.backfill_planning import inputs
from tocsin.spark.events import parse_events, prepare_events

pytestmark = pytest.mark.usefixtures("quick_batches")

BERLIN = ZoneInfo("Europe/Berlin")
CODE = """
from pyspark.sql import functions as F
def detect(events):
    return events.groupBy("window", "user_id").agg(F.{score}.alias("score"))
"""
# Both edges of the days at which the clock changes, to the microsecond: 23 hours in March, 25 in October.
EDGES = [
    *(
        "2026-03-28T22:59:59.999999",
        "2026-03-28T23:00:00.000000",
        "2026-03-29T21:59:59.999999",
        "2026-03-29T22:00:00.000000",
    ),
    *(
        "2026-10-24T21:59:59.999999",
        "2026-10-24T22:00:00.000000",
        "2026-10-25T22:59:59.999999",
        "2026-10-25T23:00:00.000000",
    ),
]


def detector(tmp_path: Path, score: str) -> DetectorSpec:
    path = tmp_path / "d.py"
    path.write_text(CODE.format(score=score))
    return replace(SPEC, path=path, window=timedelta(days=1), time_zone="Europe/Berlin", levels=Levels(email=0))


def record(number: int, at: str) -> dict[str, Any]:
    identity = {"raw_topic": "raw.logins", "raw_partition": 0, "raw_offset": number}
    times = {"event_time": f"{at}Z", "ingested_at": f"{at}Z", "timestamp": f"{at}Z"}
    return identity | times | {"user_id": "ann", "action": "x", "source": "logins", "schema_version": 1}


def counted() -> Counter[tuple[datetime, datetime]]:
    """Count the edges by the day on a calendar of Berlin."""
    counts = Counter[tuple[datetime, datetime]]()
    for text in EDGES:
        day = datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone(BERLIN).date()
        edges = (datetime.combine(one, time(), BERLIN).astimezone(UTC) for one in (day, day + timedelta(days=1)))
        counts[tuple(edges)] += 1  # type: ignore[index]  # two of them
    return counts


def windows(findings: list[Finding]) -> dict[tuple[datetime | None, datetime | None], float]:
    assert len({one.finding_id for one in findings}) == len(findings)
    return {(one.window_start, one.window_end): one.score for one in findings}


def by_days(spark: SparkSession, spec: DetectorSpec) -> list[Finding]:
    """Run a backfill of each day for itself, on the events of those days that it asks for."""
    first, found = date(2026, 3, 27), []
    records = [record(number, at) for number, at in enumerate(EDGES)]
    for day in (first + timedelta(days=number) for number in range(215)):
        read = [one for one in records if date.fromisoformat(one["event_time"][:10]) in inputs(day, spec)]
        if not read:
            continue
        values = spark.createDataFrame([(json.dumps(one),) for one in read], "value string")
        begin = datetime.combine(day, time(), UTC)
        reader = EventReader(lambda *_, values=values: parse_events(values, SOURCE))
        wanted = Range(start=begin, end=begin + timedelta(days=1), run_id="r")
        day_found = [Finding.model_validate_json(row.value)
                     for row in find_in_range(spark, reader, spec, [SOURCE], wanted).collect()]  # fmt: skip
        assert {one.day for one in day_found} <= {day}, "a finding is of the day of UTC on which its window begins"
        found += day_found
    return found


@pytest.mark.parametrize(("score", "mode"), [("count('*')", "update"), ("expr('count(*) * 1')", "append")])
def test_stream_and_backfill_find_days_of_23_and_25_hours(
    spark: SparkSession, tmp_path: Path, feed: Feed, score: str, mode: str
) -> None:
    spec = detector(tmp_path, score)
    expected = dict(counted())
    assert sorted((end - begin) // timedelta(hours=1) for begin, end in expected) == [23, 24, 24, 24, 24, 25]
    assert windows(by_days(spark, spec)) == expected

    namespace: dict[str, Any] = {}
    exec(spec.path.read_text(), namespace)
    events = prepare_events(parse_events(feed.records, SOURCE), spec, timedelta(seconds=10))
    rows = make_findings(namespace["detect"](events), spec, Emission())
    written: dict[str, Finding] = {}

    def take(rows: DataFrame, _: int) -> None:
        for row in rows.collect():
            written[row.key] = Finding.model_validate_json(row.value)

    records = [record(number, at) for number, at in enumerate(EDGES)]
    for half in (records[:4], records[4:]):
        feed.send(half)
    for end in ("2026-10-27T00:00:00.000000", "2026-10-27T00:00:01.000000"):
        feed.send([{"tick": True, "event_time": f"{end}Z"}])
    writer = rows.writeStream.foreachBatch(take).outputMode(mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    assert windows(list(written.values())) == expected
    removed = [one["numRowsRemoved"] for batch in query.recentProgress for one in batch["stateOperators"]
               if one["operatorName"] == "stateStoreSave"]  # fmt: skip
    assert sum(removed) == len(expected), "days that have closed are forgotten: the window has its watermark"


def test_silence_is_looked_for_day_by_day_of_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    spec = replace(detector(tmp_path, "count('*')"), expect=Entities(["ann"], minimum=1))
    begin = datetime(2026, 10, 22, 22, tzinfo=UTC)
    none = spark.createDataFrame([], "window struct<start: timestamp, end: timestamp>, user_id string, score bigint")
    silence = Silence.of(spec)
    assert silence is not None
    filled = fill_in(none, silence, [(begin, begin + timedelta(days=4))]).select(
        *(F.unix_micros(f"window.{edge}").alias(edge) for edge in ("start", "end"))
    )
    hours = [(row["end"] - row["start"]) / 3_600_000_000 for row in filled.orderBy("start").collect()]
    assert hours == [24, 24, 25, 24]
