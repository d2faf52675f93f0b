"""Rows that a flow returns to records of the events topic that it writes."""

from __future__ import annotations

from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.durations import spark_interval
from tocsin.declare.model.flow import POSITION, FlowSpec
from tocsin.declare.model.names import Names
from tocsin.declare.model.source import Source
from tocsin.ingest.parsing_rules import EARLIEST
from tocsin.ingest.spark.envelope import event_json, fits, key_of
from tocsin.spark.events import IDENTITY

OBSERVATION = "flow"


class LeftOut(StrEnum):
    """Why a row of a flow is no event."""

    NO_IDENTITY = "no_identity"
    """It does not say which event it was made of."""
    NULL_KEY = "null_key"
    MISSING = "missing"
    """A column that is not optional is null; NaN and infinite numbers count as null."""
    NO_TIME = "no_time"
    TIME_AHEAD = "time_ahead"
    """Its event time is more than `max_ahead` of its source after the time at which the raw record came in."""
    TIME_TOO_OLD = "time_too_old"
    TOO_LONG = "too_long"
    """As a record it would be longer than the events topic takes."""


def make_events(rows: DataFrame, spec: FlowSpec, to: Source, names: Names, observation: str = OBSERVATION) -> DataFrame:
    """Make rows for Spark's Kafka sink, `topic`, `key` and `value`, of `rows` that `flow` of `spec` has returned.

    What cannot be an event of `to` is left out, and counted under `observation` by its reason.
    """
    columns = F.struct(*[_value(name, kind).alias(name) for name, kind in to.columns.items()]).alias("columns")
    placed = rows.select(_raw_topic(rows, spec), *IDENTITY[1:], "event_time", "ingested_at", columns)
    origin = [F.col(name) for name in IDENTITY]
    fields = [F.col("columns").getField(name).alias(name) for name in to.columns]
    written = placed.withColumn("value", event_json(origin, to, fields)).withColumn("key", key_of(to))
    judged = written.withColumn("reason", _reason(to))
    counts = [F.count_if(F.col("reason") == reason).alias(reason) for reason in LeftOut]
    good = judged.observe(observation, *counts).where(F.col("reason").isNull())
    return good.select(F.lit(names.events(to.name)).alias("topic"), "key", "value")


def _raw_topic(rows: DataFrame, spec: FlowSpec) -> Column:
    """Begin the identity of a row: the flow, the position among the rows of one event, and the identity of that event.

    A name holds neither colon nor slash, and a position digits alone, so no two identities are written the same way.
    """
    position = F.coalesce(F.col(POSITION).cast("string"), F.lit("")) if POSITION in rows.columns else F.lit("")
    return F.concat(F.lit(f"flow:{spec.name}/"), position, F.lit(":"), "raw_topic").alias("raw_topic")


def _value(name: str, kind: str) -> Column:
    value = F.col(f"`{name}`")
    return F.when(~F.isnan(value) & (F.abs(value) < float("inf")), value) if kind == "double" else value


def _reason(to: Source) -> Column:
    needed = [name for name in to.columns if name not in to.optional]
    is_missing = F.lit(False)
    for name in needed:
        is_missing |= F.col("columns").getField(name).isNull()
    has_identity = F.lit(True)
    for name in (*IDENTITY, "ingested_at"):
        has_identity &= F.col(name).isNotNull()
    latest = F.col("ingested_at") + F.expr(f"INTERVAL {spark_interval(to.max_ahead)}")
    return (
        F.when(~has_identity, LeftOut.NO_IDENTITY)
        .when(F.col("key").isNull(), LeftOut.NULL_KEY)
        .when(is_missing, LeftOut.MISSING)
        .when(F.col("event_time").isNull(), LeftOut.NO_TIME)
        .when(F.col("event_time") > latest, LeftOut.TIME_AHEAD)
        .when(F.col("event_time") < F.lit(EARLIEST), LeftOut.TIME_TOO_OLD)
        .when(~fits(F.col("value"), F.col("key")), LeftOut.TOO_LONG)
    )
