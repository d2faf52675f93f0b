"""The ledger of landing: which offsets and which files of a source have landed, one small file for each run.

A run is one reading of the events topic by a seal, or one import. It writes its files first and its entry last, in one
atomic step, so a run without an entry never was. The entries of readings follow one another without a break: each
begins at the offsets where the one before ended, so the ledger is also the position in Kafka.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path

import structlog
from pydantic import BaseModel, ValidationError

from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.names import landing_job
from tocsin.declare.settings import Settings
from tocsin.history.day_versions import DayVersion
from tocsin.history.places import Places, begin, end, import_run
from tocsin.platform.lock import Lock, try_lead
from tocsin.platform.state_file import write_whole
from tocsin.platform.storage.job_folders import claim_history
from tocsin.platform.storage.stored_path import StoredPath, find_all, read_each, remove_tree
from tocsin.quality.day_facts import Hole, PartitionFacts

PARTITION = "tocsin_partition"
"""A column of landed files: the partition of the events topic; -1 in imported files."""

log = structlog.get_logger()


class BrokenLedger(TocsinError):
    """An entry cannot be read; a retry does not help. It names the file."""


class LandedFile(BaseModel, frozen=True, extra="forbid"):
    """One Parquet file in landing, its path relative to the history folder; all its events are of one UTC day.

    Attributes:
        rows: of each partition of the events topic; the partition of imported files is -1.
        late: rows with an append time later than event time plus the source's lateness; 0 for imported files.
        newest_event, newest_append: greatest times in it, UTC.
    """

    path: Path
    day: date
    rows: dict[int, int]
    late: int
    newest_event: datetime
    newest_append: datetime
    bytes: int
    sha256: str

    @property
    def total(self) -> int:
        """Rows of all partitions."""
        return sum(self.rows.values())


class OffsetSpan(BaseModel, frozen=True, extra="forbid"):
    """The part of one partition that one run read.

    Attributes:
        from_offset, to_offset: the first that it had to read, and the first that is left to the next run.
        unreadable: records that are neither an event nor a tick; counted and left out.
        newest_append, newest_tick: times of the last record and the last tick ever read here, UTC; None without any.
    """

    from_offset: int
    to_offset: int
    events: int = 0
    unreadable: int = 0
    holes: tuple[Hole, ...] = ()
    newest_append: datetime | None = None
    newest_tick: datetime | None = None


class Quarantined(BaseModel, frozen=True, extra="forbid"):
    """The counts of one run in `quarantine.<source>`.

    Attributes:
        positions: of each partition the first offset that is left to the next run.
        topic_id: Kafka's id of the topic; "" in entries from before 2026-11-27, and if it has none.
        days: records by the UTC day of their append time; a record that failed again after a replay counts again.
    """

    positions: dict[int, int]
    days: dict[date, int] = {}
    topic_id: str = ""


class ImportedFile(BaseModel, frozen=True, extra="forbid"):
    """The file that rows of an import came from.

    Attributes:
        name: as it was given.
        rows, refused: how many are in it, and how many of them cannot be used.
        refused_days: the refused rows by UTC day; rows of an unknown day are spread over the days of the others. Empty
            in entries from before 2026-11-23, and when no row has a day.
        withdrawn: days whose rows were taken back, and when (UTC); their files are not in the entry any more.
    """

    name: str
    sha256: str
    rows: int
    refused: int
    refused_days: dict[date, int] = {}
    withdrawn: dict[date, datetime] = {}


class Entry(BaseModel, frozen=True, extra="forbid"):
    """The result of one run of landing; times are UTC. `imported` is None unless it is an import.

    Attributes:
        run: its name; those of landing sort by time.
        topic: that it read; None for an import.
        topic_id: Kafka's id of it; "" in entries from before 2026-11-27, and if it has none.
        quarantined: what had gone to quarantine since the run before; None for an import.
        columns: names and types of the files' columns, in order.
    """

    run: str
    began: datetime
    ended: datetime
    topic: str | None = None
    topic_id: str = ""
    partitions: dict[int, OffsetSpan] = {}
    quarantined: Quarantined | None = None
    columns: dict[str, str]
    files: tuple[LandedFile, ...] = ()
    imported: ImportedFile | None = None

    @property
    def events(self) -> int:
        """Count what it landed."""
        return sum(file.total for file in self.files)

    def of(self, day: date) -> tuple[LandedFile, ...]:
        """Its files of `day`."""
        return tuple(file for file in self.files if file.day == day)

    def without(self, days: Iterable[date], now: datetime) -> Entry:
        """Take back what an import brought in for `days`, at the moment `now`."""
        file, gone = self.imported, set(days)
        assert file is not None, "only imports are withdrawn"
        files = tuple(one for one in self.files if one.day not in gone)
        refused = {day: count for day, count in file.refused_days.items() if files and day not in gone}
        own = {"withdrawn": file.withdrawn | dict.fromkeys(gone, now), "refused_days": refused}
        return self.model_copy(update={"files": files, "imported": file.model_copy(update=own)})


@dataclass(frozen=True)
class LandingLedger:
    """All entries of one source, imports first, then the runs of landing in their order."""

    source: str
    entries: tuple[Entry, ...]

    @cached_property
    def last(self) -> Entry | None:
        """The latest run that read the topic."""
        return next((entry for entry in reversed(self.entries) if entry.topic is not None), None)

    @cached_property
    def first(self) -> Entry | None:
        """The earliest run that read the topic, as far as the ledger reaches back."""
        return next((entry for entry in self.entries if entry.topic is not None), None)

    @cached_property
    def by_day(self) -> dict[date, tuple[Entry, ...]]:
        """The entries that have files of a day, by day."""
        days: dict[date, list[Entry]] = {}
        for entry in self.entries:
            for day in {file.day for file in entry.files}:
                days.setdefault(day, []).append(entry)
        return {day: tuple(days[day]) for day in sorted(days)}

    @cached_property
    def withdrawn(self) -> dict[date, dict[str, datetime]]:
        """The imports that were taken back, by day and run, and when."""
        days: dict[date, dict[str, datetime]] = {}
        for entry in self.entries:
            for day, at in entry.imported.withdrawn.items() if entry.imported else ():
                days.setdefault(day, {})[entry.run] = at
        return days

    def imports(self, sha256: str) -> list[Entry]:
        """The imports of the file with this digest."""
        return [entry for entry in self.entries if entry.imported is not None and entry.imported.sha256 == sha256]

    def import_of(self, sha256: str) -> str:
        """Name the run that imports the file with this digest; another one once that was withdrawn.

        Versions of a day name the runs that are in them, so a run that is withdrawn never comes again.
        """
        known = {entry.run: entry.imported for entry in self.imports(sha256)}
        there = [run for run, file in known.items() if file is not None and not file.withdrawn]
        names = (import_run(sha256, number) for number in itertools.count())
        return there[0] if there else next(name for name in names if name not in known)

    def runs(self, day: date) -> frozenset[str]:
        """Names of the runs that landed something for `day`."""
        return frozenset(entry.run for entry in self.by_day.get(day, ()))

    def files(self, day: date) -> list[LandedFile]:
        """All files that ever landed for `day`, removed ones included."""
        return [file for entry in self.by_day.get(day, ()) for file in entry.of(day)]

    @property
    def read_through(self) -> datetime | None:
        """Every record appended before it, UTC, had come through ingest and has landed; None where no tick told.

        Ingest writes ticks (`tocsin.ingest.ticks`) into each partition once all before them is written.
        """
        ticks = [span.newest_tick for span in self.last.partitions.values()] if self.last else []
        times = [tick for tick in ticks if tick is not None]
        return min(times) if times and len(times) == len(ticks) else None

    def partitions(self, day: date, grace: timedelta) -> dict[int, PartitionFacts]:
        """List what each partition of the topic gave to `day`, and the holes that may have cost it events."""
        rows: dict[int, int] = {}
        for file in self.files(day):
            for partition, count in file.rows.items():
                if partition >= 0:
                    rows[partition] = rows.get(partition, 0) + count
        holes: dict[int, list[Hole]] = {}
        for partition, hole in self.holes():
            if (hole.before is None or hole.before > begin(day)) and (
                hole.after is None or hole.after < end(day) + grace
            ):
                holes.setdefault(partition, []).append(hole)
        return {
            partition: PartitionFacts(rows=rows.get(partition, 0), holes=tuple(holes.get(partition, ())))
            for partition in sorted(rows.keys() | holes.keys())
        }

    def quarantined(self, day: date) -> int:
        """Records that went to quarantine on `day`, and rows of it that imports have refused."""
        streamed = [entry.quarantined.days for entry in self.entries if entry.quarantined is not None]
        imported = [entry.imported.refused_days for entry in self.entries if entry.imported is not None]
        return sum(days.get(day, 0) for days in (*streamed, *imported))

    def holes(self) -> Iterator[tuple[int, Hole]]:
        """Partition and hole of all that was never landed between what was."""
        for entry in self.entries:
            for partition, span in entry.partitions.items():
                for hole in span.holes:
                    yield partition, hole

    def breaks(self) -> list[str]:
        """List entries that do not begin where the one before ended, a sentence each; a recreated topic is no fault."""
        found: list[str] = []
        ends: dict[int, int] = {}
        for entry in self.entries:
            for partition, span in entry.partitions.items():
                if any(hole.is_of_former_topic for hole in span.holes):
                    ends[partition] = span.from_offset
                if ends.setdefault(partition, span.from_offset) != span.from_offset:
                    what = f"begins partition {partition} at offset {span.from_offset}, not at {ends[partition]}"
                    found.append(f"run {entry.run} {what}")
                ends[partition] = span.to_offset
        return found


def landing_lock(settings: Settings, source: str) -> Lock:
    """Take the right to write into landing and ledger of `source`.

    LockHeld if another process has it, ConfigError if another installation writes history there.
    """
    claim_history(settings)
    return try_lead(settings, settings.checkpoint(landing_job(source)) / "lock")


def read_ledger(places: Places) -> LandingLedger:
    """Read all that has landed of one source; BrokenLedger if an entry is not what `record` has written."""
    entries = read_each(_read, find_all(places.ledger, "[!.]*.json"), places.ledger)
    return LandingLedger(places.source, tuple(sorted(entries, key=lambda entry: (entry.topic is not None, entry.run))))


def record(places: Places, entry: Entry) -> None:
    """Write `entry` down: from now on it is landed. OSError if that cannot be done: then nothing is."""
    write_whole(places.ledger / f"{entry.run}.json", entry.model_dump_json(indent=1, exclude_defaults=True))


def take_back(places: Places, entry: Entry, days: Iterable[date], now: datetime) -> None:
    """Take back what the import `entry` brought in for `days`. OSError if the ledger cannot be written."""
    gone = set(days)
    record(places, entry.without(gone, now))
    for day in gone:
        remove_tree(places.landed(day, entry.run))


def is_lost(entry: Entry, places: Places, published: Mapping[date, DayVersion]) -> bool:
    """Return whether a day of `entry` is neither landed nor in the version that is published for it."""

    def is_there(file: LandedFile) -> bool:
        version = published.get(file.day)
        return (places.root / file.path).exists() or (version is not None and entry.run in version.runs)

    return not all(is_there(file) for file in entry.files)


def sweep(places: Places, ledger: LandingLedger) -> None:
    """Remove what killed runs left behind. Only for the holder of the landing lock.

    BrokenLedger if the ledger is empty though several runs have landed; what one killed first run left is removed.
    """
    runs, folders = {entry.run for entry in ledger.entries}, list(places.landed_folders())
    if not runs and len({run for _, run, _ in folders}) > 1:
        what = f"{places.ledger} holds nothing, though several runs have landed in {places.landing}"
        raise BrokenLedger(f"{what}; restore it from a backup, or remove what has landed to give it up")
    for _, run, folder in folders:
        if run not in runs:
            log.info("leftovers of an interrupted run removed", folder=str(folder))
            remove_tree(folder)


def forget(places: Places, entry: Entry) -> None:
    """Remove `entry`; only once nothing needs it any more."""
    (places.ledger / f"{entry.run}.json").unlink(missing_ok=True)


def _read(path: StoredPath) -> Entry:
    try:
        return Entry.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        what = f"{path} cannot be read: {str(error).splitlines()[0]}"
        raise BrokenLedger(f"{what}; restore it from a backup, or its events would land again") from error
