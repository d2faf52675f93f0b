"""Landing: what a source's events topic holds since the last run becomes Parquet files, and the ledger says so.

Bounded: a run reads up to where the topic ended when it began. Files come first, the ledger's entry last and at once,
so a run that is killed has landed nothing, and the next one sweeps up what it left.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tocsin.history.land.arrow_events import PARTITION, Parsed, columns_of, parse
from tocsin.history.land.bounded_reader import BoundedReader, Stretch, TopicAnew
from tocsin.history.land.landing_ledger import (
    Entry,
    LandedFile,
    OffsetSpan,
    Quarantined,
    read_ledger,
    record,
    sweep,
)
from tocsin.history.places import Places, stamp
from tocsin.kafka.topics import QUARANTINE_DAYS
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.names import landing_job
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.runtime.lead import try_lead
from tocsin.runtime.lock import Lock
from tocsin.runtime.state_file import write_whole
from tocsin.storage.claim import claim_history
from tocsin.storage.stored_path import remove_tree

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS_AT_ONCE = 200_000
BYTES_AT_ONCE = 64 * 1_048_576

log = structlog.get_logger()


def land(settings: Settings, source: Source, *, anew: bool = False) -> Entry:
    """Land what `events.<source>` holds since the last run; returns what it landed, perhaps nothing.

    Args:
        settings: of the installation.
        source: whose events.
        anew: begin at what the topic holds now, whatever the ledger says; for a topic that was made anew.

    Raises:
        LockHeld: another landing or import of this source runs; a retry helps once it has ended.
        TopicAnew: the topic was deleted and created again since the last run; a retry does not help, `anew` does.
        TransientError: Kafka cannot be reached; a retry helps.
        BrokenLedger: an entry of the ledger cannot be read.
        OSError: the disk is full or cannot be written; nothing is landed, a retry helps once there is room.
    """
    places = Places.of(settings, source.name)
    with landing_lock(settings, source.name):
        ledger = read_ledger(places)
        sweep(places, ledger)
        before = ledger.last
        run = stamp(datetime.now(UTC), before.run if before else None)
        try:
            with BoundedReader(settings, settings.names.events(source.name), landing_job(source.name)) as reader:
                entry = _read(reader, LandingWriter(places, run, source), source, before, anew=anew)
            if not source.is_derived:
                # After the events: what their ticks vouch for has been written by now, to quarantine as well.
                entry = entry.model_copy(update={"quarantined": _quarantined(settings, source, before)})
            record(places, entry)
        except BaseException:
            with contextlib.suppress(TransientError):  # a store that is away: the next run sweeps
                sweep(places, ledger)
            raise
    _tell(entry)
    return entry


def land_again(settings: Settings, source: Source, run: str) -> Entry:
    """Land the events of `run` again, replacing its files, when these are broken or gone.

    Raises:
        ConfigError: there is no such run, or Kafka no longer keeps what it read.
        LockHeld, TransientError, BrokenLedger, OSError: as from `land`.
    """
    places, where = Places.of(settings, source.name), f"run {run} of {source.name}"
    with landing_lock(settings, source.name):
        ledger = read_ledger(places)
        before = next((entry for entry in ledger.entries if entry.run == run), None)
        if before is None or before.topic is None:
            raise ConfigError.one(where, "is in no ledger" if before is None else "is an import: import the file again")
        with BoundedReader(settings, before.topic, landing_job(source.name)) as reader:
            try:
                reader.begin({p: span.from_offset for p, span in before.partitions.items()}, {}, before.topic_id)
            except TopicAnew as error:
                raise ConfigError.one(where, f"cannot be read again: {error}; the files that are left stay") from error
            for partition in list(reader.stretches):
                if partition not in before.partitions:
                    del reader.stretches[partition]
                else:
                    reader.stretches[partition].end = before.partitions[partition].to_offset
            if any(stretch.lost_since(before.partitions[p].holes) for p, stretch in reader.stretches.items()):
                raise ConfigError.one(
                    where, f"read events that {before.topic} no longer has; the files that are left stay"
                )
            for day in {file.day for file in before.files}:
                remove_tree(places.landed(day, run))
            entry = _land(reader, LandingWriter(places, run, source), source, {})
        entry = entry.model_copy(update={"partitions": before.partitions, "quarantined": before.quarantined})
        record(places, entry)
    _tell(entry)
    return entry


def land_aside(settings: Settings, source: Source, places: Places, since: datetime) -> tuple[Entry, datetime | None]:
    """Land in `places`, and in no ledger, what `events.<source>` holds of events from `since` on, and some before.

    Returns the entry and from when on it holds all events; None if Kafka never removed any.

    Raises:
        TransientError, OSError: as from `land`.
    """
    topic = settings.names.events(source.name)
    with BoundedReader(settings, topic, landing_job(source.name)) as reader:
        known = read_ledger(Places.of(settings, source.name))
        reach = reader.begin_since(since - source.max_ahead, source, known)
        entry = _land(reader, LandingWriter(places, stamp(datetime.now(UTC)), source), source, {})
    return entry, reach


def _read(reader: BoundedReader, writer: LandingWriter, source: Source, before: Entry | None, *, anew: bool) -> Entry:
    """Read all there is behind the run `before` into files; all that the topic holds if it is `anew`."""
    spans = before.partitions if before else {}
    appended = {p: span.newest_append for p, span in spans.items() if span.newest_append is not None}
    if before is None or not anew:
        known = before.topic_id if before else ""
        try:
            reader.begin({p: span.to_offset for p, span in spans.items()}, appended, known)
        except TopicAnew as error:
            raise TopicAnew(f"{error}; run: tocsin history land --source {source.name} --anew") from error
        return _land(reader, writer, source, spans)
    reader.begin({}, appended)
    for partition, stretch in reader.stretches.items():
        if partition in spans:
            stretch.lose(spans[partition].to_offset)
    return _land(reader, writer, source, {})


def _land(reader: BoundedReader, writer: LandingWriter, source: Source, spans: dict[int, OffsetSpan]) -> Entry:
    began, tally = datetime.now(UTC), _Tally()
    for chunk in reader.chunks(records=RECORDS_AT_ONCE, size=BYTES_AT_ONCE):
        parsed = parse(chunk.values, chunk.partitions, columns_of(source))
        writer.write(parsed.table)
        tally.add(parsed)
    return Entry(
        run=writer.run,
        began=began,
        ended=datetime.now(UTC),
        topic=reader.topic,
        topic_id=reader.topic_id,
        partitions={p: tally.span(p, stretch, spans.get(p), began) for p, stretch in reader.stretches.items()},
        columns=columns_of(source),
        files=tuple(writer.files),
    )


def _quarantined(settings: Settings, source: Source, before: Entry | None) -> Quarantined:
    """Count what has gone to quarantine since the run `before`."""
    now, topic = datetime.now(UTC), settings.names.quarantine(source.name)
    counts = before.quarantined if before else None
    with BoundedReader(settings, topic, landing_job(source.name)) as reader:
        try:
            reader.begin(counts.positions if counts else {}, {}, counts.topic_id if counts else "")
        except TopicAnew as error:
            log.warning("quarantine counted from the beginning", topic=topic, error=str(error))
            reader.begin({}, {})
        since = before.began if before and counts else now - timedelta(days=QUARANTINE_DAYS)
        days = reader.by_day(since.date(), now.date())
        positions = {p: stretch.end for p, stretch in reader.stretches.items()}
        return Quarantined(positions=positions, days=days, topic_id=reader.topic_id)


def landing_lock(settings: Settings, source: str) -> Lock:
    """The right to write into landing and ledger of `source`.

    Raises:
        LockHeld: another process has it.
        ConfigError: another installation writes history there.
    """
    claim_history(settings)
    return try_lead(settings, settings.checkpoint(landing_job(source)) / "lock")


class LandingWriter:
    """Writes the files of one run; each call of `write` makes one for each day that it has events of.

    Attributes:
        run: its name.
        files: what was written, each of them on the disk.
    """

    def __init__(self, places: Places, run: str, source: Source) -> None:
        self.files: list[LandedFile] = []
        self.run, self._places = run, places
        self._lateness, self._count = source.lateness, 0

    def write(self, table: pa.Table) -> None:
        """Write events, with PARTITION as last column.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        for day, events in _by_day(table):
            path = self._places.landed(day, self.run) / f"part-{self._count:05d}.parquet"
            self._count += 1
            content = _parquet(events.drop_columns([PARTITION]))
            write_whole(path, content)
            self.files.append(self._landed_file(self._places.within(path), day, events, content))

    def _landed_file(self, path: Path, day: date, events: pa.Table, content: bytes) -> LandedFile:
        from pyarrow import compute

        counts = compute.value_counts(events[PARTITION].combine_chunks()).to_pylist()
        delay = compute.subtract(events["ingested_at"], events["event_time"])
        late = compute.sum(compute.greater(delay, self._lateness)).as_py() or 0
        return LandedFile(
            path=path,
            day=day,
            rows={count["values"]: count["counts"] for count in counts},
            late=late,
            newest_event=compute.max(events["event_time"]).as_py(),
            newest_append=compute.max(events["ingested_at"]).as_py(),
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )


@dataclass
class _Tally:
    """The counts of the chunks of a run, by partition."""

    events: dict[int, int] = field(default_factory=dict)
    unreadable: dict[int, int] = field(default_factory=dict)
    ticks: dict[int, datetime] = field(default_factory=dict)

    def add(self, parsed: Parsed) -> None:
        from pyarrow import compute

        for count in compute.value_counts(parsed.table[PARTITION]).to_pylist():
            self.events[count["values"]] = self.events.get(count["values"], 0) + count["counts"]
        for partition, number in parsed.unreadable.items():
            self.unreadable[partition] = self.unreadable.get(partition, 0) + number
        for partition, moment in parsed.ticks.items():
            self.ticks[partition] = max(moment, self.ticks.get(partition, moment))

    def span(self, partition: int, stretch: Stretch, before: OffsetSpan | None, began: datetime) -> OffsetSpan:
        ticks = [self.ticks.get(partition), before.newest_tick if before else None]
        return OffsetSpan(
            from_offset=stretch.start,
            to_offset=stretch.position,
            events=self.events.get(partition, 0),
            unreadable=self.unreadable.get(partition, 0),
            holes=tuple(hole if hole.before else hole.model_copy(update={"before": began}) for hole in stretch.holes),
            newest_append=stretch.newest_append,
            newest_tick=max((tick for tick in ticks if tick is not None), default=None),
        )


def _by_day(table: pa.Table) -> Iterator[tuple[date, pa.Table]]:
    """The events of each UTC day."""
    from pyarrow import compute

    days = compute.floor_temporal(table["event_time"], unit="day")
    for moment in compute.unique(days).to_pylist():
        yield moment.date(), table.filter(compute.equal(days, moment))


def _parquet(table: pa.Table) -> bytes:
    """Make a Parquet file: whole in memory, so that a store gets it in one piece."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    # Without Arrow's own schema beside Parquet's: it would be a second truth.
    parquet.write_table(table, sink, compression="zstd", compression_level=1, store_schema=False)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _tell(entry: Entry) -> None:
    holes = {p: [f"{h.from_offset} to {h.to_offset}" for h in s.holes] for p, s in entry.partitions.items() if s.holes}
    unreadable = sum(span.unreadable for span in entry.partitions.values())
    if holes:
        log.warning("offsets missing", topic=entry.topic, holes=holes)
    if unreadable:
        log.warning("records skipped, neither events nor ticks", topic=entry.topic, records=unreadable)
    log.info("events landed", run=entry.run, events=entry.events, files=len(entry.files))
