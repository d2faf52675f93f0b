"""Files of past events into landing: read by the same rules as what comes through Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache, partial
from pathlib import Path

import structlog
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.names import landing_job
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.settings import Settings
from tocsin.history.day_status import published_days
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import (
    PARTITION,
    Entry,
    ImportedFile,
    LandedFile,
    LandingLedger,
    is_lost,
    landing_lock,
    read_ledger,
    record,
    sweep,
    take_back,
)
from tocsin.history.places import Places
from tocsin.history.spark.file_records import (
    as_read,
    file_digest,
    good_events,
    parsed_rows,
    rules_for_files,
    run_of,
    staged_name,
)
from tocsin.history.spark.flowed_events import FlowedEvents
from tocsin.history.spark.landing import DAY, RUN, figures_of, move_to_landing, write_by_day
from tocsin.history.spark.shared_scratch import shared_scratch
from tocsin.ingest.files.past_rows import FileForm, form_of, stage
from tocsin.platform.progress import report_progress
from tocsin.platform.storage.stored_path import StoredPath, move_in
from tocsin.quality.suites.row_rules import RowRule
from tocsin.spark.batch_session import running_batch
from tocsin.spark.session import scratch_folder

_PARTITION = -1  # under which the ledger counts imported rows
_BYTES_AT_ONCE = 64 * 1_048_576

log = structlog.get_logger()


@dataclass(frozen=True)
class Imported:
    """Outcome of one file.

    Attributes:
        refused: file of the rows that cannot be used: row number, reasons and text of each; None without such rows.
        known: it had been imported before, and nothing was done.
    """

    entry: Entry
    refused: StoredPath | None
    reasons: dict[str, int]
    known: bool = False


def import_files(
    settings: Settings,
    source: Source,
    paths: Iterable[Path],
    form: FileForm | None = None,
    records: Source | None = None,
) -> Iterator[Imported | ConfigError]:
    """Land the rows of each of `paths` as events of `source`; what came of each, as soon as it has landed.

    Files hold lines, CSV or Parquet; lines and CSV may be gzip, as the name says. `form` is None for what the names
    say. If flows make the events of `source`, the rows are records of the source `records`; None for its own. A file
    that cannot be read, or is not what its name or `form` says, yields a ConfigError; the others are landed.

    Small files are parsed and written together, up to 64 MB of staged rows. All share a Spark session, which the first
    file starts that is not known. An event's identity is the hash of the file and the number of its row, so importing a
    file again changes nothing. A file of which every row was refused is read again, since the source's file may have
    been fixed; so is one of which a day is neither landed nor published.

    Raises:
        ConfigError: the rules for rows have faults, or the records of `source` hold no time.
        LockHeld: a landing or another import of this source runs; a retry helps once it has ended.
        BrokenLedger: an entry of the ledger cannot be read.
        OSError: the disk is full or cannot be written; a file is landed whole or not at all.
    """
    origin = records or source
    rules = rules_for_files(settings, origin)
    left = list(paths)
    with ExitStack() as stack:
        session = cache(lambda: stack.enter_context(running_batch(settings, landing_job(source.name))))
        work = _Import(settings, source, origin, rules, session, cache(lambda: published_days(settings, source)))
        while left:
            done = work.import_some(left, form)
            yield from done
            del left[: len(done)]


@dataclass(frozen=True)
class _Import:
    settings: Settings
    source: Source
    origin: Source
    rules: tuple[RowRule, ...]
    session: Callable[[], SparkSession]
    versions: Callable[[], Mapping[date, DayVersion]]

    def import_some(self, paths: Sequence[Path], form: FileForm | None) -> list[Imported | ConfigError]:
        """Import the first of `paths`, as many as go together; returns what came of each of them."""
        found: list[Imported | ConfigError | str] = []
        with landing_lock(self.settings, self.source.name), ExitStack() as stack:
            batch = _Batch(self, stack)
            for path in paths:
                try:
                    found.append(batch.add(path, form or form_of(path)))
                except ConfigError as error:
                    found.append(error)
                if batch.is_full:
                    break
            landed, outcomes = batch.land(), list[Imported | ConfigError]()
        for one in found:
            outcomes.append(landed[one] if isinstance(one, str) else one)
            if isinstance(one, str):  # another path may have the same content
                landed[one] = replace(landed[one], reasons={}, known=True)
        return outcomes


@dataclass(frozen=True)
class _Alike:
    """Files whose rows lie in `folder`, to be parsed as records of `origin`."""

    origin: Source
    folder: StoredPath
    files: list[ImportedFile]


class _Batch:
    """Files that land together. Only for the holder of the landing lock."""

    def __init__(self, work: _Import, stack: ExitStack) -> None:
        self._work, self._places = work, Places.of(work.settings, work.source.name)
        self._ledger = read_ledger(self._places)
        self._entries = {entry.run: entry for entry in self._ledger.entries}
        self._staged: dict[str, _Alike] = {}
        self._size, self._job = 0, landing_job(work.source.name)
        self._folder = cache(lambda: stack.enter_context(shared_scratch(work.session(), work.settings, self._job)))

    @property
    def is_full(self) -> bool:
        """Return whether to land before more is added; a flow may join or count, so a file that it reads goes alone."""
        is_derived = self._work.source.name != self._work.origin.name
        return self._size > _BYTES_AT_ONCE or (is_derived and bool(self._staged))

    def add(self, path: Path, form: FileForm) -> Imported | str:
        """Stage the rows of `path`; returns its run, or what came of it if it was imported before.

        ConfigError if it cannot be read, or is not what `form` says.
        """
        sha256 = file_digest(path)
        run = self._ledger.import_of(sha256)
        before = self._entries.get(run)
        if before is not None and _is_in(before, self._places, self._work.versions()):
            refused = self._places.refused(run)
            return Imported(before, refused if refused.exists() else None, {}, known=True)
        if run not in self._staged:
            self._stage(path, form, sha256, run)
        return run

    def land(self) -> dict[str, Imported]:
        work, landed = self._work, dict[str, Imported]()
        if self._staged:
            sweep(self._places, self._ledger)
        for alike in {str(one.folder): one for one in self._staged.values()}.values():
            report_progress("rows to be parsed and landed", 0, sum(file.rows for file in alike.files))
            landing = ImportWork(work.settings, work.session(), self._places, work.source, alike.origin, self._folder())
            landed |= {one.entry.run: one for one in landing.land(alike.folder, work.rules, alike.files)}
        return landed

    def _stage(self, path: Path, form: FileForm, sha256: str, run: str) -> None:
        origin, folder = as_read(self._work.origin, form, path), self._folder()
        staged = scratch_folder(self._work.settings, self._job) / f"{run}.parquet"
        try:
            rows = stage(path, form, origin.max_bytes, staged, partial(report_progress, f"rows read of {path}"))
            alike = next((one for one in self._staged.values() if one.origin == origin), None)
            alike = alike or _Alike(origin, folder / f"rows-{len(self._staged)}", [])
            self._size += staged.stat().st_size
            move_in(staged, alike.folder / staged_name(sha256))
        finally:
            staged.unlink(missing_ok=True)
        alike.files.append(ImportedFile(name=str(path), sha256=sha256, rows=rows, refused=0))
        self._staged[run] = alike


@dataclass(frozen=True)
class ImportWork:
    """Rows of files, or of one day of history that goes through flows, on their way into landing.

    Records or events of `origin` become events of `source`, in `folder`.
    """

    settings: Settings
    spark: SparkSession
    places: Places
    source: Source
    origin: Source
    folder: StoredPath

    def land(self, staged: StoredPath, rules: tuple[RowRule, ...], files: Sequence[ImportedFile]) -> list[Imported]:
        """Parse the rows of `files` that lie in `staged`, and land the good ones; `rules` are of rows of `origin`."""
        began = datetime.now(UTC)
        read = parsed_rows(self.spark, staged, began, self.origin, rules).persist(StorageLevel.DISK_ONLY)
        try:
            return self.land_rows(read, files, began)
        finally:
            read.unpersist()

    def land_rows(self, read: DataFrame, files: Sequence[ImportedFile], began: datetime) -> list[Imported]:
        """Land the good ones of parsed rows, as of `parsed_rows`; the rows of a single file may have any identity."""
        ledger = read_ledger(self.places)
        names = {file.sha256: ledger.import_of(file.sha256) for file in files}
        run = F.lit(names[files[0].sha256]) if len(files) == 1 else run_of("raw_topic", names)
        folder = self.folder / f"landing-{names[files[0].sha256]}"
        self._write(good_events(read, self.origin), run, folder / "good")
        bad = read.where("reasons != ''").withColumn(RUN, run)
        reasons, refused_days = self._refuse(bad, folder / "refused"), _refused_days(bad)
        figures = figures_of(self.spark, folder / "good", self.source.lateness)
        moved, landed = move_to_landing(folder / "good", self.places, figures), []
        for file in files:
            name = names[file.sha256]
            own, counts = tuple(moved.get(name, ())), refused_days.get(name, {})
            refused = {"refused": sum(counts.values()), "refused_days": _by_known_day(counts, own)}
            entry = Entry(
                run=name,
                began=began,
                ended=datetime.now(UTC),
                columns=columns_of(self.source),
                files=own,
                imported=file.model_copy(update=refused),
            )
            record(self.places, entry)
            self._replace(ledger, entry)
            log.info("file imported", file=file.name, events=entry.events, refused=refused["refused"])
            has_refused = name in reasons
            landed.append(Imported(entry, self.places.refused(name) if has_refused else None, reasons.get(name, {})))
        return landed

    def _replace(self, ledger: LandingLedger, entry: Entry) -> None:
        """Take back what is left of imports of the same file that were withdrawn in part."""
        for other in ledger.imports(entry.imported.sha256 if entry.imported else ""):
            if other.run != entry.run and other.files:
                take_back(self.places, other, [file.day for file in other.files], entry.ended)

    def _write(self, read: DataFrame, run: Column, folder: StoredPath) -> None:
        flows = FlowedEvents(self.spark, self.settings, read_catalog(self.settings.project))
        events = flows.made_of(read, self.origin, self.source)
        events = events.withColumns({RUN: run, DAY: F.to_date("event_time"), PARTITION: F.lit(_PARTITION)})
        # Else each task writes a file for each day that it meets: thousands where times are scattered.
        events = events.hint("rebalance", RUN, DAY)
        write_by_day(events, folder)

    def _refuse(self, bad: DataFrame, folder: StoredPath) -> dict[str, dict[str, int]]:
        """Write the rows that cannot be used where people can read them; how many there are by run and reason."""
        each = bad.select(RUN, F.explode(F.split("reasons", ",")).alias("reason"))
        counts: dict[str, dict[str, int]] = {}
        for row in each.groupBy(RUN, "reason").count().collect():
            counts.setdefault(row[RUN], {})[row["reason"]] = row["count"]
        if counts:
            text = F.coalesce(F.try_validate_utf8(F.col("value").cast("string")), F.hex("value"))
            shown = F.struct(
                F.col("offset").alias("row"), F.split("reasons", ",").alias("reasons"), text.alias("value")
            )
            ordered = bad.repartition(1, RUN).sortWithinPartitions(RUN, "offset")
            ordered.select(RUN, F.to_json(shown).alias("row")).write.partitionBy(RUN).text(str(folder))
            for run in counts:
                (written,) = (folder / f"{RUN}={run}").glob("part-*.txt")
                move_in(written, self.places.refused(run))
        return counts


def _refused_days(bad: DataFrame) -> dict[str, dict[date | None, int]]:
    """Count refused rows by run and day; a faulty time tells no day."""
    day = F.when(~F.col("reasons").contains("time_"), F.to_date("event_time"))
    counts: dict[str, dict[date | None, int]] = {}
    for row in bad.groupBy(RUN, day.alias("day")).count().collect():
        counts.setdefault(row[RUN], {})[row["day"]] = row["count"]
    return counts


def _by_known_day(counts: Mapping[date | None, int], files: Iterable[LandedFile]) -> dict[date, int]:
    """Count `refused_days` of a ledger entry: rows without a day are spread over those of the others."""
    known = {day: count for day, count in counts.items() if day is not None}
    weights = Counter(known)
    for file in files:
        weights[file.day] += file.total
    return _with_shares(known, counts.get(None, 0), weights)


def _is_in(entry: Entry, places: Places, published: Mapping[date, DayVersion]) -> bool:
    """Return whether `entry` has landed events, and none of them was lost since."""
    return entry.events > 0 and not is_lost(entry, places, published)


def _with_shares(refused: Mapping[date, int], unknown: int, weights: Mapping[date, int]) -> dict[date, int]:
    """Add `unknown` rows to `refused`, spread over the days in proportion to `weights`; no row is lost by rounding."""
    counts, total, before, assigned = dict(refused), sum(weights.values()), 0, 0
    for day, weight in sorted(weights.items()):
        before += weight
        share = unknown * before // total - assigned
        assigned += share
        if share:
            counts[day] = counts.get(day, 0) + share
    return dict(sorted(counts.items()))
