"""Make what a view returns records of its topic; the same expressions for a stream and for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType

from tocsin.declare.model.detector import Span
from tocsin.declare.model.sizes import RECORD_OVERHEAD, VIEW_BYTES
from tocsin.declare.model.view import ViewSpec
from tocsin.spark.columns import JSON_TIMES, any_null
from tocsin.spark.window_column import is_whole

OBSERVATION = "rows"
WRITTEN = "written"


def make_rows(rows: DataFrame, spec: ViewSpec, build: str, publish_from: datetime | None = None,
              incomplete: Sequence[Span] = ()) -> DataFrame:  # fmt: skip
    """Make records of `rows`, which `view` of `spec` returned: `key` (`canonical_key`), `value` (JSON of a `ViewRow`).

    Rows of windows that start before `publish_from` are left out: events before it were not read; and those of windows
    that share time with one of the spans `incomplete`, in which events are missing. Left out as well, and counted by
    the observations `rows` and `written`, are those whose key is null (`null_key`), and those that are longer than the
    topic takes (`too_long`).
    """
    spec = spec.computed
    unnamed = any_null([F.col(name) for name in spec.key])
    published = rows
    if publish_from is not None and spec.window is not None:
        published = rows.where(F.col("window.start") >= F.lit(publish_from))
    if incomplete and spec.window is not None:
        published = published.where(is_whole(incomplete))
    counted = published.observe(OBSERVATION, F.count_if(unnamed).alias("null_key")).where(~unnamed)
    options = JSON_TIMES | {"ignoreNullFields": "false"}
    written = counted.select(
        F.to_json(F.struct(*_identity(spec)), options).alias("key"),
        F.to_json(F.struct(*_document(rows, spec, build)), options).alias("value"),
    )
    fits = F.octet_length("key") + F.octet_length("value") <= VIEW_BYTES - RECORD_OVERHEAD
    return written.observe(WRITTEN, F.count_if(~fits).alias("too_long")).where(fits)


def _identity(spec: ViewSpec) -> list[Column]:
    """Give the columns of which Spark's JSON is the text of `canonical_key`."""
    columns = [F.col(name).alias(name) for name in sorted(spec.key)]
    if spec.window is not None:
        columns.append(F.unix_micros(F.col("window.start")).alias("window"))
    return columns


def _document(rows: DataFrame, spec: ViewSpec, build: str) -> list[Column]:
    used = {*spec.key, "window"} if spec.window is not None else {*spec.key}
    values = [
        _finite(field.name, field.dataType).alias(field.name) for field in rows.schema.fields if field.name not in used
    ]
    columns = [F.struct(*[F.col(name).alias(name) for name in spec.key]).alias("key")]
    if spec.window is not None:
        columns += [F.col(f"window.{edge}").alias(f"window_{edge}") for edge in ("start", "end")]
    return [*columns, F.struct(*values).alias("values"), F.lit(build).alias("build")]


def _finite(name: str, kind: DataType) -> Column:
    """Give null for a number that JSON cannot hold: as a text it would not fit a column of numbers."""
    column = F.col(name)
    if not isinstance(kind, DoubleType | FloatType):
        return column
    return F.when(~F.isnan(column) & (F.abs(column) != float("inf")), column)
