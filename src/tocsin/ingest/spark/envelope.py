"""Parsed records to records of `events.<source>` and `quarantine.<source>`: one row for each, with its topic."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.names import Names
from tocsin.declare.model.sizes import EVENT_BYTES, KEPT_BYTES, KEPT_HEADERS_BYTES, KEPT_KEY_BYTES, RECORD_OVERHEAD
from tocsin.declare.model.source import Source
from tocsin.ingest.parsing_rules import BATCH, Reason, rule_parts, rules_version
from tocsin.quality.suites.row_rules import RowRule

OBSERVATION = "ingest"

_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "timeZone": "UTC"}


def observe(parsed: DataFrame, rules: Iterable[RowRule] = ()) -> DataFrame:
    """Count the figures of each batch of `parsed` (see `tocsin.ingest.spark.parse`) under OBSERVATION.

    `records`, `ignored`, `quarantined`, one per reason class (a record counts once in each of its classes),
    `unknown_fields`, `repeated_fields`, `replayed` and `latest_event_time` (of good records), and for each of `rules`
    that warns `warned_<name>`: good records that break it.
    """
    bad = F.col("reasons") != ""
    # Of a record that they do not concern they are null, so nothing is searched for in it.
    marked = parsed.withColumns({
        "of_bad": F.when(bad, F.concat(F.lit(","), "reasons")),
        "of_good": F.when(~bad, F.concat(F.lit(","), "warnings", F.lit(","))),
    })  # fmt: skip
    warnings = [
        _count(F.col("of_good").contains(f",{rule.name},")).alias(f"warned_{rule.name}") for rule in rules if rule.warns
    ]
    classes = [_count(F.col("of_bad").contains(f",{reason}")).alias(reason) for reason in Reason]
    return marked.observe(
        OBSERVATION,
        F.count(F.lit(1)).alias("records"),
        _count(F.col("ignored")).alias("ignored"),
        _count(bad).alias("quarantined"),
        *classes,
        *warnings,
        F.sum("unknown").alias("unknown_fields"),
        F.sum("repeated").alias("repeated_fields"),
        _count(F.col("replays") > 0).alias("replayed"),
        F.max(F.when(~bad, F.col("event_time"))).alias("latest_event_time"),
    )


def _count(true: Column) -> Column:
    """Count rows as `count_if` does, which names its condition twice: each batch plans that."""
    return F.count(F.when(true, F.lit(1)))


def add_event(parsed: DataFrame, source: Source) -> DataFrame:
    """Add `event`, a good record as JSON; one that is longer than its topic takes is not good any more."""
    is_good = (F.col("reasons") == "") & ~F.col("ignored")
    written = parsed.withColumn("event", F.when(is_good, _event(source)))
    is_long = ~fits(F.col("event"), key_of(source))
    return written.withColumn("reasons", F.when(is_long, F.lit(Reason.EVENT_TOO_LONG)).otherwise(F.col("reasons")))


def route(parsed: DataFrame, source: Source, names: Names, rules: Iterable[RowRule] = ()) -> DataFrame:
    """Make rows for Spark's Kafka sink, of `add_event`: `topic`, `key`, `value`, all text, none null; none if ignored.

    A good record goes to the events topic, keyed by the source's key column; a bad one to quarantine, by its origin.
    """
    good = F.col("reasons") == ""
    return parsed.where(~F.col("ignored")).select(
        F.when(good, F.lit(names.events(source.name))).otherwise(F.lit(names.quarantine(source.name))).alias("topic"),
        F.when(good, key_of(source)).otherwise(_origin_key()).alias("key"),
        F.when(good, F.col("event")).otherwise(_quarantine_value(source, rules)).alias("value"),
    )


def key_of(source: Source) -> Column:
    """Take the key of the record of an event from `columns`, the struct of the declared columns."""
    return F.col("columns").getField(source.key).cast("string")


def event_json(origin: Iterable[Column], source: Source, fields: Iterable[Column]) -> Column:
    """Write an event of `source` as JSON: its identity `origin`, which begins with `raw_topic`, times and `fields`."""
    return F.to_json(F.struct(*origin, "event_time", *_provenance(source), *fields), _TIMES)


def fits(event: Column, key: Column) -> Column:
    """Return whether the events topic takes a record of this length."""
    return F.octet_length(event) + F.octet_length(key) <= EVENT_BYTES - RECORD_OVERHEAD


def _event(source: Source) -> Column:
    fields = [F.col("columns").getField(name).alias(name) for name in source.columns]
    batch, in_batch = F.col("batch"), F.col("batch").isNotNull()
    origin = (
        F.when(in_batch, F.concat(F.lit(BATCH), batch)).otherwise(F.col("raw_topic")).alias("raw_topic"),
        F.when(in_batch, F.lit(0)).otherwise(F.col("raw_partition")).alias("raw_partition"),
        F.coalesce("batch_index", "raw_offset").alias("raw_offset"),
    )
    return event_json(origin, source, fields)


def _quarantine_value(source: Source, rules: Iterable[RowRule]) -> Column:
    parts = rule_parts(source, rules)
    # Binary columns become base64 in JSON; the function base64() would break it into lines.
    payload = F.substring("value", 1, KEPT_BYTES)
    origin = F.struct(
        F.col("raw_topic").alias("topic"),
        F.col("raw_partition").alias("partition"),
        F.col("raw_offset").alias("offset"),
        F.col("ingested_at").alias("timestamp"),
    )
    headers = F.to_json("headers")
    fields = {
        "payload": payload,
        "payload_length": F.length("value"),
        "payload_sha256": F.sha2("value", 256),
        "reasons": F.split("reasons", ","),
        "origin": origin,
        "source": F.lit(source.name),
        "schema_version": F.lit(source.schema_version),
        "rules_version": F.lit(rules_version(parts)),
        "rules": F.struct(*[F.lit(digest).alias(part) for part, digest in sorted(parts.items())]),
        "replays": F.col("replays"),
        "raw_key": F.substring("key", 1, KEPT_KEY_BYTES),
        "raw_key_length": F.length("key"),
        "raw_key_sha256": F.sha2("key", 256),
        "headers": F.when(F.octet_length(headers) <= KEPT_HEADERS_BYTES, F.col("headers")),
        "headers_count": F.when(F.col("headers").isNotNull(), F.size("headers")),
        "headers_length": F.octet_length(headers),
        "headers_sha256": F.sha2(headers, 256),
    }
    return F.to_json(F.struct(*[column.alias(name) for name, column in fields.items()]), _TIMES)


def _provenance(source: Source) -> list[Column]:
    schema_version = F.lit(source.schema_version).alias("schema_version")
    return [F.col("ingested_at"), F.lit(source.name).alias("source"), schema_version]


def _origin_key() -> Column:
    return F.concat_ws("/", "raw_topic", F.col("raw_partition").cast("string"), F.col("raw_offset").cast("string"))
