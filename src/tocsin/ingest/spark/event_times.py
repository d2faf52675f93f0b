"""Read texts as moments, in Spark expressions alone: with or without a zone, with or without a year."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.durations import spark_interval
from tocsin.declare.model.source import APPENDED, EPOCHS, SYSLOG, Source
from tocsin.ingest.parsing_rules import BATCH_HEADER, BATCH_PLACE, INGESTED_AT_HEADER, ORIGIN_HEADER, REPLAYS_HEADER
from tocsin.ingest.time_patterns import WEEKDAYS, spark_form

_FORMS = {SYSLOG: "MMM [ ]d HH:mm:ss"}
_MICROSECONDS = dict(zip(EPOCHS, map(Decimal, ("1000000", "1000", "1", "0.001")), strict=True))
_WEEKDAY = rf"^(?i:{'|'.join(WEEKDAYS)})[A-Za-z]*[^A-Za-z0-9]*"
_SHORT_COUNTS = (
    (r"^(.*?\d{1,2}:\d{1,2}:\d{1,2}:)(\d\d)(?![\d:])", "$10$2"),
    (r"^(.*?\d{1,2}:\d{1,2}:\d{1,2}:)(\d)(?![\d:])", "$100$2"),
)
"""Counts of milliseconds with fewer than three digits, and what they become; Java takes `$10` for `$1` and a 0."""
_LEAP_YEAR = "2000"
_HAS_ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)$"
_MOST_AHEAD = "INTERVAL 1 DAY"
_NEXT_DAY = "INTERVAL 1 DAY"
"""So long after a local time that occurs twice the clock has been set back: by an hour, or a half or two somewhere."""


def add_event_time(fields: DataFrame, source: Source) -> DataFrame:
    """Add `event_time`, read from the text in `t_<column>`; null where that cannot be read.

    The append time decides about a time without a year, or in an hour that occurs twice.
    """
    if source.event_time == APPENDED:
        return fields.withColumn("event_time", F.col("ingested_at"))
    text, form = _for_spark(F.col(f"t_{source.event_time}"), source)
    if source.lacks_year:
        form = f"yyyy {_FORMS.get(form, form)}"
        written = F.try_to_timestamp(F.concat(F.lit(f"{_LEAP_YEAR} "), text), F.lit(form))
        return fields.withColumn("written_time", written).withColumn("event_time", _with_year(source))
    moment = read_time(text, form)
    if source.time_zone != "UTC":
        fields, moment = fields.withColumn("written_time", moment), _in_zone(F.col("written_time"), source)
        if form == "iso8601":
            moment = F.when(text.rlike(_HAS_ZONE), F.col("written_time")).otherwise(moment)
    return fields.withColumn("event_time", moment)


def read_time(text: Column, form: str) -> Column:
    """Read `text` as a moment; a time without a zone is UTC."""
    if form == "iso8601":
        return F.when(text.rlike(ISO8601), text.try_cast("timestamp"))
    if form in EPOCHS:
        number = F.try_multiply(text.try_cast("decimal(28,9)"), F.lit(_MICROSECONDS[form])).try_cast("bigint")
        return F.timestamp_micros(number)
    return F.try_to_timestamp(text, F.lit(form))


def _for_spark(text: Column, source: Source) -> tuple[Column, str]:
    """Change `text` to what Spark reads by the pattern that is returned; see `tocsin.ingest.time_patterns`."""
    if source.event_time_format in ("iso8601", SYSLOG, *EPOCHS):
        return text, source.event_time_format
    spark = spark_form(source.event_time_format)
    if spark.has_weekday:
        text = F.regexp_replace(text, _WEEKDAY, "")
    for short, padded in _SHORT_COUNTS if spark.counts else ():
        text = F.regexp_replace(text, short, padded)
    if spark.has_zone_name:
        name = F.regexp_extract(text, rf"(?<![A-Za-z])({'|'.join(map(re.escape, source.zone_offsets))})(?![A-Za-z])", 1)
        text = reduce(
            lambda value, zone: F.when(name == zone[0], F.replace(text, name, F.lit(zone[1]))).otherwise(value),
            source.zone_offsets.items(),
            F.lit(None).cast("string"),
        )
    return text, spark.form


def _with_year(source: Source) -> Column:
    """Give `written_time` the latest year with which it is not a day ahead: the next, this or the last.

    A clock that is fast by less, or of another zone, shows as one: its events are ahead of their append time.
    """
    written, now = F.col("written_time"), F.from_utc_timestamp("ingested_at", source.time_zone)
    parts = [F.date_part(F.lit(part), written) for part in ("MONTH", "DAY", "HOUR", "MINUTE", "SECOND")]
    years = (F.year(now) + more for more in (1, 0, -1))
    moments = [_in_zone(F.try_make_timestamp(year, *parts), source) for year in years]
    latest = F.col("ingested_at") + F.expr(_MOST_AHEAD)
    return F.coalesce(*[F.when(moment <= latest, moment) for moment in moments])


def _in_zone(local: Column, source: Source) -> Column:
    """Turn a local time of the source's zone into the moment; of the two in autumn, the later that is not ahead."""
    if source.time_zone == "UTC":
        return local
    first = F.to_utc_timestamp(local, source.time_zone)
    next_day = first + F.expr(_NEXT_DAY)
    again = local - (F.from_utc_timestamp(next_day, source.time_zone) - next_day)
    latest = F.col("ingested_at") + F.expr(f"INTERVAL {spark_interval(source.max_ahead)}")
    is_again = (F.from_utc_timestamp(again, source.time_zone) == local) & (again <= latest)
    return F.when(is_again, again).otherwise(first)


ISO8601 = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}(:?\d{2})?)?$"


def placed(records: DataFrame) -> DataFrame:
    """Add identity, append time and number of replays; `replay_ok` is null for a record that is no replay."""
    origin, ingested, replays = (_header(name) for name in (ORIGIN_HEADER, INGESTED_AT_HEADER, REPLAYS_HEADER))
    read = records.withColumns({"h_origin": origin, "h_ingested": ingested, "h_replays": replays})
    batch = _header(BATCH_HEADER)
    of_batch = batch.rlike(BATCH_PLACE)
    read = read.withColumns(
        {
            "batch": F.when(of_batch, F.split_part(batch, F.lit("/"), F.lit(1))),
            "batch_index": F.when(of_batch, F.split_part(batch, F.lit("/"), F.lit(2)).try_cast("bigint")),
            "h_partition": F.split_part("h_origin", F.lit("/"), F.lit(2)).try_cast("int"),
            "h_offset": F.split_part("h_origin", F.lit("/"), F.lit(3)).try_cast("bigint"),
            "h_at": F.when(F.col("h_ingested").rlike(ISO8601), F.col("h_ingested").try_cast("timestamp")),
            "h_count": F.col("h_replays").try_cast("int"),
        }
    )
    is_replay = F.col("h_origin").isNotNull() | F.col("h_ingested").isNotNull() | F.col("h_replays").isNotNull()
    good = (
        F.col("h_origin").rlike(r"^[^/]+/\d{1,9}/\d{1,18}$")
        & (F.split_part("h_origin", F.lit("/"), F.lit(1)) == F.col("topic"))
        # A replay goes to the partition of its original. Whoever could claim a record that is still to come would have
        # it dropped as a repetition.
        & (F.col("h_partition") == F.col("partition"))
        & (F.col("h_offset") < F.col("offset"))
        & (F.col("h_at") <= F.col("timestamp"))
        & (F.col("h_count") >= 1)
    )
    read = read.withColumn("replay_ok", F.when(is_replay, F.coalesce(good, F.lit(False))))
    replayed = F.coalesce("replay_ok", F.lit(False))
    return read.withColumns(
        {
            "raw_topic": F.col("topic"),
            "raw_partition": F.when(replayed, F.col("h_partition")).otherwise(F.col("partition")),
            "raw_offset": F.when(replayed, F.col("h_offset")).otherwise(F.col("offset")),
            "ingested_at": F.when(replayed, F.col("h_at")).otherwise(F.col("timestamp")),
            "replays": F.when(replayed, F.col("h_count")).otherwise(F.lit(0)),
        }
    )


def _header(name: str) -> Column:
    place = F.array_position(F.col("headers.key"), name).cast("int") - 1
    return F.when(F.col("headers").isNotNull(), F.get(F.col("headers.value"), place).cast("string"))
