"""Events as a detector receives them: the same function for a stream and for history."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.model.durations import spark_interval
from tocsin.model.source import EVENT_COLUMNS, TICK_START, Source
from tocsin.sparkjob.plan_tree import parse_tree

TICKS = "ticks"
_STRUCT = "tocsin_record"

IDENTITY = ("raw_topic", "raw_partition", "raw_offset")
"""What makes an event the same event, however often it was written."""


class Prepared(Protocol):
    """What a declaration says about the events that its function receives; see `tocsin.model.detector.DetectorSpec`."""

    @property
    def window(self) -> timedelta | None: ...  # noqa: D102 - as in the specs
    @property
    def slide(self) -> timedelta | None: ...  # noqa: D102
    @property
    def keeps_state(self) -> bool: ...  # noqa: D102


def event_columns(source: Source) -> dict[str, str]:
    """Return columns and types, as DDL, of one event record of `source`, and of a tick."""
    return EVENT_COLUMNS | source.columns | {"tick": "boolean"}


def count_ticks(records: DataFrame) -> DataFrame:
    """Count the ticks among records of the events topic by the observation `ticks`."""
    return records.observe(TICKS, F.count_if(F.col("value").cast("string").startswith(TICK_START)).alias("ticks"))


def no_records(spark: SparkSession) -> DataFrame:
    """Make a stream of the records of an events topic that can be planned, but not run: no broker is asked."""
    topic = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "events"}
    return spark.readStream.format("kafka").options(**topic).load()


def parse_events(records: DataFrame, source: Source, used: frozenset[str] | None = None) -> DataFrame:
    """Parse records of the events topic (column `value`, binary or text) into envelope, declared columns and `tick`.

    Columns that are not in `used` (see `used_columns`; None means all) are null: reading them out of the JSON would be
    in vain, and is a quarter of the work.
    """
    columns = event_columns(source)
    read = ", ".join(f"`{name}` {kind}" for name, kind in columns.items() if used is None or name in used)
    parsed = records.select(F.from_json(F.col("value").cast("string"), read).alias(_STRUCT))
    return parsed.select(
        *(
            F.col(f"{_STRUCT}.{name}") if used is None or name in used else F.lit(None).cast(kind).alias(name)
            for name, kind in columns.items()
        )
    )


def used_columns(rows: DataFrame, source: Source) -> frozenset[str]:
    """Find the columns on which `rows` depends in the end, if it was made from `parse_events` with all of them."""
    plan = rows._jdf.queryExecution().analyzed()  # a stream's own optimized plan is not to be had before it runs
    tree = parse_tree(rows.sparkSession._jsparkSession.sessionState().optimizer().execute(plan).toJSON())
    expressions = [inner for node in tree.walk() for top in node.expressions() for inner in top.walk()]
    read = [expression for expression in expressions if expression.kind == "GetStructField"]
    names = list(event_columns(source))
    if any(expression.children[0].kind == "JsonToStructs" for expression in read):
        return frozenset(names)  # the optimizer has merged the reading into what uses it, and counts otherwise
    return frozenset(names[field.fields["ordinal"]] for field in read if field.children[0].name == _STRUCT)


def prepare_events(events: DataFrame, spec: Prepared, delay: timedelta, *, once: bool = False) -> DataFrame:
    """Prepare `events` (see `parse_events`) for the function of `spec`; `once` says that there are no duplicates.

    For a query that keeps state the watermark stands `delay` behind the latest event or tick, and events that were
    written twice are there once; else they are as they are. With a window, `window` says which window an event belongs
    to (one row for each if they overlap). Rows without an event time are left out. On a static DataFrame there is no
    watermark; the rest is the same.
    """
    timed = events
    if events.isStreaming and spec.keeps_state:
        timed = events.withWatermark("event_time", spark_interval(delay))
    # Ticks move the watermark, so they go after it. The predicate has to name event_time: Spark pushes any other below
    # the watermark, which then stands still while nothing but ticks arrives.
    timed = timed.where(F.col("tick").isNull() | F.col("event_time").isNull())
    timed = timed.where(F.col("event_time").isNotNull())
    if spec.keeps_state and not once:
        timed = timed.dropDuplicates([*IDENTITY, "event_time"])
    if spec.window is not None:
        slide = None if spec.slide is None else spark_interval(spec.slide)
        timed = timed.withColumn("window", F.window("event_time", spark_interval(spec.window), slide))
    return timed.drop("tick")
