"""What `check --plan` takes, a job takes: both run the file of a detector while a session is active."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import event
from tests.spark.plans import plan_of
from tocsin.declare.model.errors import ConfigError
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.query.work import MICRO_BATCH

WITH_UDF = """
from pyspark.sql import functions as F

LENGTHS = {"login failed": 3}


@F.udf("int")
def weight(action):
    return LENGTHS.get(action, 0)


def detect(events):
    return events.groupBy("window", "user_id").agg(F.max(weight("action")).alias("score"))
"""


def test_a_udf_at_the_top_of_the_file_is_planned_and_runs(
    spark: SparkSession, records: Callable[[list[dict[str, Any]]], DataFrame], tmp_path: Path
) -> None:
    path = tmp_path / "weighted.py"
    path.write_text(WITH_UDF)
    detect = DeclaredFunction(path, "detect")
    plan = plan_of(spark, detect, score="rising")
    assert (plan.mode, "runs Python code on rows (weight)" in plan.reason) == (MICRO_BATCH, True)
    values = records([event("a", "12:00:00")]).select(F.from_json(F.col("value").cast("string"), "action string, "
        "user_id string, event_time timestamp").alias("e")).select("e.*")  # fmt: skip
    rows = detect(values.withColumn("window", F.window("event_time", "10 seconds"))).collect()
    assert [row["score"] for row in rows] == [3]


@pytest.mark.parametrize("what", ["now()", "rand()", "uuid()", "unix_timestamp()"])
def test_the_clock_and_chance_in_the_text_of_a_query_are_refused(spark: SparkSession, what: str) -> None:
    def detect(events: DataFrame) -> DataFrame:
        return (
            events.where(f"cast({what} as string) > ''").groupBy("window", "user_id").agg(F.count("*").alias("score"))
        )

    with pytest.raises(ConfigError, match=r"detect: calls \w+\(\): a backfill, or an event that is read again"):
        plan_of(spark, detect)
