"""Find the events of one entity in a range of time: in sealed days, or in Kafka as far as it still holds them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel

from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.declare.model.sizes import shortened
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.day_status import published_days
from tocsin.history.day_versions import paths
from tocsin.history.kafka_reach import find_reach
from tocsin.history.landing_ledger import read_ledger
from tocsin.history.places import Places
from tocsin.ingest.replay.recorded import LATEST, find_range, read_range
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.storage.stored_path import StoredPath, open_stored


@dataclass(frozen=True, kw_only=True)
class EventSearch:
    """The events to find.

    Attributes:
        start, end: their times, from `start` up to, not including, `end`; UTC.
        most: so many are returned, the latest; all are counted.
        latest: an event that was written so much later than `end` need not be found.
    """

    start: datetime
    end: datetime
    entity: Mapping[str, str]
    most: int
    latest: timedelta = LATEST


class FoundEvents(BaseModel, frozen=True):
    """The events of one source that a search found.

    Attributes:
        place: "history" or "Kafka"; empty if neither could be read.
    """

    source: str
    place: str
    count: int
    events: list[dict[str, Any]]
    note: str = ""


def find_events(settings: Settings, source: Source, wanted: EventSearch) -> FoundEvents:
    """Find events in sealed days if these hold the whole range, else in Kafka; what cannot be read is in the `note`."""
    if lacking := lacking_columns(source, wanted.entity):
        return FoundEvents(source=source.name, place="", count=0, events=[], note=lacking)
    try:
        sealed = _sealed_files(settings, source, wanted)
        if sealed is not None:
            return _collect(source, "history", _in_files(sealed, wanted), wanted)
        return _in_kafka(settings, source, wanted)
    except (TocsinError, OSError) as error:
        return FoundEvents(source=source.name, place="", count=0, events=[], note=str(error))


def lacking_columns(source: Source, entity: Mapping[str, str]) -> str:
    """Say why events about `entity` cannot be told apart in `source`; empty if they can."""
    lacking = [name for name in entity if name not in source.columns]
    return f"not looked for: {source.name} has no column {' and '.join(lacking)}, the detector computes it" * bool(
        lacking
    )


def _sealed_files(settings: Settings, source: Source, wanted: EventSearch) -> list[StoredPath] | None:
    """List the files of the days of the range; None if one of them is not published."""
    last = (wanted.end - timedelta(microseconds=1)).date()
    count = (last - wanted.start.date()).days + 1
    days = [wanted.start.date() + timedelta(days=number) for number in range(count)]
    versions = published_days(settings, source)
    if not versions.keys() >= set(days):
        return None
    places = Places.of(settings, source.name)
    return [path for day in days for path in paths(places, day, versions[day])]


def _in_files(files: list[StoredPath], wanted: EventSearch) -> Iterator[dict[str, Any]]:
    from pyarrow import ArrowException, compute, parquet

    time = compute.field("event_time")
    within = (time >= wanted.start) & (time < wanted.end)
    for path in files:
        try:
            with open_stored(path) as file:
                rows = parquet.read_table(file, filters=within, partitioning=None)
        except ArrowException as error:
            what = f"cannot be read ({str(error).splitlines()[0]}); run `tocsin history verify`"
            raise ConfigError.one(str(path), what) from error
        for batch in rows.to_batches():
            yield from batch.to_pylist()


def _in_kafka(settings: Settings, source: Source, wanted: EventSearch) -> FoundEvents:
    with TopicReader(settings, "explain", settings.names.events(source.name)) as topic:
        since = find_reach(topic, source, read_ledger(Places.of(settings, source.name))).since
        note = ""
        if since is not None and since > wanted.start:
            mark = f"{since:%Y-%m-%d %H:%M:%S} UTC"
            note = f"not in history, and Kafka surely holds all events only from {mark} on"
        part = find_range(topic, source, wanted.start, wanted.end, wanted.latest)
        rows = (event.values | {"event_time": event.time} for event in read_range(topic, part, part.starts))
        return _collect(source, "Kafka", rows, wanted, note)


def _collect(
    source: Source, place: str, rows: Iterator[dict[str, Any]], wanted: EventSearch, note: str = ""
) -> FoundEvents:
    latest: list[tuple[datetime, int, dict[str, Any]]] = []
    count = 0
    for count, row in enumerate((row for row in rows if is_about(row, wanted.entity)), start=1):
        heapq.heappush(latest, (row["event_time"], count, row))
        if count > wanted.most:
            heapq.heappop(latest)
    events = [{name: value for name, value in row.items() if value is not None} for _, _, row in sorted(latest)]
    return FoundEvents(source=source.name, place=place, count=count, events=events, note=note)


def is_about(row: Mapping[str, Any], entity: Mapping[str, str]) -> bool:
    """Return whether an event with the values `row` is about `entity`, whose texts are those of a finding."""
    return all(_text(row.get(name)) == value for name, value in entity.items())


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else shortened(str(value))
