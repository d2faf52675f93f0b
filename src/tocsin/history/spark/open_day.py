"""Read the current day of a source, which is not sealed yet: from Kafka, by the code that seals."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime

from pyspark.sql import DataFrame, SparkSession

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.landing_ledger import Entry
from tocsin.history.places import Places, begin
from tocsin.history.spark.landed_day import LandedDay
from tocsin.history.spark.landing import land_since
from tocsin.history.spark.sealed_days import sealed_events
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.spark.events import IDENTITY


@dataclass(frozen=True)
class OpenDay:
    """The part of the current UTC day that can be read, each of its events once.

    Attributes:
        since: windows that begin from then on are whole: the begin of the day unless Kafka has removed events.
        until: windows that end by then are closed: what a job that has read everything has as its watermark.
    """

    day: date
    since: datetime
    until: datetime
    events: DataFrame


def read_open_day(spark: SparkSession, settings: Settings, source: Source, folder: StoredPath) -> OpenDay:
    """Read the current day of `source` up to where its topic ends now, by way of files in `folder`, which tasks read.

    TransientError if Kafka cannot be reached; a retry helps. OSError if the disk is full or cannot be written.
    """
    day = datetime.now(UTC).date()
    places = Places(folder, source.name)
    entry, since = land_since(settings, source, begin(day), places, spark)
    landed = LandedDay(spark, places, source, day, [entry] if entry.of(day) else []).events()
    events = sealed_events(spark, places, source, {}) if landed is None else landed
    return OpenDay(
        day=day,
        since=max(begin(day), since or begin(day)),
        until=max(_newest(entry) - source.lateness, begin(day)),
        events=events.dropDuplicates([*IDENTITY, "event_time"]),
    )


def _newest(entry: Entry) -> datetime:
    """Find the latest event or tick; the watermark of a stream follows the latest of all partitions."""
    ticks = [span.newest_tick for span in entry.partitions.values() if span.newest_tick is not None]
    return max([*ticks, *(file.newest_event for file in entry.files)], default=EPOCH)
