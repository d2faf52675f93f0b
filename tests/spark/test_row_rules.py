"""One rule, both sides: what the stream refuses is what the day counts is what Great Expectations finds."""

import json
import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.rig.samples.visits import VISITS, expect, write
from tests.spark.raw_records import SCHEMA as RAW
from tocsin.declare.model.names import Names
from tocsin.ingest.spark.envelope import add_event, observe, route
from tocsin.ingest.spark.parse import parsed
from tocsin.quality.judging import outcomes
from tocsin.quality.suites.expectations import KNOWN
from tocsin.quality.suites.row_rules import RowRule
from tocsin.quality.suites.suite_catalog import read_row_rules
from tocsin.quality.verdict import CheckStage

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON = "2026-11-21T12:00:30Z"
PAIR, GREATER = "column_pair_values_to_be_equal", "column_pair_values_a_to_be_greater_than_b"

RULES: dict[str, dict[str, Any]] = {
    name: expect(kind, name=name, **kwargs)  # type: ignore[arg-type]  # arguments of any type
    for name, (kind, kwargs) in {
        "not_null": ("column_values_to_not_be_null", {"column": "amount"}),
        "text_not_null": ("column_values_to_not_be_null", {"column": "page"}),
        "nothing": ("column_values_to_be_null", {"column": "page"}),
        "amount_band": ("column_values_to_be_between", {"column": "amount", "min_value": 0, "max_value": 9.5}),
        "amount_below": ("column_values_to_be_between", {"column": "amount", "max_value": 1e300, "strict_max": True}),
        "tries_above": ("column_values_to_be_between", {"column": "tries", "min_value": 3, "strict_min": True}),
        "tries_half": ("column_values_to_be_between", {"column": "tries", "min_value": 2.5}),
        "big_band": ("column_values_to_be_between", {"column": "big", "min_value": -5, "max_value": 2**40}),
        "until_noon": ("column_values_to_be_between", {"column": "until", "max_value": NOON, "strict_max": True}),
        "from_noon": ("column_values_to_be_between", {"column": "until", "min_value": "2026-11-21T13:00:30+01:00"}),
        "known_page": ("column_values_to_be_in_set", {"column": "page", "value_set": ["/", "", 'it\'s \\ "x"', "🙂"]}),
        "known_tries": ("column_values_to_be_in_set", {"column": "tries", "value_set": [3, 4]}),
        "known_amount": ("column_values_to_be_in_set", {"column": "amount", "value_set": [9.5, 10]}),
        "no_page": ("column_values_to_not_be_in_set", {"column": "page", "value_set": ["/", "x\ny"]}),
        "only_ok": ("column_values_to_be_in_set", {"column": "ok", "value_set": [True]}),
        "path": ("column_values_to_match_regex", {"column": "page", "regex": r"^/|^[^\\'a-z]*$"}),
        "no_quote": ("column_values_to_not_match_regex", {"column": "page", "regex": "['\"]"}),
        "length": ("column_value_lengths_to_be_between", {"column": "page", "min_value": 1, "max_value": 4}),
        "strict_length": (
            "column_value_lengths_to_be_between",
            {"column": "page", "max_value": 4, "strict_max": True},
        ),
        "length_one": ("column_value_lengths_to_equal", {"column": "page", "value": 1}),
        "more": (GREATER, {"column_A": "amount", "column_B": "tries"}),
        "more_or_equal": (GREATER, {"column_A": "big", "column_B": "tries", "or_equal": True}),
        "more_if_both": (
            GREATER,
            {"column_A": "amount", "column_B": "tries", "ignore_row_if": "either_value_is_missing"},
        ),
        "more_always": (GREATER, {"column_A": "amount", "column_B": "tries", "ignore_row_if": "neither"}),
        "later": (GREATER, {"column_A": "until", "column_B": "at"}),
        "same": (PAIR, {"column_A": "page", "column_B": "visitor"}),
        "same_number": (PAIR, {"column_A": "big", "column_B": "tries", "ignore_row_if": "either_value_is_missing"}),
    }.items()
}

VALUES: dict[str, list[Any]] = {
    "amount": [None, -0.1, 0.0, 3.0, 9.5, 9.50001, 10.0, 1e300, 1e308],
    "tries": [None, -1, 2, 3, 4, 2**31 - 1],
    "big": [None, -6, -5, 3, 2**40, 2**40 + 1],
    "ok": [None, True, False],
    "page": [
        None,
        "",
        "/",
        "/x\ny",
        "x\ny",
        'it\'s \\ "x"',
        "🙂",
        "🙂🙂🙂🙂",
        "ä" * 5,
        "/" + "x" * 20_000,
        "v1",
        "a'b",
    ],
    "until": [None, START, START + timedelta(seconds=30), START + timedelta(seconds=29, microseconds=999_999)],
}


def generated(count: int) -> list[dict[str, Any]]:
    dice = random.Random(11)
    return [
        {"visitor": f"v{number % 3}", "at": START + timedelta(seconds=number % 60)}
        | {name: dice.choice(values) for name, values in VALUES.items()}
        for number in range(count)
    ]


@pytest.fixture
def rules(tmp_path: Path) -> tuple[RowRule, ...]:
    write(tmp_path, "rows", *RULES.values())
    return read_row_rules(tmp_path, VISITS)


def broken_on_the_day(
    spark: SparkSession, rows: list[dict[str, Any]], rules: tuple[RowRule, ...]
) -> dict[str, list[int]]:
    schema = ", ".join(["number int", *(f"{name} {kind}" for name, kind in VISITS.columns.items())])
    day = spark.createDataFrame([(number, *row.values()) for number, row in enumerate(rows)], schema)
    seen = day.select("number", *[F.expr(rule.broken()).alias(rule.name) for rule in rules]).collect()
    return {rule.name: sorted(row["number"] for row in seen if row[rule.name]) for rule in rules}


def broken_for_gx(rows: list[dict[str, Any]], rules: tuple[RowRule, ...]) -> dict[str, int | None]:
    types = {"amount": "float64", "tries": "float64", "big": "float64", "ok": "object", "page": "object"}
    table = pd.DataFrame(rows).astype(types | dict.fromkeys(("at", "until"), "datetime64[us, UTC]"))
    found = outcomes(table, [rule.rule for rule in rules])
    assert {name: one.error for name, one in found.items() if one.error} == {}
    return {name: one.unexpected for name, one in found.items()}


def test_every_rule_for_rows_is_tried() -> None:
    possible = {name for name, known in KNOWN.items() if CheckStage.ROW in known.stages}
    assert {entry["type"] for entry in RULES.values()} == possible


def test_stream_day_and_great_expectations_agree(spark: SparkSession, rules: tuple[RowRule, ...]) -> None:
    rows = generated(250)
    texts = [json.dumps({k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items()}) for row in rows]
    raw = [(None, text.encode(), "raw.visits", 0, n, START + timedelta(hours=1), None) for n, text in enumerate(texts)]
    judged = parsed(spark.createDataFrame(raw, RAW), VISITS, rules).select("offset", "reasons").collect()
    streamed: dict[str, list[int]] = {name: [] for name in RULES}
    for row in judged:
        for reason in row.reasons.split(",") if row.reasons else ():
            assert reason.startswith("rule:"), reason
            streamed[reason.removeprefix("rule:")].append(row.offset)
    day = broken_on_the_day(spark, rows, rules)
    assert {name: sorted(numbers) for name, numbers in streamed.items()} == day
    assert {name: len(numbers) for name, numbers in day.items()} == broken_for_gx(rows, rules)
    assert all(0 < len(numbers) < len(rows) for numbers in day.values()), (
        "each rule is broken by some and kept by others"
    )


def test_numbers_that_are_none_are_missing_on_the_day_too(spark: SparkSession, rules: tuple[RowRule, ...]) -> None:
    own = tuple(rule for rule in rules if "amount" in rule.types)
    odd = [math.nan, math.inf, -math.inf, None, 5.0]
    rows = [row | {"amount": odd[number % 5]} for number, row in enumerate(generated(100))]
    day = broken_on_the_day(spark, rows, own)
    assert {name: len(numbers) for name, numbers in day.items()} == broken_for_gx(rows, own)


def test_a_rule_that_warns_lets_pass_and_counts(spark: SparkSession, tmp_path: Path) -> None:
    in_set: dict[str, Any] = {"kind": "column_values_to_be_in_set", "column": "page", "value_set": ["/"]}
    write(
        tmp_path,
        "rows",
        expect(severity="warning", name="warned", **in_set),
        expect(severity="info", name="noted", **in_set),
        expect("column_values_to_be_between", "critical", "refused", column="tries", max_value=3),
    )
    rules = read_row_rules(tmp_path, VISITS)
    records: list[dict[str, Any]] = [
        {"page": "/"},
        {"page": "x"},
        {"page": "x", "tries": 4},
        {"page": "/", "tries": 4},
        {},
    ]
    raw = [
        (None, json.dumps({"visitor": "v", "at": START.isoformat()} | one).encode(), "raw.visits", 0, n, START, None)
        for n, one in enumerate([*records, {"at": "never", "tries": 5}])
    ]
    counted = observe(add_event(parsed(spark.createDataFrame(raw, RAW), VISITS, rules), VISITS), rules)
    written = route(counted, VISITS, Names(), rules).collect()
    assert [row.topic for row in written] == [
        *["events.visits"] * 2,
        *["quarantine.visits"] * 2,
        "events.visits",
        "quarantine.visits",
    ]
    reasons = [json.loads(row.value).get("reasons") for row in written]
    assert reasons[2:4] == [["rule:refused"]] * 2
    assert reasons[5] == ["wrong_type:at", "rule:refused"], "all reasons, as ever"
    figures = _figures(counted)
    assert (figures["warned_warned"], figures["rule"], figures["quarantined"]) == (1, 3, 3)
    assert "warned_noted" not in figures


def _figures(counted: Any) -> dict[str, Any]:
    execution = counted._jdf.queryExecution()
    execution.executedPlan().executeCollect()
    row = execution.observedMetrics().apply("ingest")
    return {name: row.get(number) for number, name in enumerate(row.schema().fieldNames())}
