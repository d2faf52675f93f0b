"""Rows of views as records: identity, values, what is left out, and plans that are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import moment
from tests.spark.plans import SOURCE
from tocsin.declare.model.detector import Stage
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.view import ViewSpec
from tocsin.spark.events import parse_events, prepare_events
from tocsin.spark.query_plan import QueryPlan
from tocsin.views.spark.view_plan import make_rows, read_plan
from tocsin.views.stored_row import ViewRow

SPEC = ViewSpec(
    name="v", path=Path("views/v.py"), sources=("logins",), key=("user_id",), window=timedelta(seconds=10), table="v",
    owner="o@example.com", stage=Stage.LIVE, title="t", doc="t", version="v",
)  # fmt: skip
WINDOW = "window struct<start: timestamp, end: timestamp>"
TEXTS = ["", "ü", "日本 \U0001f600", 'a"b\\c/d', "\\u000b \\\\u001f", *(chr(code) for code in range(32)), "\x7f\u2028"]


def read(record: Row) -> ViewRow:
    return ViewRow.from_record(record.value.encode(), "views.v", 0, 0)


def test_the_key_of_a_record_is_the_identity_of_its_row(spark: SparkSession) -> None:
    start, end = moment("12:00:00.123457"), moment("12:00:10.123457")
    data = [(text, number, number % 2 == 0, (start, end)) for number, text in enumerate(TEXTS)]
    data += [("n", number, True, (start, end)) for number in (-1, 2**53 + 1, 2**63 - 1)]
    rows = spark.createDataFrame(data, f"`Zoë` string, b bigint, a boolean, {WINDOW}")
    for spec in (replace(SPEC, key=("Zoë", "b", "a")), replace(SPEC, key=("b", "Zoë"), window=None)):
        records = make_rows(rows, spec, "x").collect()
        assert [record.key for record in records] == [read(record).identity for record in records]
        assert [read(record).key["Zoë"] for record in records] == [one[0] for one in data]
    assert json.loads(records[0].key) == {"Zoë": "", "b": 0}


def test_a_row_tells_its_window_its_values_and_its_build(spark: SparkSession) -> None:
    nan, infinite = float("nan"), float("-inf")
    inner = ([1.5, nan], {1: infinite}, (nan, "x"), None)
    data = [("ann", (moment("12:00:00"), moment("12:00:10")), 3, nan, infinite, None, *inner)]
    nested = "d array<double>, m map<int, float>, s struct<`x.y`: double, t: string>, none struct<x: double>"
    kinds = f"user_id string, {WINDOW}, n int, `avg((a / 1.5))` double, `b``` float, c string, {nested}"
    rows = spark.createDataFrame(data, kinds)
    (record,) = make_rows(rows, SPEC, "build-1").collect()
    assert read(record) == ViewRow(
        key={"user_id": "ann"}, window_start=moment("12:00:00"), window_end=moment("12:00:10"), build="build-1",
        values={"n": 3, "avg((a / 1.5))": None, "b`": None, "c": None, "d": [1.5, None], "m": {"1": None},
                "s": {"x.y": None, "t": "x"}, "none": None},
    )  # fmt: skip


def test_rows_without_a_key_and_rows_that_are_too_long_are_counted_and_left_out(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [(None, "x"), ("a", "x"), ("k" * 1_100_000, "x"), ("b", "v" * 1_100_000), ("k" * 530_000, "")]
    rows = spark.createDataFrame(data, "user_id string, text string")
    seen = {name: Observation(f"view {name}") for name in ("OBSERVATION", "WRITTEN")}
    for name, one in seen.items():
        monkeypatch.setattr(f"tocsin.views.spark.view_plan.{name}", one)
    records = make_rows(rows, replace(SPEC, window=None), "x").collect()
    assert [record.key for record in records] == ['{"user_id":"a"}']
    assert seen["OBSERVATION"].get | seen["WRITTEN"].get == {"null_key": 1, "too_long": 3}


def test_windows_that_were_not_read_whole_are_left_out(spark: SparkSession) -> None:
    data = [("ann", (moment(f"12:00:{second}0"), moment(f"12:00:{second + 1}0")), 1) for second in range(3)]
    rows = spark.createDataFrame(data, f"user_id string, {WINDOW}, n int")
    records = make_rows(rows, SPEC, "x", publish_from=moment("12:00:10")).collect()
    assert [read(record).window_start for record in records] == [moment("12:00:10"), moment("12:00:20")]


def test_windows_that_share_time_with_a_gap_are_left_out(spark: SparkSession) -> None:
    data = [("ann", (moment(f"12:00:{second}0"), moment(f"12:00:{second + 1}0")), 1) for second in range(3)]
    rows = spark.createDataFrame(data, f"user_id string, {WINDOW}, n int")
    records = make_rows(rows, SPEC, "x", incomplete=[(moment("12:00:12"), moment("12:00:20"))]).collect()
    assert [read(record).window_start for record in records] == [moment("12:00:00"), moment("12:00:20")]


def plan_of(spark: SparkSession, function: Callable[[DataFrame], DataFrame], **changes: Any) -> QueryPlan:
    spec = replace(SPEC, **changes)
    kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "a:1").option("subscribe", "e")
    events = prepare_events(parse_events(kafka.load(), SOURCE), spec.computed, timedelta(seconds=10))
    return read_plan(function(events), spec, [SOURCE])


def counted(events: DataFrame) -> DataFrame:
    return events.groupBy("user_id").agg(F.count("*").alias("n"))


@pytest.mark.parametrize(
    ("function", "changes", "fault"),
    [
        (counted, {"key": ("user",), "window": None}, "user: view returns no column 'user'; did you mean 'user_id'"),
        (counted, {}, "window: view returns no column 'window'"),
        (lambda events: events, {"window": None}, "aggregates nothing"),
        (lambda events: counted(events).groupBy("user_id").agg(F.max("n")), {"window": None}, "only with a window"),
        (
            lambda events: events.groupBy("user_id", "amount").agg(F.count("*")),
            {"key": ("user_id", "amount"), "window": None},
            "amount: is double; a column of the key is",
        ),
        (
            lambda events: events.groupBy("user_id", F.session_window("event_time", "5 seconds")).agg(F.count("*")),
            {"window": None},
            "has a session window",
        ),
        (
            lambda events: counted(events.mapInPandas(lambda rows: rows, events.schema)),
            {"window": None},
            "view: mapInPandas gets one Arrow batch at a time",
        ),
        (lambda events: counted(events).orderBy("n"), {"window": None}, "Spark refuses its plan: "),
        (
            lambda events: events.groupBy("window", "user_id").agg(F.max_by("amount", "event_time"), F.count("*")),
            {"window": None, "keep": timedelta(minutes=1)},
            "keep: removes idle keys, and Count would begin anew",
        ),
        (
            lambda events: events.groupBy("window", "user_id").agg(F.max_by("event_time", "amount")),
            {"window": None, "keep": timedelta(minutes=1)},
            "keep: removes idle keys, and MaxBy would begin anew",
        ),
        (
            lambda events: events.groupBy("user_id", "action").agg(F.max("event_time").alias("at")),
            {"key": ("user_id", "action"), "total": ("action",), "window": None},
            "at: is timestamp; only numbers add up",
        ),
        (lambda events: counted(events).select("*", F.lit(1).alias("n")), {"window": None}, "returns 2 columns 'n'"),
        (lambda events: counted(events).select("*", F.lit(1).alias("N")), {"window": None}, "returns 2 columns 'n'"),
        (lambda events: events.groupBy("window", "user_id", "action").agg(F.sum("amount")), {}, "groups by 'action'"),
        (
            lambda events: events.groupBy(F.window("event_time", "1 hour"), "user_id").agg(F.count("*")),
            {},
            "window: is not what view groups by",
        ),
        (
            lambda events: events.groupBy(F.window("event_time", "1 hour"), "user_id").agg(F.count("*")),
            {"window": None},
            "besides the key",
        ),
        (lambda events: events.groupBy("user_id", "action").agg(F.max("amount")), {"window": None}, "besides the key"),
        (
            lambda events: events.groupBy("user_id").agg(F.count("*").alias("ctid")),
            {"window": None, "sink": "postgres"},
            r"ctid: is a name that the sink itself uses \(postgres\): give that column another name by alias",
        ),
    ],
)
def test_what_is_wrong_with_a_view_is_a_fault(
    spark: SparkSession, function: Callable[[DataFrame], DataFrame], changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        plan_of(spark, function, **changes)
