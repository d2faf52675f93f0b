"""Scored rows as findings: limits, identity, what is left out, and the ladder."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, timedelta
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import Feed, burst, event, moment, told
from tests.spark.plans import SOURCE, SPEC
from tocsin.declare.model.detector import Levels
from tocsin.declare.model.finding import Finding, finding_id
from tocsin.declare.model.sizes import TEXT_BYTES, shortened
from tocsin.detect.spark.findings import Emission, make_findings, make_scores
from tocsin.spark.events import parse_events, prepare_events

Records = Callable[[list[dict[str, Any]]], DataFrame]
PLAIN = Emission()


def count_by_user(events: DataFrame) -> DataFrame:
    failures = events.where("action = 'login failed'")
    return failures.groupBy("window", "user_id").agg(
        F.count("*").alias("score"), F.max("event_time").alias("event_time_max")
    )


def found(records: DataFrame, detect: Callable[[DataFrame], DataFrame] = count_by_user, **spec: Any) -> list[Finding]:
    declared = replace(SPEC, **spec)
    events = prepare_events(parse_events(records, SOURCE), declared, timedelta(seconds=10))
    return told(make_findings(detect(events), declared, PLAIN))


def bursts(*counts: int) -> list[dict[str, Any]]:
    """A burst of each size, of a user of its own."""
    return [one for count in counts for one in burst(f"user{count}", count, "12:00:01", first=1000 * count)]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (Levels(email=50, urgent=100), [("email", 50, 51), ("email", 50, 100), ("urgent", 100, 101)]),
        (Levels(email=50), [("email", 50, 51), ("email", 50, 100), ("email", 50, 101)]),
        (Levels(urgent=100), [("urgent", 100, 101)]),
    ],
)
def test_a_level_is_reached_above_its_limit_and_one_limit_is_enough(
    records: Records, levels: Levels, expected: list[tuple[str, int, int]]
) -> None:
    rows = found(records(bursts(50, 51, 100, 101)), levels=levels)
    assert sorted((row.level, row.limit, row.score) for row in rows) == expected


def test_a_finding_tells_all_of_itself(records: Records) -> None:
    (row,) = found(records(burst("ann", 60, "12:00:01") + burst("ann", 1, "12:00:09.25", first=60)))
    assert row == Finding(
        finding_id=finding_id("d", {"user_id": "ann"}, moment("12:00:00"), moment("12:00:10")),
        detector="d", version="v", entity={"user_id": "ann"}, window_start=moment("12:00:00"),
        window_end=moment("12:00:10"), level="email", score=61, limit=50, event_time_max=moment("12:00:09.25"),
    )  # fmt: skip


def test_a_burst_over_an_edge_counts_in_each_window(records: Records) -> None:
    straddling = burst("ann", 51, "12:00:09.999999") + burst("ann", 52, "12:00:10", first=51)
    assert [row.score for row in found(records(straddling))] == [51, 52]
    assert found(records(burst("ann", 50, "12:00:09.9") + burst("ann", 50, "12:00:10", first=50))) == []


def test_two_users_in_one_window_are_two_findings(records: Records) -> None:
    rows = found(records(burst("ann", 51, "12:00:01") + burst("bob", 101, "12:00:02", first=100)))
    assert [(row.entity["user_id"], row.level) for row in rows] == [("ann", "email"), ("bob", "urgent")]


def test_events_written_twice_do_not_make_a_finding(records: Records) -> None:
    assert found(records(burst("ann", 50, "12:00:01") * 3)) == []


def test_null_entities_and_scores_are_left_out_and_counted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [("ann", 60.0), (None, 70.0), (None, 1.0), ("bob", None), ("cid", float("nan")), ("dan", float("inf"))]
    window = F.struct(F.lit(moment("12:00:00")).alias("start"), F.lit(moment("12:00:10")).alias("end")).alias("window")
    scored = spark.createDataFrame(data, "user_id string, score double").select("*", window)
    seen = Observation("seen")
    monkeypatch.setattr("tocsin.detect.spark.findings.OBSERVATION", seen)
    assert [row.entity["user_id"] for row in told(make_findings(scored, SPEC, PLAIN))] == ["ann"]
    assert seen.get == {"null_entity": 2, "null_score": 3}


def test_scores_are_of_the_same_rows_whatever_the_limits_and_events_have_their_time(spark: SparkSession) -> None:
    data = [("ann", 60.0), ("eve", -2.0), (None, 70.0), ("bob", None), ("cid", float("nan")), ("dan", float("-inf"))]
    start, end = moment("12:00:00"), moment("12:00:10")
    window = F.struct(F.lit(start).alias("start"), F.lit(end).alias("end")).alias("window")
    scored = spark.createDataFrame(data, "user_id string, score double")
    every = replace(SPEC, levels=Levels(email=-sys.float_info.max))
    rows = make_scores(scored.select("*", window), every).collect()
    assert sorted((row.user_id, row.score) for row in rows) == [("ann", 60), ("eve", -2)]
    assert {(row.window_start.astimezone(UTC), row.window_end.astimezone(UTC)) for row in rows} == {(start, end)}
    single = make_scores(scored.withColumn("event_time", F.lit(end)), replace(every, window=None)).collect()
    assert {(row.window_start, row.window_end) for row in single} == {(rows[0].window_end, rows[0].window_end)}


UNUSABLE: dict[str, Callable[[], Column]] = {
    "a ratio by zero": lambda: F.sum("tries") / F.count_if(F.col("action") == "none"),
    "a remainder by zero": lambda: F.expr("sum(tries) % count_if(action = 'none')"),
    "a cast of text": lambda: F.max(F.col("action").cast("int")),
    "text compared with a number": lambda: F.max(F.expr("if(action > 5, 1, null)")),
    "no such element": lambda: F.element_at(F.collect_list("tries"), 99),
    "no such index": lambda: F.collect_list("tries")[99],
    "text that is no time": lambda: F.max(F.unix_timestamp(F.to_timestamp("action", "yyyy-MM-dd"))),
    "a time of the old parser": lambda: F.max(F.unix_timestamp(F.to_timestamp(F.lit("2026-1-1"), "yyyy-MM-dd"))),
    "no such date": lambda: F.max(F.unix_date(F.make_date(F.lit(2026), F.lit(13), F.lit(1)))),
    "a decimal that overflows": lambda: F.sum(F.lit("9" * 38).cast("decimal(38,0)")),
    "the size of nothing": lambda: F.max(F.size(F.when(F.col("action") == "none", F.array("tries")))),
}


def test_what_cannot_be_computed_is_a_null_score(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Observation("unusable")
    monkeypatch.setattr("tocsin.detect.spark.findings.OBSERVATION", seen)

    def detect(events: DataFrame) -> DataFrame:
        scored = [
            events.groupBy("window", F.lit(case).alias("user_id")).agg(score().cast("double").alias("score"))
            for case, score in UNUSABLE.items()
        ]
        return reduce(DataFrame.unionByName, scored)

    assert found(records(burst("ann", 2, "12:00:01", tries=1)), detect) == []
    assert seen.get == {"null_entity": 0, "null_score": len(UNUSABLE)}


def test_one_event_that_cannot_be_computed_stops_no_stream(spark: SparkSession, feed: Feed) -> None:
    def detect(events: DataFrame) -> DataFrame:
        return events.groupBy("window", "user_id").agg((F.sum("tries") / F.min("amount")).alias("score"))

    events = prepare_events(parse_events(feed.records, SOURCE), SPEC, timedelta(seconds=10))
    rows = make_findings(detect(events), replace(SPEC, levels=Levels(email=5)), PLAIN)
    query = rows.writeStream.format("memory").queryName("unusable").outputMode("update").start()
    try:
        for offset, (amount, user) in enumerate(((1.0, "ann"), (0.0, "bob"), (1.0, "cid"))):
            feed.send([event(user, "12:00:01", offset=offset, tries=9, amount=amount)])
            query.processAllAvailable()
    finally:
        query.stop()
    assert {row.entity["user_id"] for row in told(spark.table("unusable"))} == {"ann", "cid"}


ODD = [
    "", " ", "ann", 'say "no"', "back\\slash", "a/b", "tab\tnew\nline\r", "bell\x07\x1b\x00", "del\x7f", "é ü ß",
    "日本", "😀", "\u2028\u2029", "</script>", "a|b", "x" * 300,
]  # fmt: skip


def test_identity_is_the_one_that_python_computes(records: Records) -> None:
    events = [one for number, user in enumerate(ODD) for one in burst(user, 51, "12:00:01", first=number * 100)]
    rows = found(records(events))
    assert sorted(row.entity["user_id"] for row in rows) == sorted(ODD)
    for row in rows:
        assert row.finding_id == finding_id("d", row.entity, row.window_start, row.window_end)


def test_identity_of_several_entity_columns_and_types(records: Records) -> None:
    def detect(events: DataFrame) -> DataFrame:
        return events.groupBy("window", "user_id", "tries", "amount").agg(F.count("*").alias("score"))

    events = burst("ann", 51, "12:00:01", tries=3, amount=1.5)
    (row,) = found(records(events), detect, entity=("user_id", "tries", "amount"))
    assert row.entity == {"user_id": "ann", "tries": "3", "amount": "1.5"}
    assert row.finding_id == finding_id("d", row.entity, row.window_start, row.window_end)


def test_further_columns_become_context_and_evidence_is_cut(records: Records) -> None:
    def detect(events: DataFrame) -> DataFrame:
        return events.groupBy("window", "user_id").agg(
            F.count("*").alias("score"), F.collect_list("ip_address").alias("evidence"),
            F.max("timestamp").alias("last"), F.lit(None).cast("string").alias("nothing"), F.lit(1.5).alias("ratio"),
            F.max(F.lit(3) / 1.5),
        )  # fmt: skip

    source = SOURCE.model_copy(update={"columns": SOURCE.columns | {"ip_address": "string"}})
    events = prepare_events(parse_events(records(burst("ann", 60, "12:00:01")), source), SPEC, timedelta(seconds=10))
    (row,) = told(make_findings(detect(events), SPEC, PLAIN))
    assert row.evidence == ["192.0.2.1"] * 10
    assert row.context == {"last": "2026-01-01T12:00:01.000000Z", "ratio": 1.5, "max((3 / 1.5))": 2.0}
    assert row.event_time_max is None


LONG = "\x01" * 180_000


def test_what_senders_make_long_is_bounded_and_said(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes of JSON, which writes a control character as six: 180,000 of them are within a source's max_bytes."""

    def detect(events: DataFrame) -> DataFrame:
        sample = F.struct("ip_address", "user_id")
        return events.groupBy("window", "user_id").agg(
            F.count("*").alias("score"), F.collect_list(sample).alias("evidence"), F.max("user_id").alias("last"),
            F.collect_set("user_id").alias("users"), F.max(F.length("user_id")).alias("length"),
        )  # fmt: skip

    users = {"x" * TEXT_BYTES: False, "é" * 255: False, LONG + "a": True, LONG + "b": True, "日" * 171: True}
    # Eleven events of 1 MB for each long user: more than the evidence of a finding, and far below the JVM's heap.
    spec = replace(SPEC, levels=Levels(email=10))
    rows = [one for n, user in enumerate(users) for one in burst(user, 11, "12:00:01", first=n * 100)]
    source = SOURCE.model_copy(update={"columns": SOURCE.columns | {"ip_address": "string"}})
    frame = spark.createDataFrame([(json.dumps(one),) for one in rows], "value string")
    events = prepare_events(parse_events(frame, source), spec, timedelta(seconds=10))
    seen = Observation("seen_written")
    monkeypatch.setattr("tocsin.detect.spark.findings.WRITTEN", seen)
    monkeypatch.setattr("tocsin.detect.spark.findings.FINDING_BYTES", 15_000)
    records = make_findings(detect(events), spec, PLAIN).collect()
    assert seen.get == {"too_long": 0}
    assert max(len(row.value.encode()) for row in records) < 20_000
    by_entity = {one.entity["user_id"]: one for one in (Finding.model_validate_json(row.value) for row in records)}
    assert by_entity.keys() == {shortened(user) for user in users}
    for user, long in users.items():
        one = by_entity[shortened(user)]
        assert one.finding_id == finding_id("d", {"user_id": user}, one.window_start, one.window_end)
        assert (one.context["last"], one.context["length"]) == (shortened(user), len(user))
        cut = len(user) > 100_000
        assert one.context.get("cut_for_length") == (["evidence", "users"] if cut else None)
        assert (len(one.evidence), "users" in one.context) == ((0, False) if cut else (10, True))
        assert (shortened(user) != user) == long


def test_a_finding_that_is_too_long_all_the_same_is_left_out_and_counted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = F.struct(F.lit(moment("12:00:00")).alias("start"), F.lit(moment("12:00:10")).alias("end")).alias("window")
    columns = [f"c{number}" for number in range(5)]  # each is within its bounds
    rows = [("ann", 60.0, *["\x01" * 500] * 5), ("bob", 70.0, *["\x01"] * 5)]
    scored = spark.createDataFrame(rows, ["user_id", "score", *columns]).select("*", window)
    seen = Observation("seen_too_long")
    monkeypatch.setattr("tocsin.detect.spark.findings.WRITTEN", seen)
    monkeypatch.setattr("tocsin.detect.spark.findings.FINDING_BYTES", 15_000)
    assert [row.entity["user_id"] for row in told(make_findings(scored, SPEC, PLAIN))] == ["bob"]
    assert seen.get == {"too_long": 1}


def test_single_events_are_told_apart_by_their_identity(records: Records) -> None:
    def detect(events: DataFrame) -> DataFrame:
        return events.withColumn("score", F.col("tries") * 10)

    events = [event("ann", "12:00:01", offset=7, tries=6), event("ann", "12:00:01", offset=8, tries=20)]
    rows = sorted(found(records(events), detect, window=None), key=lambda row: row.discriminator)
    assert [(row.discriminator, row.level) for row in rows] == [
        ("raw.logins/0/7", "email"),
        ("raw.logins/0/8", "urgent"),
    ]
    for row in rows:
        assert row.finding_id == finding_id("d", {"user_id": "ann"}, None, None, row.discriminator)
        assert row.event_time_max == moment("12:00:01")
        assert "action" in row.context
        assert row.context.keys().isdisjoint({"raw_topic", "event_time", "score", "source"})


def ladder(spark: SparkSession, highest: int) -> list[tuple[int, bool]]:
    window = F.struct(F.lit(moment("12:00:00")).alias("start"), F.lit(moment("12:00:10")).alias("end")).alias("window")
    scored = spark.range(0, highest + 1).select(F.lit("ann").alias("user_id"), F.col("id").alias("score"), window)
    rows = told(make_findings(scored, SPEC, Emission(ladder=True)))
    return sorted((int(row.score), row.at_least) for row in rows)


def test_the_ladder_tells_each_value_up_to_the_highest_limit_then_each_tenth(spark: SparkSession) -> None:
    rows = ladder(spark, 300)
    assert rows[:50] == [(score, False) for score in range(51, 101)]
    assert rows[50:] == [(rung, True) for rung in (101, 111, 122, 134, 147, 161, 177, 194, 213, 234, 257, 282)]


@pytest.mark.parametrize(("since", "first"), [("12:00:00", "12:00:00"), ("12:00:00.000001", "12:00:10")])
def test_windows_that_were_not_read_whole_are_not_published(
    records: Records, monkeypatch: pytest.MonkeyPatch, since: str, first: str
) -> None:
    """Neither by the ladder nor as the range of what is read again for exact scores."""
    seen = Observation(f"published since {since}")
    monkeypatch.setattr("tocsin.detect.spark.findings.OBSERVATION", seen)
    events = burst("ann", 101, "12:00:01") + burst("ann", 101, "12:00:10", first=200)
    scored = count_by_user(prepare_events(parse_events(records(events), SOURCE), SPEC, timedelta(seconds=10)))
    rows = told(make_findings(scored, SPEC, Emission(ladder=True, publish_from=moment(since))))
    assert rows[0].window_start == moment(first)
    assert rows[-1].window_start == moment("12:00:10")
    assert seen.get["above_start"] == moment(first).timestamp() * 1e6


def test_windows_that_share_time_with_a_gap_are_not_published(records: Records) -> None:
    events = [one for n, at in enumerate(("12:00:05", "12:00:15", "12:00:25", "12:00:35"))
              for one in burst("ann", 60, at, first=100 * n)]  # fmt: skip
    scored = count_by_user(prepare_events(parse_events(records(events), SOURCE), SPEC, timedelta(seconds=10)))
    gap = moment("12:00:19"), moment("12:00:20.000001")
    rows = told(make_findings(scored, SPEC, Emission(incomplete=(gap,))))
    assert sorted(row.window_start for row in rows if row.window_start) == [moment("12:00:00"), moment("12:00:30")]


def test_a_finding_is_flat_json_without_nulls(records: Records) -> None:
    events = prepare_events(parse_events(records(burst("ann", 60, "12:00:01")), SOURCE), SPEC, timedelta(seconds=10))
    (row,) = make_findings(count_by_user(events), SPEC, Emission(run_id="r1")).collect()
    value = json.loads(row.value)
    assert value["window_start"] == "2026-01-01T12:00:00.000000Z"
    assert value["run_id"] == "r1"
    assert None not in value.values()
