"""Sealed days as Spark reads them: plain Parquet files behind an in-memory table that knows its buckets.

No connector is needed, and an aggregate by the key of the source over any number of days plans no Exchange.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from datetime import date
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.model.source import Source, columns_of
from tocsin.history.day_versions import DayVersion
from tocsin.history.places import Places
from tocsin.quality.suites.row_rules import text_literal

DAY = "tocsin_day"
"""The column of the day of which an event is, in what `events_by_day` reads."""

_NUMBERS = itertools.count(1)


def sealed_events(spark: SparkSession, places: Places, source: Source, days: Mapping[date, DayVersion]) -> DataFrame:
    """Read the events of `days`, each once: the columns of the envelope, then those that the source declares now.

    A column that a day was sealed without is null in its rows. The versions must not be removed while the result is
    used: retention leaves them for a week after they were replaced.
    """
    return events_by_day(spark, places, source, days).drop(DAY)


def events_by_day(spark: SparkSession, places: Places, source: Source, days: Mapping[date, DayVersion]) -> DataFrame:
    """Read what `sealed_events` reads, and the column `DAY` behind it; a condition on that leaves out whole days."""
    groups: dict[tuple[str, int], dict[date, DayVersion]] = {}
    for day, version in days.items():
        groups.setdefault((version.key, version.buckets), {})[day] = version
    if not groups:
        kinds = {**columns_of(source), DAY: "date"}
        return spark.createDataFrame([], ", ".join(f"`{name}` {kind}" for name, kind in kinds.items()))
    tables = [_table(spark, places, source, versions) for versions in groups.values()]
    return reduce(DataFrame.unionByName, tables)


def with_tick(events: DataFrame) -> DataFrame:
    """Add the column that marks ticks on a stream: null, for history holds none."""
    return events.withColumn("tick", F.lit(None).cast("boolean"))


def _table(spark: SparkSession, places: Places, source: Source, days: dict[date, DayVersion]) -> DataFrame:
    """Read days that were sealed alike."""
    one = next(iter(days.values()))
    name, columns = f"tocsin_history_{os.getpid()}_{next(_NUMBERS)}", columns_of(source)  # an engine shares a catalog
    declared = ", ".join(f"`{column}` {kind}" for column, kind in columns.items())
    buckets = f"CLUSTERED BY (`{one.key}`) SORTED BY (`{one.key}`, event_time) INTO {one.buckets} BUCKETS"
    # With a location of its own the table is external: dropping it would else delete the files of its partitions.
    location = f"LOCATION {text_literal(str(places.days))}"
    place = f"USING parquet PARTITIONED BY ({DAY}) {buckets if one.key in columns else ''} {location}"
    spark.sql(f"CREATE TABLE {name} ({declared}, {DAY} date) {place}")
    partitions = " ".join(
        f"PARTITION ({DAY}=DATE '{day}') LOCATION {text_literal(str(places.version(day, version.version)))}"
        for day, version in days.items()
    )
    spark.sql(f"ALTER TABLE {name} ADD {partitions}")
    return spark.table(name).select(*[F.col(f"`{column}`") for column in columns], DAY)
