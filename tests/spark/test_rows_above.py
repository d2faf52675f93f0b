"""Filters above an aggregate: what the stream tells at each event, merged, is what a batch over all events tells."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import moment, told
from tests.spark.plans import SPEC, plan_of
from tocsin.declare.model.detector import Levels, ScoreKind
from tocsin.declare.model.finding import next_rung
from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.spark.query.work import REAL_TIME

LIMITED = replace(SPEC, levels=Levels(email=3, urgent=6))
SCORES = ["count(*)", "sum(abs(tries))", "max(tries)", "approx_count_distinct(action)", "avg(tries)"]
FACTS = [
    "count(*)",
    "sum(abs(tries))",
    "max(tries)",
    "size(collect_set(action))",
    "avg(tries)",
    "min(tries)",
    "last(tries)",
]
STEADY = ["user_id <> 'bob'", "window.start IS NOT NULL"]

SIGNS = [">", ">=", "<", "<=", "="]

facts = st.builds(
    lambda fact, sign, number, first: f"f{fact} {sign} {number}" if first else f"{number} {sign} f{fact}",
    st.integers(0, len(FACTS) - 1), st.sampled_from(SIGNS), st.integers(0, 9), st.booleans(),
)  # fmt: skip
conditions = st.recursive(
    facts | st.sampled_from([*STEADY, "f0 > f2", "cast(f0 AS string) > '5'"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        inner.map(lambda one: f"NOT ({one})"),
    ),
    max_leaves=3,
)
events = st.lists(
    st.tuples(st.sampled_from(["ann", "bob"]), st.integers(0, 9), st.sampled_from("xyz")), min_size=1, max_size=20
)


def detector(score: str, condition: str, entity: str = "user_id") -> Callable[[DataFrame], DataFrame]:
    def detect(rows: DataFrame) -> DataFrame:
        made = [F.expr(fact).alias(f"f{number}") for number, fact in enumerate(FACTS)]
        grouped = rows.groupBy("window", "user_id").agg(F.expr(score).alias("score"), *made)
        filtered = grouped.where(condition) if condition else grouped
        return filtered.select("window", F.expr(entity).alias("user_id"), "score")

    return detect


def after_each(spark: SparkSession, sent: list[tuple[str, int, str]]) -> DataFrame:
    """The events as they were after each of them: a window of its own stands for each moment, the last for the end."""
    rows = [
        (f"2026-01-01T12:00:{at:02d}", user, tries, action)
        for at in range(1, len(sent) + 1)
        for user, tries, action in sent[:at]
    ]
    read = spark.createDataFrame(rows, "at string, user_id string, tries int, action string").repartition(1)
    at = F.to_timestamp("at")
    return read.withColumn("window", F.struct(at.alias("start"), at.alias("end")))


def merged(rows: list[Any]) -> dict[str, tuple[float, bool]]:
    """The highest score by entity, and whether it is a lower bound: what the indexer keeps of several findings."""
    kept: dict[str, tuple[float, bool]] = {}
    for row in rows:
        kept[row.entity["user_id"]] = max(kept.get(row.entity["user_id"], (0.0, False)), (row.score, row.at_least))
    return kept


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(score=st.sampled_from(SCORES), condition=conditions, sent=events)
@example(score="count(*)", condition="f4 > 1", sent=[("ann", 4, "x")] * 4 + [("ann", 0, "x")] * 16)
@example(score="count(*)", condition="f0 > 22", sent=[("ann", 1, "x")] * 23)
@example(
    score="sum(abs(tries))", condition="f3 > 1 AND user_id <> 'bob'", sent=[("ann", 2, "x")] * 4 + [("ann", 0, "y")]
)
def test_stream_and_batch_agree(
    spark: SparkSession, score: str, condition: str, sent: list[tuple[str, int, str]]
) -> None:
    detect = detector(score, condition)
    plan = plan_of(spark, detect, levels=LIMITED.levels)
    if plan.score.kind is not ScoreKind.RISING:
        assert plan.output == "append", "told once, when the window has closed, which is what a batch does"
        return
    rows = detect(after_each(spark, sent))
    ladder = plan.score.counts and plan.mode == REAL_TIME
    streamed = merged(told(make_findings(rows, LIMITED, Emission(ladder=ladder))))
    at_the_end = rows.where(F.col("window.start") == F.lit(moment(f"12:00:{len(sent):02d}")))
    batch = merged(told(make_findings(at_the_end, LIMITED, Emission())))
    assert streamed.keys() == batch.keys()
    for user, (value, at_least) in streamed.items():
        final = batch[user][0]
        assert value <= final < next_rung(int(value)) if at_least else value == final


def test_a_filter_that_turns_false_again_waits_for_the_window(spark: SparkSession) -> None:
    for condition in ("f4 > 1", "NOT (f0 > 3)", "f0 < 9", "f0 = 4", "f0 > 3 AND f5 > 1", "cast(f0 AS string) > '5'"):
        plan = plan_of(spark, detector("count(*)", condition))
        assert (plan.score.kind, plan.output, plan.score.counts) == (ScoreKind.FINAL, "append", False), condition
        assert "a filter above the aggregate can turn false again" in plan.reason
    changing = plan_of(spark, detector("count(*)", "", entity="cast(f6 AS string)"))
    assert changing.score.kind is ScoreKind.FINAL
    assert changing.score.why == "'user_id' comes from an aggregate and can change while its window is open"


def test_a_filter_that_only_turns_true_rises_but_has_no_ladder(spark: SparkSession) -> None:
    for condition in ("f0 > 137", "3 < f2", "f3 > 20 OR f1 > 5", "user_id <> 'bob'"):
        plan = plan_of(spark, detector("count(*)", condition))
        assert (plan.score.kind, plan.mode, plan.score.counts) == (ScoreKind.RISING, REAL_TIME, False), condition
    assert plan_of(spark, detector("count(*)", "")).score.counts


@pytest.mark.parametrize(
    ("join", "kind"), [("user_id", ScoreKind.RISING), ("score", ScoreKind.FINAL), ("rows", ScoreKind.FINAL)]
)
def test_what_else_stands_above_an_aggregate(spark: SparkSession, join: str, kind: ScoreKind) -> None:
    known = F.broadcast(spark.createDataFrame([("ann", 4)], "user_id string, score bigint"))

    def detect(rows: DataFrame) -> DataFrame:
        counted = rows.groupBy("window", "user_id").agg(F.count("*").alias("score"), F.collect_set("action").alias("a"))
        if join == "rows":
            return counted.withColumn("each", F.explode("a"))
        return counted.join(known.select(join), join)

    plan = plan_of(spark, detect)
    assert (plan.score.kind, plan.score.counts) == (kind, False)


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("inner", ScoreKind.RISING),
        ("left_semi", ScoreKind.RISING),
        ("left_anti", ScoreKind.FINAL),
        ("left_outer", ScoreKind.FINAL),
    ],
)
def test_a_join_that_drops_or_changes_what_matches_waits_for_the_window(
    spark: SparkSession, how: str, kind: ScoreKind
) -> None:
    known = F.broadcast(spark.createDataFrame([(4,)], "usual bigint"))

    def detect(rows: DataFrame) -> DataFrame:
        counted = rows.groupBy("window", "user_id").agg(F.count("*").alias("score"))
        return counted.join(known, F.col("score") > F.col("usual"), how)

    plan = plan_of(spark, detect)
    assert (plan.score.kind, plan.output) == (kind, "update" if kind is ScoreKind.RISING else "append")
