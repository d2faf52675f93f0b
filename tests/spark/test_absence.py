"""Who sends too little or nothing: alike on a stream, on history and after a crash, and in total silence."""

import json
import os
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from inspect import getsource
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import told
from tests.spark.plans import SOURCE, SPEC, plan_of
from tests.spark.raw_records import ROOT
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import DetectorSpec, Entities, Levels, ScoreKind
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import tick_value
from tocsin.detect.spark.expected_windows import ClosedByBatch, Silence, fill_in
from tocsin.detect.spark.findings import Emission
from tocsin.detect.spark.plan import DetectorPlan, detector_plans
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.spark.events import parse_events, prepare_events

START = datetime(2026, 11, 24, 12, tzinfo=UTC)
USERS = ["a", "b", "never"]
EXPECTED = replace(SPEC, expect=Entities(USERS, minimum=3), levels=Levels(email=0, urgent=2))
LATENESS = timedelta(seconds=10)
Missing = dict[tuple[int, str], float]
"""What is missing, by second of the start of the window since START, and user."""


def detect(events: DataFrame) -> DataFrame:
    return events.where("action = 'beat'").groupBy("window", "user_id").agg(F.count("*").alias("score"))


def beats(seed: int, seconds: int) -> list[tuple[datetime, str]]:
    """Beats of a and b, and of one who is not expected; none at all from 40 to 100 seconds."""
    random, found = Random(seed), []
    for user, each in (("a", 3), ("b", 8), ("stranger", 5)):
        times = range(0, seconds, each)
        found += [(START + timedelta(seconds=t + random.random()), user) for t in times if not 40 <= t < 100]
    return sorted(found)


def truth(sent: list[tuple[datetime, str]], first: int, end: int) -> Missing:
    counts = Counter((int((at - START).total_seconds()) // 10 * 10, user) for at, user in sent)
    return {(start, user): 3.0 - counts[start, user] for start in range(first, end, 10) for user in USERS}


def missing(rows: DataFrame) -> Missing:
    found = rows.select((F.unix_timestamp("window.start") - int(START.timestamp())).alias("at"), "user_id", "score")
    return {(row["at"], row["user_id"]): row["score"] for row in found.collect()}


def record(at: datetime, user: str, number: int, action: str = "beat") -> str:
    fields = {"raw_topic": "raw.logins", "raw_partition": 0, "raw_offset": number, "user_id": user, "action": action}
    return json.dumps(fields | {"event_time": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"})


def silence_of(spec: DetectorSpec) -> Silence:
    silence = Silence.of(spec)
    assert silence is not None
    return silence


class Stream:
    """The query of a detector over files of records, one in each batch."""

    def __init__(self, spark: SparkSession, folder: Path, spec: DetectorSpec = EXPECTED) -> None:
        self.spark, self.records, self.checkpoint = spark, folder / "records", folder / "query"
        self.spec, self.nobody = spec, ""
        self.records.mkdir()
        self.written: list[Missing] = []
        self._files = 0

    def add(self, *records: str) -> None:
        self._files += 1
        path = self.records / f"{self._files:03d}.txt"
        path.write_text("\n".join(records))
        os.utime(path, (self._files, self._files))  # Spark reads the oldest first

    def run(self, crash_in: int | None = None, publish_from: datetime | None = None) -> None:
        closed = ClosedByBatch(silence_of(self.spec), self.checkpoint, Emission(publish_from=publish_from))

        def write(rows: DataFrame, batch: int) -> None:
            kept = rows.persist()
            filled, self.nobody = closed.missing(kept, batch), closed.nobody
            if filled is not None:
                self.written.append(missing(filled))
            if batch == crash_in:
                raise RuntimeError("killed between writing and committing")

        read = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.records))
        rows = detect(prepare_events(parse_events(read, SOURCE), self.spec, LATENESS))
        query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoint))
        query.outputMode("append").trigger(availableNow=True).start().awaitTermination()

    def found(self) -> Missing:
        """All that was written; what was written twice is the same."""
        found: Missing = {}
        for one in self.written:
            assert all(found.get(key, score) == score for key, score in one.items())
            found |= one
        return found


def seen_truth(sent: list[tuple[datetime, str]], starts: range) -> Missing:
    """What is missing of those who were seen in the last three windows."""
    counts = Counter((int((at - START).total_seconds()) // 10 * 10, user) for at, user in sent)
    return {(start, user): 3.0 - counts[start, user] for start in starts for user in sorted({who for _, who in sent})
            if any(counts[before, user] for before in range(start - 30, start, 10))}  # fmt: skip


def test_those_seen_lately_are_expected_alike_after_a_crash_and_on_history(spark: SparkSession, tmp_path: Path) -> None:
    seen = replace(EXPECTED, expect=Entities(seen_within="30 seconds", minimum=3))
    sent, stream = beats(2, 150), Stream(spark, tmp_path, seen)
    records = [record(at, user, number) for number, (at, user) in enumerate(sent)]
    before = len([at for at, _ in sent if at < START + timedelta(seconds=50)])
    silent = [tick_value(START + timedelta(seconds=t)).decode() for t in range(45, 100)]
    other = record(START + timedelta(seconds=70), "a", 9_999, action="no beat")
    for batch in (records[:5], records[5:before], [other, *silent], records[before:]):
        stream.add(*batch)
    with pytest.raises(Exception, match="killed between"):
        stream.run(crash_in=2)
    stream.run()
    assert stream.found() == seen_truth(sent, range(0, 130, 10))
    assert sum(map(len, stream.written)) > len(stream.found()), "the batch that crashed was written twice"
    assert (60, "a") in stream.found(), "found in total silence"
    assert (70, "a") not in stream.found(), "forgotten"
    assert stream.nobody == ""
    frame = spark.createDataFrame([(text,) for text in [*records, other]], "value string")
    static = prepare_events(parse_events(frame, SOURCE), seen, None)
    spans = [(START + timedelta(seconds=t), START + timedelta(seconds=t + 30)) for t in (40, 100)]
    whole = seen_truth(sent, range(0, 130, 10))
    assert missing(fill_in(detect(static), silence_of(seen), spans)) == {
        key: score for key, score in whole.items() if 40 <= key[0] < 70 or 100 <= key[0] < 130
    }
    stream.add(tick_value(START + timedelta(seconds=500)).decode())
    stream.run()
    stream.run()
    assert stream.nobody == "no entity was seen within 30 seconds"


def test_nothing_is_missing_before_the_first_event_or_what_is_published(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add(tick_value(START - timedelta(hours=5)).decode())
    stream.run()
    assert stream.written == [], "nobody has ever sent anything"
    stream.add(record(START + timedelta(seconds=65), "a", 1), tick_value(START + timedelta(seconds=95)).decode())
    stream.run(publish_from=START + timedelta(seconds=35))
    assert stream.found() == truth([(START + timedelta(seconds=65), "a")], 40, 80)


def test_on_its_first_day_a_batch_begins_with_the_first_event_as_the_stream_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "d.py"
    path.write_text(
        "from pyspark.sql import functions as F\n"
        + getsource(detect).replace(": DataFrame", "").replace(" -> DataFrame", "")
    )
    spec, midnight = replace(EXPECTED, path=path), START.replace(hour=0)
    sent = [(START + timedelta(seconds=65), "a"), (START + timedelta(seconds=105), "b")]
    frame = spark.createDataFrame(
        [(record(at, user, number),) for number, (at, user) in enumerate(sent)], "value string"
    )
    read = EventReader(lambda *_: parse_events(frame, SOURCE))

    def starts(*, is_first: bool) -> set[datetime | None]:
        day = Range(start=midnight, end=START + timedelta(seconds=100), run_id="r", is_first=is_first)
        return {one.window_start for one in told(find_in_range(spark, read, spec, [SOURCE], day))}

    seconds = {(at - START).total_seconds() for at in starts(is_first=True) if at is not None}
    assert seconds == {60, 70, 80, 90}, "silence is not known before the first event, which is at 65"
    assert midnight in starts(is_first=False), "a later day begins at midnight"
    stream = Stream(spark, tmp_path)
    stream.add(*(record(at, user, number) for number, (at, user) in enumerate(sent)))
    stream.add(tick_value(START + timedelta(seconds=110)).decode())
    stream.run()
    assert {at for at, _ in stream.found()} == seconds


def test_windows_that_overlap(spark: SparkSession) -> None:
    sliding = replace(EXPECTED, slide=timedelta(seconds=5), expect=Entities(["a"], minimum=1))
    frame = spark.createDataFrame([(record(START + timedelta(seconds=12), "a", 1),)], "value string")
    rows = detect(prepare_events(parse_events(frame, SOURCE), sliding, None))
    found = missing(fill_in(rows, silence_of(sliding), [(START, START + timedelta(seconds=20))]))
    assert found == {(0, "a"): 1, (5, "a"): 0, (10, "a"): 0, (15, "a"): 1}


def test_the_example_is_planned(spark: SparkSession) -> None:
    project = ROOT / "examples/heartbeats"
    plans, faults = detector_plans(spark, project, read_catalog(project))
    assert (faults, plans["silent_instance"].output) == ([], "append")


def test_the_score_is_final_and_what_can_never_fire_is_refused(spark: SparkSession) -> None:
    plan = plan_of(spark, detect, expect=EXPECTED.expect)
    assert (plan.score.kind, plan.output) == (ScoreKind.FINAL, "append")

    def fewer_than(number: int) -> DetectorPlan:
        def count(events: DataFrame) -> DataFrame:
            return events.groupBy("window", "user_id").agg((F.lit(number) - F.count("*")).alias("score"))

        return plan_of(spark, count, levels=Levels(email=0))

    with pytest.raises(ConfigError, match=r"levels: can never be reached: .* add expect=Entities"):
        fewer_than(1)
    assert fewer_than(2).score.kind is ScoreKind.FINAL, "one event is fewer than two"
