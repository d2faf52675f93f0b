"""Rows of a file as raw records of a source, and those that are good as events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import APPENDED, Format, Source
from tocsin.declare.settings import Settings
from tocsin.history.parquet_files import digest
from tocsin.history.places import IMPORTED, RUN_DIGITS, import_run
from tocsin.ingest.files.past_rows import FileForm, has_times
from tocsin.ingest.spark.parse import parsed
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.quality.suites.row_rules import RowRule
from tocsin.quality.suites.suite_catalog import read_row_rules

_HEADERS = "array<struct<key:string,value:binary>>"
_TOPIC, _DIGITS = "file:", 32


def rules_for_files(settings: Settings, source: Source) -> tuple[RowRule, ...]:
    """Read the rules for rows of `source`; ConfigError if they have faults, or its records hold no time."""
    if source.event_time == APPENDED:
        what = f"is {APPENDED}: all events of a file would seem to happen while it is read"
        raise ConfigError.one(f"sources/{source.name}.toml", what, key="event_time")
    return read_row_rules(settings.project, source)


def parsed_rows(
    spark: SparkSession, rows: StoredPath, now: datetime, source: Source, rules: tuple[RowRule, ...]
) -> DataFrame:
    """Parse what `stage` wrote to `rows` as records of `source`; see `tocsin.ingest.spark.parse`.

    `rows` is a file, or a folder of files, each named `staged_name`: the digest of the imported file, which with the
    number of a row makes the identity of an event. `now` stands for the append time of all rows.
    """
    records = (
        spark.read.schema("row bigint, value binary")
        .parquet(str(rows))
        .select(
            F.lit(None).cast("binary").alias("key"),
            "value",
            F.concat(F.lit(_TOPIC), F.substring("_metadata.file_name", 1, _DIGITS)).alias("topic"),
            F.lit(0).alias("partition"),
            F.col("row").alias("offset"),
            F.lit(now).alias("timestamp"),
            F.lit(None).cast(_HEADERS).alias("headers"),
        )
    )
    return parsed(records, source, rules)


def staged_name(sha256: str) -> str:
    """Name the file that `stage` writes for the file with this digest."""
    return f"{sha256}.parquet"


def file_topic(sha256: str) -> str:
    """Name the topic that stands in the identity of the events of a file."""
    return f"{_TOPIC}{sha256[:_DIGITS]}"


def run_of(topic: str, names: Mapping[str, str]) -> Column:
    """Name the run that imports the file whose topic the column `topic` holds; `names` has it by the digest."""
    again = {digest: name for digest, name in names.items() if name != import_run(digest)}
    own = [F.when(F.col(topic) == file_topic(digest), F.lit(name)) for digest, name in again.items()]
    return F.coalesce(*own, F.concat(F.lit(IMPORTED), F.substring(topic, len(_TOPIC) + 1, RUN_DIGITS)))


def good_events(read: DataFrame, source: Source) -> DataFrame:
    """Take the events of `source` out of parsed rows: their envelope and the declared columns."""
    fields = [F.col("columns").getField(name).alias(name) for name in source.columns]
    envelope = ["raw_topic", "raw_partition", "raw_offset", "event_time", "ingested_at"]
    provenance = [F.lit(source.name).alias("source"), F.lit(source.schema_version).alias("schema_version")]
    return read.where("reasons = '' AND NOT ignored").select(*envelope, *provenance, *fields)


def as_read(source: Source, form: FileForm, path: Path) -> Source:
    """Adapt the source to read rows that have become JSON objects, and times that have become ISO 8601."""
    if form is FileForm.LINES:
        return source
    own: dict[str, object] = {"formats": (Format.JSON,), "patterns": (), "ignore": ()}
    if form is FileForm.PARQUET and has_times(path, source.event_time):
        own["event_time_format"] = "iso8601"
    return source.model_copy(update=own)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file; ConfigError if it cannot be read."""
    try:
        return digest(path)
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}") from error
