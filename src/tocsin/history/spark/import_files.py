"""Files of past events into landing: read by the same rules as what comes through Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

import structlog
from pyarrow import compute, parquet
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.history.day_status import published_days
from tocsin.history.day_versions import DayVersion
from tocsin.history.land.arrow_events import columns_of
from tocsin.history.land.landing import landing_lock
from tocsin.history.land.landing_ledger import Entry, ImportedFile, LandedFile, is_lost, read_ledger, record, sweep
from tocsin.history.parquet_files import digest, rows_in
from tocsin.history.places import IMPORTED, Places
from tocsin.history.spark.file_records import as_read, file_digest, good_events, parsed_rows, rules_for_files
from tocsin.history.spark.flowed_events import FlowedEvents
from tocsin.history.spark.shared_scratch import shared_scratch
from tocsin.ingest.files.past_rows import FileForm, form_of, stage
from tocsin.model.errors import ConfigError
from tocsin.model.names import landing_job
from tocsin.model.source import Source
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.quality.suites.row_rules import RowRule
from tocsin.sparkjob.batch_session import running_batch
from tocsin.sparkjob.session import scratch_folder
from tocsin.storage.stored_path import StoredPath, find_all, move_in, open_stored, size_of

PARTITION = -1
"""The partition under which the ledger counts imported rows."""

_DAY = "tocsin_day"
_STAGED = "rows.parquet"

log = structlog.get_logger()


@dataclass(frozen=True)
class Imported:
    """Outcome of one file.

    Attributes:
        entry: what landed of it.
        refused: file of the rows that cannot be used: row number, reasons and text of each; None without such rows.
        reasons: how many rows there are for each reason.
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

    A file that cannot be read, or is not what its name or `form` says, yields a ConfigError; the others are landed.

    All share a Spark session, which the first file starts that is not known. An event's identity is the hash of the
    file and the number of its row, so importing a file again changes nothing. A file of which every row was refused is
    read again, since the source's file may have been fixed; so is one of which a day is neither landed nor published.

    Args:
        settings: of the installation.
        source: whose events they are.
        paths: lines, CSV or Parquet; lines and CSV may be gzip, as the name says.
        form: None for what the names say.
        records: of which flows make the events of `source`; None for its own.

    Raises:
        ConfigError: the rules for rows have faults, or the records of `source` hold no time.
        LockHeld: a landing or another import of this source runs; a retry helps once it has ended.
        BrokenLedger: an entry of the ledger cannot be read.
        OSError: the disk is full or cannot be written; nothing of this file is landed.
    """
    origin = records or source
    rules = rules_for_files(settings, origin)
    with ExitStack() as stack:
        session = cache(lambda: stack.enter_context(running_batch(settings, landing_job(source.name))))
        one = _Import(settings, source, origin, rules, session, cache(lambda: published_days(settings, source)))
        for path in paths:
            done: Imported | ConfigError
            try:
                done = one.import_file(path, form or form_of(path))
            except ConfigError as error:
                done = error
            yield done


@dataclass(frozen=True)
class _Import:
    """An import of files, one after another."""

    settings: Settings
    source: Source
    origin: Source
    rules: tuple[RowRule, ...]
    session: Callable[[], SparkSession]
    versions: Callable[[], Mapping[date, DayVersion]]

    def import_file(self, path: Path, form: FileForm) -> Imported:
        source, places = self.source, Places.of(self.settings, self.source.name)
        sha256 = file_digest(path)
        run = f"{IMPORTED}{sha256[:12]}"
        with landing_lock(self.settings, source.name):
            ledger = read_ledger(places)
            before = next((entry for entry in ledger.entries if entry.run == run), None)
            if before is not None and _is_in(before, places, self.versions()):
                refused = places.refused(run)
                return Imported(before, refused if refused.exists() else None, {}, known=True)
            sweep(places, ledger)
            spark, job = self.session(), landing_job(source.name)
            staged = scratch_folder(self.settings, job) / f"{run}.parquet"
            with shared_scratch(spark, self.settings, job) as folder:
                try:
                    rows = stage(path, form, self.origin.max_bytes, staged)
                    move_in(staged, folder / _STAGED)
                finally:
                    staged.unlink(missing_ok=True)
                origin = as_read(self.origin, form, path)
                work = ImportWork(self.settings, spark, places, source, origin, self.rules, run, folder)
                return work.land(ImportedFile(name=str(path), sha256=sha256, rows=rows, refused=0))


@dataclass(frozen=True)
class ImportWork:
    """One file, or one day of history that goes through flows, under way; `folder` holds what is made of it.

    Attributes:
        source: whose events are landed.
        origin: whose records, or events, they are made of.
        rules: of rows of `origin`.
        run: of landing.
    """

    settings: Settings
    spark: SparkSession
    places: Places
    source: Source
    origin: Source
    rules: tuple[RowRule, ...]
    run: str
    folder: StoredPath

    def land(self, file: ImportedFile) -> Imported:
        """Parse the rows of `file` that lie in `folder`, and land the good ones."""
        began = datetime.now(UTC)
        read = parsed_rows(self.spark, self.folder / _STAGED, (file.sha256, began), self.origin, self.rules)
        read = read.persist(StorageLevel.DISK_ONLY)
        try:
            return self.land_rows(read, file, began)
        finally:
            read.unpersist()

    def land_rows(self, read: DataFrame, file: ImportedFile, began: datetime) -> Imported:
        """Land the good ones of parsed rows, as of `parsed_rows`."""
        bad, events = read.where("reasons != ''"), good_events(read, self.origin)
        flows = FlowedEvents(self.spark, self.settings, read_catalog(self.settings.project))
        events = flows.made_of(events, self.origin, self.source)
        events = events.withColumn(_DAY, F.to_date("event_time"))
        self.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        events.write.partitionBy(_DAY).option("compression", "zstd").parquet(str(self.folder / "good"))
        reasons, files = self._refuse(bad), tuple(self._move())
        refused = self._refused_days(bad, files)
        entry = Entry(
            run=self.run,
            began=began,
            ended=datetime.now(UTC),
            columns=columns_of(self.source),
            files=files,
            imported=file.model_copy(update=refused),
        )
        record(self.places, entry)
        log.info("file imported", file=file.name, events=entry.events, refused=refused["refused"])
        return Imported(entry, self.places.refused(self.run) if reasons else None, reasons)

    def _refuse(self, bad: DataFrame) -> dict[str, int]:
        """Write the rows that cannot be used where people can read them; how many there are for each reason."""
        counts = bad.select(F.explode(F.split("reasons", ",")).alias("reason")).groupBy("reason").count().collect()
        if counts:
            text = F.coalesce(F.try_validate_utf8(F.col("value").cast("string")), F.hex("value"))
            shown = F.struct(
                F.col("offset").alias("row"), F.split("reasons", ",").alias("reasons"), text.alias("value")
            )
            folder = self.folder / "refused"
            bad.orderBy("offset").coalesce(1).select(F.to_json(shown)).write.text(str(folder))
            (written,) = folder.glob("part-*.txt")
            move_in(written, self.places.refused(self.run))
        return {row["reason"]: row["count"] for row in counts}

    def _refused_days(self, bad: DataFrame, files: Iterable[LandedFile]) -> dict[str, object]:
        """Count `refused` and `refused_days` of the ledger entry; a faulty time tells no day."""
        day = F.when(~F.col("reasons").contains("time_"), F.to_date("event_time"))
        counts = {row["day"]: row["count"] for row in bad.groupBy(day.alias("day")).count().collect()}
        total, unknown = sum(counts.values()), counts.pop(None, 0)
        weights = Counter(counts)
        for file in files:
            weights[file.day] += file.total
        return {"refused": total, "refused_days": _with_shares(counts, unknown, weights)}

    def _move(self) -> Iterator[LandedFile]:
        """Move what Spark has written to its place in landing."""
        for folder in find_all(self.folder / "good", f"{_DAY}=*"):
            day = date.fromisoformat(folder.name.removeprefix(f"{_DAY}="))
            for path in find_all(folder, "*.parquet"):
                target = self.places.landed(day, self.run) / path.name
                landed = _landed_file(path, self.places.within(target), day)
                move_in(path, target)
                yield landed


def _is_in(entry: Entry, places: Places, published: Mapping[date, DayVersion]) -> bool:
    """Return whether `entry` has landed events, and none of them was withdrawn or lost since."""
    is_withdrawn = entry.imported is not None and bool(entry.imported.withdrawn)
    return entry.events > 0 and not is_withdrawn and not is_lost(entry, places, published)


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


def _landed_file(path: StoredPath, target: Path, day: date) -> LandedFile:
    """Describe the file `path` that becomes `target` in history."""
    with open_stored(path) as file:
        times = parquet.read_table(file, columns=["event_time", "ingested_at"])
    return LandedFile(
        path=target,
        day=day,
        rows={PARTITION: rows_in(path)},
        late=0,
        newest_event=compute.max(times["event_time"]).as_py(),
        newest_append=compute.max(times["ingested_at"]).as_py(),
        bytes=size_of(path),
        sha256=digest(path),
    )
