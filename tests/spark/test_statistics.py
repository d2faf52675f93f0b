"""The columns of `tocsin.stats.spark` equal the functions of `tocsin.stats`."""

import math
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tocsin import stats
from tocsin.stats import spark as columns


def test_columns_equal_the_functions(spark: SparkSession) -> None:
    time, zone = datetime(2026, 3, 29, 22, 30, tzinfo=UTC), "Europe/Berlin"
    values = [5.0, -5.0, 1e300, None, math.nan, math.inf]
    texts = ["kq3v9z00", "aaa", ""]
    schema = "x double, text string, time timestamp"
    rows = [(value, texts[number % 3], time) for number, value in enumerate(values)]
    found = spark.createDataFrame(rows, schema).selectExpr("*", "2d AS middle", "0.5d AS mad", "0d AS none").select(
        columns.hour_of_week("time"),
        columns.hour_of_week("time", zone),
        columns.robust_z("x", "middle", "mad", least=0.1),
        columns.robust_z("x", "middle", "none", least=0.1),
        columns.entropy(F.split("text", "")),
    ).collect()  # fmt: skip
    assert {tuple(row[:2]) for row in found} == {
        (stats.hour_of_week(time), stats.hour_of_week(time.astimezone(ZoneInfo(zone))))
    }
    for column, mad in ((2, 0.5), (3, 0.0)):
        assert [row[column] for row in found] == [
            pytest.approx(stats.robust_z(value, 2, mad, least=0.1)) if abs(value or math.inf) < math.inf else None
            for value in values
        ]
    assert [row[4] for row in found[:3]] == pytest.approx([stats.entropy(text) for text in texts])
