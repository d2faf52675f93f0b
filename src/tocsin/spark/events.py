"""Events as a detector receives them: the same function for a stream and for history."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin.detector import DetectorSpec
from tocsin.durations import spark_interval
from tocsin.source import Source

IDENTITY = ("raw_topic", "raw_partition", "raw_offset")
"""What makes an event the same event, however often it was written."""

_ENVELOPE = {
    "raw_topic": "string",
    "raw_partition": "int",
    "raw_offset": "bigint",
    "event_time": "timestamp",
    "ingested_at": "timestamp",
    "source": "string",
    "schema_version": "int",
}


def event_schema(source: Source) -> str:
    """Schema, as DDL, of one event record of `source`, and of a tick."""
    columns = _ENVELOPE | source.columns | {"tick": "boolean"}
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def parse_events(records: DataFrame, source: Source) -> DataFrame:
    """Records of the events topic (column `value`, binary or text) as envelope and declared columns, and `tick`."""
    parsed = F.from_json(F.col("value").cast("string"), event_schema(source))
    return records.select(parsed.alias("event")).select("event.*")


def prepared(events: DataFrame, spec: DetectorSpec, delay: timedelta) -> DataFrame:
    """`events` (see `parse_events`) as `detect` of `spec` receives them.

    With a window: the watermark stands `delay` behind the latest event or tick, events that were written twice are
    there once, and `window` says which window an event belongs to (one row for each if they overlap). Without: as
    they are. Rows without an event time are left out. On a static DataFrame there is no watermark; the rest is the
    same.
    """
    timed = events
    if events.isStreaming and spec.window is not None:
        timed = events.withWatermark("event_time", spark_interval(delay))
    # Ticks move the watermark, so they go after it. The predicate has to name event_time: Spark pushes any other below
    # the watermark, which then stands still while nothing but ticks arrives.
    timed = timed.where(F.col("tick").isNull() | F.col("event_time").isNull())
    timed = timed.where(F.col("event_time").isNotNull())
    if spec.window is not None:
        timed = timed.dropDuplicates([*IDENTITY, "event_time"])
        slide = None if spec.slide is None else spark_interval(spec.slide)
        timed = timed.withColumn("window", F.window("event_time", spark_interval(spec.window), slide))
    return timed.drop("tick")
