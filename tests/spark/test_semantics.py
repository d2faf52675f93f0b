"""The verdict on a record does not depend on how Spark evaluates by default (ADR 0016)."""

import json

import pytest
from pyspark.sql import SparkSession

from tests.spark.raw_records import BAD, GOOD_ONES, LOGINS, TIMES, TYPED, Out, as_json, reading, source


@pytest.mark.long
def test_verdicts_are_the_same_under_strict_semantics(spark: SparkSession) -> None:
    read = reading(spark)
    typed = [as_json(**fields) for fields, _ in TYPED.values()]
    timed = [(form, kind, json.dumps({"visitor": "v", "at": value})) for form, kind, value, _ in TIMES]

    def all_of_them() -> list[Out]:
        found = read(LOGINS, *[value for value, _ in BAD.values()], *[value for value, _ in GOOD_ONES.values()])
        found += read(source(), *typed)
        for form, kind, text in timed:
            columns = {"visitor": "string", "at": kind}
            found += read(source(columns=columns, optional=frozenset(), event_time_format=form), text)
        return found

    shipped = all_of_them()
    spark.conf.set("spark.sql.ansi.enabled", "true")
    try:
        assert all_of_them() == shipped
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "false")
