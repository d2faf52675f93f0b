"""Mode, kind of score, exchanges and fingerprint of many detectors, read off plans that Spark has analysed."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from tests.spark.plans import SPEC, Detect, plan_of
from tocsin.declare.model.detector import Levels, ScoreKind
from tocsin.declare.model.errors import ConfigError
from tocsin.detect.spark.plan import StreamOnly, check_range
from tocsin.spark.query.work import MICRO_BATCH, REAL_TIME


def by_user(*aggregates: Any) -> Detect:
    return lambda events: events.groupBy("window", "user_id").agg(*aggregates)


def score(column: Any) -> Detect:
    return by_user(column.alias("score"))


def failed() -> Column:
    return F.col("action") == "login failed"


# Each makes its detector when called: expressions need a session.
RISING: dict[str, tuple[Callable[[], Detect], bool]] = {
    "count": (lambda: score(F.count("*")), True),
    "count of a column": (lambda: score(F.count("action")), True),
    "count_if": (lambda: score(F.count_if(failed())), True),
    "sum of 0 and 1": (lambda: score(F.sum(F.when(failed(), 1).otherwise(0))), True),
    "sum of a boolean": (lambda: score(F.sum(failed().cast("int"))), True),
    "count as a double": (lambda: score(F.count("*").cast("double")), True),
    "count, renamed later": (
        lambda: lambda e: by_user(F.count("*").alias("n"))(e).withColumnRenamed("n", "score"),
        True,
    ),
    "count, projected later": (
        lambda: lambda e: by_user(F.count("*").alias("n"))(e).withColumn("score", F.col("n")),
        True,
    ),
    "twice the sum of lengths": (lambda: score(F.sum(F.length("action"))), False),
    "sum of a magnitude": (lambda: score(F.sum(F.abs("amount"))), False),
    "max": (lambda: score(F.max("amount")), False),
    "distinct count": (lambda: score(F.approx_count_distinct("action")), False),
    "size of a set": (lambda: score(F.size(F.collect_set("action"))), False),
    "two counts": (lambda: score(F.count("*") + F.count("action")), False),
    "count after a filter": (lambda: lambda e: score(F.count("*"))(e.where(failed())), True),
}
FINAL: dict[str, Callable[[], Detect]] = {
    "average": lambda: score(F.avg("amount")),
    "percentile": lambda: score(F.percentile_approx("amount", 0.95)),
    "median": lambda: score(F.median("amount")),
    "standard deviation": lambda: score(F.stddev("amount")),
    "ratio": lambda: score(F.count_if(failed()) / F.count("*")),
    "fewer than": lambda: score(F.lit(100) - F.count("*")),
    "negative": lambda: score(-F.count("*")),
    "min": lambda: score(F.min("amount")),
    "ratio, later": lambda: lambda e: by_user(F.count_if(failed()).alias("a"), F.count("*").alias("b"))(e).withColumn(
        "score", F.col("a") / F.col("b")
    ),
}  # fmt: skip
UNKNOWN: dict[str, Callable[[], Detect]] = {
    "sum of any number": lambda: score(F.sum("amount")),
    "sum of a difference": lambda: score(F.sum(F.col("tries") - 1)),
    "python over an aggregate": lambda: score(F.udf(lambda n: n * 1.0, "double")(F.count("*"))),
    "an aggregate we do not know": lambda: score(F.regr_slope("amount", "tries")),
}


@pytest.mark.parametrize("name", RISING)
def test_rising_scores_run_in_real_time(spark: SparkSession, name: str) -> None:
    make, counts = RISING[name]
    plan = plan_of(spark, make())
    assert (plan.score.kind, plan.score.counts) == (ScoreKind.RISING, counts)
    assert (plan.mode, plan.output, plan.exchanges) == (REAL_TIME, "update", 2)


@pytest.mark.parametrize("name", FINAL)
def test_final_scores_wait_for_their_window(spark: SparkSession, name: str) -> None:
    plan = plan_of(spark, FINAL[name]())
    assert plan.score.kind is ScoreKind.FINAL
    assert (plan.mode, plan.output) == (MICRO_BATCH, "append")
    assert plan.reason.startswith("the score is final")
    cost = "5 seconds and about 2 seconds after the end of the window"
    assert plan.latency(timedelta(seconds=5), "100 ms", "the end of the window") == cost


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_score_of_unknown_kind_is_refused_unless_declared(spark: SparkSession, name: str) -> None:
    with pytest.raises(ConfigError, match=r"detectors/d\.py: score: is neither rising nor final"):
        plan_of(spark, UNKNOWN[name]())
    assert plan_of(spark, UNKNOWN[name](), score=ScoreKind.FINAL).output == "append"
    assert plan_of(spark, UNKNOWN[name](), score=ScoreKind.RISING).output == "update"


def test_python_code_needs_micro_batches_and_says_which(spark: SparkSession) -> None:
    plan = plan_of(
        spark,
        lambda e: score(F.count("*"))(e.withColumn("user_id", F.udf(lambda text: text.upper(), "string")("user_id"))),
    )
    assert (plan.mode, plan.output) == (MICRO_BATCH, "update")
    assert "runs Python code on rows (<lambda>)" in plan.reason
    cost = "about 1 second after the event, by Python code on rows (<lambda>)"
    assert plan.latency(timedelta(seconds=5), "100 ms", "the end of the window") == cost
    twice: Any = pandas_udf(lambda values: 2 * values, "double")  # type: ignore[call-overload]
    pandas = plan_of(spark, lambda e: score(F.count("*"))(e.withColumn("amount", twice("amount"))))
    assert (pandas.mode, pandas.score.kind) == (MICRO_BATCH, ScoreKind.RISING)
    assert "Python" in pandas.reason


def test_a_session_window_is_known_when_it_closes(spark: SparkSession) -> None:
    def sessions(events: DataFrame) -> DataFrame:
        window = F.session_window("event_time", "5 seconds").alias("window")
        return events.drop("window").groupBy(window, "user_id").agg(F.count("*").alias("score"))

    plan = plan_of(spark, sessions)
    assert (plan.mode, plan.output) == (MICRO_BATCH, "append")
    assert plan.reason == "a session window is known only when it has closed"
    assert plan.has_sessions
    with pytest.raises(StreamOnly, match="may cross midnight"):
        check_range(plan, SPEC)
    check_range(plan_of(spark, score(F.count("*"))), SPEC)


def test_a_broadcast_join_runs_in_real_time_and_counts_as_an_exchange(spark: SparkSession) -> None:
    known = spark.createDataFrame([("ann", "sales")], "user_id string, team string")
    plan = plan_of(spark, lambda e: score(F.count("*"))(e.join(F.broadcast(known), "user_id")))
    assert (plan.mode, plan.exchanges) == (REAL_TIME, 3)
    assert plan.slots(partitions=4, shuffle_partitions=2) == 4 + 2 * 3


def test_sliding_windows_run_in_real_time(spark: SparkSession) -> None:
    plan = plan_of(spark, score(F.count("*")), slide=timedelta(seconds=5))
    assert (plan.mode, plan.score.counts) == (REAL_TIME, True)


def test_a_detector_of_single_events_is_stateless(spark: SparkSession) -> None:
    plan = plan_of(spark, lambda e: e.where(failed()).withColumn("score", F.lit(1)), window=None)
    assert (plan.mode, plan.output, plan.exchanges) == (REAL_TIME, "update", 0)
    assert plan.slots(partitions=4, shuffle_partitions=1) == 4
    with pytest.raises(ConfigError, match="window: is None, but the detector keeps state"):
        plan_of(spark, lambda e: e.dropDuplicates(["user_id"]).withColumn("score", F.lit(1)), window=None)


def test_a_large_plan_is_compiled_in_small_methods(spark: SparkSession) -> None:
    """The harm "code_generation" of tests/faults/test_engine_harms.py shows what one large method does."""
    own = spark.newSession()
    for conditions, whole in ((100, "true"), (400, "false")):
        scores = [F.when(F.length("action") == length, F.lit(0)) for length in range(conditions)]
        plan_of(own, score(F.max(F.coalesce(*scores))))
        assert own.conf.get("spark.sql.codegen.wholeStage") == whole


def test_missing_columns_are_told_all_at_once_with_the_nearest(spark: SparkSession) -> None:
    with pytest.raises(ConfigError) as told:
        plan_of(spark, lambda e: e.groupBy("window", F.col("user_id").alias("user")).agg(F.count("*").alias("scores")))
    faults = {fault.key: fault for fault in told.value.faults}
    assert faults["user_id"].what == "detect returns no column 'user_id'"
    assert faults["score"].nearest == "scores"
    assert faults["user_id"].where == "detectors/d.py"


def test_wrong_types_are_told(spark: SparkSession) -> None:
    wrong = by_user(
        F.max("action").alias("score"), F.max("action").alias("evidence"), F.max("action").alias("event_time_max")
    )
    with pytest.raises(ConfigError) as told:
        plan_of(spark, wrong)
    assert {fault.key for fault in told.value.faults} == {"score", "evidence", "event_time_max"}


def test_a_fingerprint_is_the_same_for_the_same_state(spark: SparkSession) -> None:
    detect = RISING["count after a filter"][0]()
    base = plan_of(spark, detect).fingerprint
    assert plan_of(spark, detect).fingerprint == base
    assert plan_of(spark, detect, delay=700).fingerprint == base, "a widened delay"
    assert plan_of(spark, detect, server="b:2").fingerprint == base, "an address"
    assert plan_of(spark, detect, levels=Levels(email=5)).fingerprint == base, "limits"
    assert plan_of(spark, lambda e: detect(e).where("score > 3")).fingerprint == base, "what comes after the state"


@pytest.mark.parametrize(
    "changed",
    [
        {"window": timedelta(seconds=20)},
        {"slide": timedelta(seconds=5)},
        {"detect": lambda e: score(F.count("*"))(e.where("action = 'login succeeded'"))},
        {"detect": lambda e: score(F.sum("tries"))(e.where(failed())), "score": ScoreKind.RISING},
        {
            "detect": lambda e: (
                e.where(failed()).groupBy("window", "user_id", "action").agg(F.count("*").alias("score"))
            ),
            "entity": ("user_id", "action"),
        },
        {"score": ScoreKind.FINAL},
    ],
)
def test_a_fingerprint_changes_with_what_is_in_the_state(spark: SparkSession, changed: dict[str, Any]) -> None:
    detect = RISING["count after a filter"][0]()
    other = plan_of(spark, changed.pop("detect", detect), **changed)
    assert other.fingerprint != plan_of(spark, detect).fingerprint


@pytest.mark.parametrize(
    ("setting", "value"), [("spark.sql.shuffle.partitions", "7"), ("spark.sql.ansi.enabled", "true")]
)
def test_a_fingerprint_changes_with_the_settings_that_a_checkpoint_depends_on(
    spark: SparkSession, setting: str, value: str
) -> None:
    detect = score(F.count("*"))
    base, before = plan_of(spark, detect).fingerprint, spark.conf.get(setting)
    spark.conf.set(setting, value)
    try:
        assert plan_of(spark, detect).fingerprint != base
    finally:
        spark.conf.set(setting, str(before))
    assert plan_of(spark, detect).fingerprint == base


def own(window: Callable[[], Column]) -> Detect:
    return lambda events: events.drop("window").groupBy(window(), "user_id").agg(F.count("*").alias("score"))


OWN_WINDOWS: dict[str, Callable[[], Column]] = {
    "another start": lambda: F.window("event_time", "10 seconds", startTime="3 seconds"),
    "another length": lambda: F.window("event_time", "20 seconds"),
    "a slide": lambda: F.window("event_time", "10 seconds", "5 seconds"),
    "another time": lambda: F.window("timestamp", "10 seconds"),
    "made by hand": lambda: F.struct(
        F.date_trunc("hour", "event_time").alias("start"), F.col("event_time").alias("end")
    ),
}


@pytest.mark.parametrize("name", OWN_WINDOWS)
def test_a_window_of_ones_own_is_refused(spark: SparkSession, name: str) -> None:
    with pytest.raises(ConfigError, match="is not what detect groups by"):
        plan_of(spark, own(lambda: OWN_WINDOWS[name]().alias("window")))


def test_a_part_of_a_union_with_a_window_of_its_own_is_refused(spark: SparkSession) -> None:
    def both(events: DataFrame) -> DataFrame:
        other = events.withColumn("window", F.window("event_time", "10 seconds", startTime="1 second"))
        return events.unionByName(other).groupBy("window", "user_id").agg(F.count("*").alias("score"))

    with pytest.raises(ConfigError, match="is not what detect groups by"):
        plan_of(spark, both)


@pytest.mark.parametrize(
    ("window", "declared"),
    [
        (lambda: F.window("event_time", "10 seconds"), {}),
        (lambda: F.window("event_time", "10 seconds", "5 seconds"), {"slide": timedelta(seconds=5)}),
        (lambda: F.window("event_time", "1 day"), {"window": timedelta(days=1)}),
    ],
)
def test_the_declared_window_may_be_written_out(
    spark: SparkSession, window: Callable[[], Column], declared: dict[str, Any]
) -> None:
    plan = plan_of(spark, own(lambda: window().alias("window")), **declared)
    assert plan.score.kind is ScoreKind.RISING


def test_days_of_a_time_zone_run_in_real_time_and_have_a_state_of_their_own(spark: SparkSession) -> None:
    days = [plan_of(spark, score(F.count("*")), window=timedelta(days=1), time_zone=zone)
            for zone in ("", "Europe/Berlin", "America/New_York")]  # fmt: skip
    assert {one.mode for one in days} == {REAL_TIME}
    assert len({one.fingerprint for one in days}) == 3


SCORED = "window struct<start: timestamp, end: timestamp>, user_id string, score double"


def cuts() -> dict[str, tuple[Detect, str]]:
    """Detectors that see other rows together on the stream than on history, and what they are told."""

    def mean(values: pd.Series) -> float:
        return float(values.mean())

    def whole(rows: Any) -> Any:
        return rows

    def by_window(events: DataFrame) -> Any:
        return events.groupBy("window", "user_id")

    def grouped(rows: DataFrame) -> DataFrame:
        return rows.groupBy("window").applyInPandas(whole, SCORED)

    in_pandas: Any = pandas_udf  # its stubs know no text as a type

    def both(_: Any, rows: Any, *others: Any) -> Any:
        return rows

    average = by_user(F.avg("amount").alias("n"))
    scored = by_user(F.max("amount").alias("score"))
    return {
        "groups in pandas": (lambda e: by_window(e).applyInPandas(whole, SCORED), "applyInPandas gets the"),
        "groups in Arrow": (lambda e: by_window(e).applyInArrow(whole, SCORED), "applyInArrow gets"),
        "groups, then counted": (
            lambda e: by_window(by_window(e).applyInPandas(whole, SCORED)).agg(F.count("*").alias("score")),
            "applyInPandas gets the rows of one micro-batch",
        ),
        "of aggregates, but across windows": (
            lambda e: average(e).groupBy("user_id").applyInPandas(whole, SCORED),
            "applyInPandas gets the rows of one micro-batch",
        ),
        "of aggregates and events": (
            lambda e: grouped(scored(e).unionByName(e.selectExpr("window", "user_id", "amount AS score"))),
            "applyInPandas gets the",
        ),
        "of aggregates of each moment": (
            lambda e: grouped(e.groupBy("window", "user_id", "event_time").agg(F.count("*").alias("n"))),
            "applyInPandas gets the",
        ),
        "of aggregates joined with events": (
            lambda e: grouped(average(e).join(e.select("window", "user_id"), ["window", "user_id"])),
            "applyInPandas gets the",
        ),
        "two groups": (
            lambda e: average(e).groupBy("window").cogroup(average(e).groupBy("window")).applyInPandas(both, SCORED),
            r"cogroup\(\)\.applyInPandas gets the rows of one micro-batch of each side",
        ),
        "state in pandas": (
            lambda e: by_window(e).applyInPandasWithState(both, SCORED, "n int", "append", "NoTimeout"),
            "applyInPandasWithState gets events in the order in which they come",
        ),
        "scores of a batch": (lambda e: e.mapInPandas(whole, SCORED), "mapInPandas gets one Arrow batch at a time"),
        "scores of an Arrow batch": (
            lambda e: e.mapInArrow(whole, SCORED).where("score > 1").withColumn("x", F.lit(1)),
            "mapInArrow gets one Arrow batch at a time",
        ),
        "counts of what a batch leaves": (
            lambda e: score(F.count("*"))(e.mapInPandas(whole, e.schema)),
            "mapInPandas gets one Arrow batch at a time",
        ),
        "aggregates in pandas": (score(in_pandas(mean, "double")("amount")), "no aggregates by pandas functions"),
        "the first rows": (lambda e: score(F.count("*"))(e.limit(10)), r"limit\(\) chooses among the rows"),
        "more groups than entities": (
            lambda e: e.groupBy("window", "user_id", "action").agg(F.count("*").alias("score")).where("score > 1"),
            "groups by 'action' besides the entity",
        ),
        "a score twice": (by_user(F.count("*").alias("score"), F.max("tries").alias("Score")), "as Spark ignores case"),
        "the first event within the watermark": (
            lambda e: score(F.count("*"))(e.dropDuplicatesWithinWatermark(["user_id"])), "does not run on history"
        ),
        "the first event of all time": (
            lambda e: score(F.count("*"))(e.dropDuplicates(["user_id"])), "dropDuplicates keeps the first event of all"
        ),
        "a comparison with None": (
            lambda e: score(F.count("*"))(e.where(F.col("amount") != None)), "compares with None"  # noqa: E711
        ),
        "a comparison with NULL": (score(F.count_if(F.expr("tries IN (1, NULL)"))), "compares with None"),
        "a window over rows": (
            lambda e: e.withColumn("score", F.row_number().over(Window.partitionBy("user_id").orderBy("amount"))),
            "Spark refuses its plan",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", [
    "groups in pandas", "groups in Arrow", "groups, then counted", "of aggregates, but across windows",
    "of aggregates and events", "of aggregates of each moment", "of aggregates joined with events", "two groups",
    "state in pandas", "scores of a batch", "scores of an Arrow batch", "counts of what a batch leaves",
    "aggregates in pandas", "the first rows", "more groups than entities", "the first event of all time",
    "a score twice", "the first event within the watermark",
    "a comparison with None", "a comparison with NULL", "a window over rows",
])  # fmt: skip
def test_what_cuts_groups_is_refused(spark: SparkSession, name: str) -> None:
    detect, told = cuts()[name]
    with pytest.raises(ConfigError, match=told):
        plan_of(spark, detect, score=ScoreKind.FINAL)


def test_rows_of_closed_windows_may_be_grouped_in_python(spark: SparkSession) -> None:
    def outliers(events: DataFrame) -> DataFrame:
        counted = by_user(F.count("*").alias("n"))(events)
        return counted.groupBy("window").applyInPandas(
            lambda rows: rows.assign(score=rows["n"]).drop(columns="n"), SCORED
        )

    plan = plan_of(spark, outliers, score=ScoreKind.FINAL)
    assert (plan.mode, plan.output) == (MICRO_BATCH, "append")
