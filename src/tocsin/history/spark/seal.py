"""Sealing: what landed for some days, each event once, bucketed and sorted, judged and published.

A seal writes a new folder, so whatever goes wrong with it, what is published stays as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.durations import days_text
from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.model.names import sealing_job
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.settings import Settings
from tocsin.history.day_status import day_rules
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import BUCKETS, BrokenVersion, DayVersion, SealedFile, paths
from tocsin.history.landing_ledger import Entry, LandedFile, LandingLedger
from tocsin.history.parquet_files import digest, fault, rows_in
from tocsin.history.places import IMPORTED, Places, begin, end, stamp
from tocsin.history.seal_planning import chunks
from tocsin.history.spark.file_records import file_topic
from tocsin.history.spark.landed_day import LandedDay
from tocsin.history.spark.landing import disk_failure
from tocsin.history.spark.sealed_days import DAY, events_by_day
from tocsin.history.spark.shared_scratch import shared_scratch
from tocsin.platform.failures import in_a_line, is_disk
from tocsin.platform.storage.stored_path import ObjectPath, StoredPath, find_all, move_in, remove_tree, size_of
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.spark.day_gate import DayGate
from tocsin.quality.verdict import Severity, Verdict
from tocsin.spark.events import IDENTITY
from tocsin.spark.query.gaps import removed_upstream

log = structlog.get_logger()

_ROWS_OF_A_TASK = 200_000
_ROWS_AT_ONCE = 2_000_000
_NUMBERS = itertools.count(1)
_OPTIONS = {"compression": "zstd", "parquet.compression.codec.zstd.level": "3"}


class Unsealable(TocsinError):
    """Raised when what landed for a day cannot be sealed; the message says what to do. Other days are not affected."""


@dataclass(frozen=True)
class SealedDay:
    """Outcome of sealing a day: its new version, and the verdict on it."""

    day: date
    version: DayVersion
    verdict: Verdict


@dataclass(frozen=True)
class _Inputs:
    """All that a version is made of: what landed for the day and is not in `base`.

    Attributes:
        base: the version to take the rest from, since landing is removed some time after; None when all is there.
        earlier: the version that is published now.
        withdrawn: digests of imported files whose events are left out of `base`.
    """

    landed: LandedDay
    base: DayVersion | None
    earlier: DayVersion | None
    withdrawn: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sealer:
    """Seals days of one source; only for the holder of its sealing lock.

    `spark` is a session of `tocsin.spark.batch_session`. `run_id` is the run of a schedule that seals; empty if there
    is none.
    """

    spark: SparkSession
    settings: Settings
    source: Source
    table: DayTable
    gate: DayGate
    run_id: str = ""

    @property
    def places(self) -> Places:
        """Folders of the source."""
        return self.table.places

    def chunks(self, days: Sequence[date], ledger: LandingLedger) -> Iterator[tuple[date, ...]]:
        """Put days together that are sealed at once; in an object store, where nothing can be moved, each alone."""
        if isinstance(self.places.root, ObjectPath):
            return ((day,) for day in days)
        rows = {day: sum(file.total for file in ledger.files(day)) for day in days}
        return chunks(days, rows, _ROWS_AT_ONCE, neighbours=False)

    def seal(self, day: date, ledger: LandingLedger) -> SealedDay:
        """Seal `day` as a new version, and publish it unless the gate refuses.

        Raises:
            Unsealable: a landed file is gone or broken, or Spark cannot read what is in it.
            TocsinError: the gate cannot judge it, or the catalogue does not answer (TransientError).
            OSError: the disk is full or cannot be written.
        """
        done = self.seal_all([day], ledger)[day]
        if isinstance(done, Exception):
            raise done
        return done

    def seal_all(self, days: Sequence[date], ledger: LandingLedger) -> dict[date, SealedDay | Exception]:
        """Seal `days` together; returns what came of each: an exception, as from `seal`, harms no other."""
        done: dict[date, SealedDay | Exception] = {}
        inputs: dict[date, _Inputs] = {}
        try:
            published = self.table.published()
        except TocsinError as error:
            return dict.fromkeys(days, error)
        for day in days:
            try:
                inputs[day] = self._inputs(day, ledger, published.get(day))
            except Exception as error:
                done[day] = error
        if not inputs:
            return done
        try:
            return done | self._judge(self._seal(inputs, ledger))
        except Exception as error:
            if len(inputs) == 1 or is_disk(error):
                return done | dict.fromkeys(inputs, error)
            log.warning("retrying day by day", source=self.source.name, error=in_a_line(error))
        return done | {day: one for day in inputs for one in self.seal_all([day], ledger).values()}

    def _seal(self, inputs: Mapping[date, _Inputs], ledger: LandingLedger) -> dict[date, DayVersion]:
        name = f"v{stamp(datetime.now(UTC))}"
        folders = {day: self.places.version(day, name) for day in inputs}
        what = f"{self.source.name} {days_text(list(inputs))}"
        try:
            rows = sum(file.total for day in inputs for file in ledger.files(day))
            self._write(self._events(inputs), folders, rows)
            versions = {day: self._describe(day, name, ledger, one) for day, one in inputs.items()}
            for day, version in versions.items():
                self.table.rows.write(day, version)
        except (PySparkException, Py4JError) as error:  # the latter where Java has thrown an Error, as on a full disk
            _discard(folders.values())
            if failure := disk_failure(self.places, f"sealing {what}", error):
                raise failure from error
            raise Unsealable(f"{what}: Spark cannot seal it: {in_a_line(error)}") from error
        except BaseException:
            _discard(folders.values())
            raise
        return versions

    # --- what goes in -------------------------------------------------------------------------------------------------

    def _version(self, day: date, name: str | None) -> DayVersion | None:
        try:
            return None if name is None else self.table.rows.version(day, name)
        except BrokenVersion as error:
            log.error("published version unreadable, sealing from landed files alone", error=str(error))
            return None

    def _inputs(self, day: date, ledger: LandingLedger, published: str | None) -> _Inputs:
        earlier = self._version(day, published)
        entries = list(ledger.by_day.get(day, ()))
        gone = {entry.run for entry in entries for file in entry.of(day) if not (self.places.root / file.path).exists()}
        base = None
        if gone and earlier is not None and gone <= earlier.runs:
            base = earlier
            entries = [entry for entry in entries if entry.run not in earlier.runs]
        elif gone:
            what = (
                f"{self.source.name} {day}: landed files of {', '.join(sorted(gone))} are gone, and what is published"
            )
            mend = "import the files again" if all(run.startswith(IMPORTED) for run in gone) else "restore them"
            raise Unsealable(f"{what} lacks them; {mend}, or roll the day back to a version that has them")
        for entry in entries:
            for file in entry.of(day):
                _check(self.places, file, entry)
        taken = ledger.withdrawn.get(day, {}).keys() & (base.runs if base else frozenset())
        withdrawn = tuple(one.imported.sha256 for one in ledger.entries if one.run in taken and one.imported)
        return _Inputs(LandedDay(self.spark, self.places, self.source, day, entries), base, earlier, withdrawn)

    def _events(self, inputs: Mapping[date, _Inputs]) -> DataFrame:
        first, *others = [one.landed for one in inputs.values()]
        landed = first.events(others)
        bases = {day: one.base for day, one in inputs.items() if one.base is not None}
        if landed is not None and not bases:
            return landed
        sealed = events_by_day(self.spark, self.places, self.source, bases)
        for day, one in inputs.items():
            if one.withdrawn:
                topics = [file_topic(sha256) for sha256 in one.withdrawn]
                topic = F.right(F.col("raw_topic"), F.lit(len(topics[0])))  # a flow writes its name before it
                sealed = sealed.where(~((F.col(DAY) == F.lit(day)) & topic.isin(topics)))
        sealed = sealed.drop(DAY)
        return sealed if landed is None else sealed.unionByName(landed)

    # --- what comes out -----------------------------------------------------------------------------------------------

    def _write(self, events: DataFrame, folders: Mapping[date, StoredPath], rows: int) -> None:
        """Write one sorted file for each day and bucket; duplicates lie in one bucket and are dropped on the way."""
        key, buckets = self.source.key, BUCKETS
        table = f"sealing_{os.getpid()}_{next(_NUMBERS)}"  # the programs of an engine share a catalog
        once = events.repartition(tasks(rows, buckets), F.col(f"`{key}`")).dropDuplicates(
            [key, "event_time", *IDENTITY]
        )
        columns = [F.col(f"`{name}`") for name in columns_of(self.source)]
        self.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

        def write(into: StoredPath, *by: str) -> None:
            writer = once.select(*columns, *[F.to_date("event_time").alias(name) for name in by]).write
            writer = writer.format("parquet").bucketBy(buckets, key).sortBy(key, "event_time")
            writer = writer.partitionBy(*by) if by else writer
            writer.options(**_OPTIONS, path=str(into)).saveAsTable(table)
            self.spark.sql(f"DROP TABLE {table}")  # the files stay: it has a path of its own

        if len(folders) == 1:
            (folder,) = folders.values()
            write(folder)
            return
        with shared_scratch(self.spark, self.settings, sealing_job(self.source.name)) as scratch:
            write(scratch / table, DAY)
            for day, folder in folders.items():
                for path in find_all(scratch / table / f"{DAY}={day}", "*.parquet"):
                    move_in(path, folder / path.name)

    def _describe(self, day: date, name: str, ledger: LandingLedger, inputs: _Inputs) -> DayVersion:
        base, earlier = inputs.base, inputs.earlier
        files = [_sealed(path) for path in find_all(self.places.version(day, name), "[!._]*.parquet")]
        landed, rows = ledger.files(day), sum(file.rows for file in files)
        total = sum(file.total for file in landed)
        facts = DayFacts(
            source=self.source.name,
            day=day,
            version=name,
            rows=rows,
            landed=total,
            duplicates=total - rows,
            imported=sum(file.rows.get(-1, 0) for file in landed),
            late=sum(file.late for file in landed),
            quarantined=ledger.quarantined(day),
            partitions=ledger.partitions(day, self.settings.history.grace),
            removed=_removed(self.settings, self.source, day),
            newest_event=max((file.newest_event for file in landed), default=None),
            newest_append=max((file.newest_append for file in landed), default=None),
            read_through=ledger.read_through,
            changes=(base.facts.changes if base else ()) + inputs.landed.changes(),
            previous_rows=None if earlier is None else earlier.facts.rows,
        )
        return DayVersion(
            version=name,
            sealed_at=datetime.now(UTC),
            code=code(),
            key=self.source.key,
            buckets=BUCKETS,
            columns=columns_of(self.source),
            runs=ledger.runs(day) | (base.runs if base else frozenset()) - ledger.withdrawn.get(day, {}).keys(),
            base=base.version if base else None,
            facts=facts,
            files=tuple(files),
            rules=day_rules(self.settings, self.source.name),
            run_id=self.run_id,
        )

    def _judge(self, versions: Mapping[date, DayVersion]) -> dict[date, SealedDay | Exception]:
        """Judge each day, stage what is refused, and publish the others in one commit."""
        done: dict[date, SealedDay | Exception] = {}
        sealed = events_by_day(self.spark, self.places, self.source, versions)
        profiles = self.gate.profiles(sealed, DAY, [one.facts for one in versions.values()]) if versions else {}
        for day, version in versions.items():
            try:
                of_day = sealed.where(F.col(DAY) == F.lit(day)).drop(DAY)
                verdict = self.gate.judge(day, of_day, version.facts, profiles.get(day))
                report = None if verdict.report is None else str(verdict.report)
                summary = verdict.model_copy(update={"report": None}).text
                own = {"severity": verdict.severity.value, "report": report, "summary": summary}
                judged = version.model_copy(update=own)
                if not verdict.publishable:
                    self._refuse(day, judged, verdict)
                self.table.rows.write(day, judged)
                done[day] = SealedDay(day, judged, verdict)
            except Exception as error:
                done[day] = error
        passed = [one for one in done.values() if isinstance(one, SealedDay) and one.verdict.publishable]
        try:
            return done | self._publish(passed)
        except Exception as error:
            return done | {one.day: error for one in passed}

    def _refuse(self, day: date, version: DayVersion, verdict: Verdict) -> None:
        """Put a version on a branch of its own, for people to look at."""
        branch = self.table.stage(day, version.version, paths(self.places, day, version), _about([version]))
        failed = ", ".join(verdict.summary.failed)
        log.error("day refused", source=self.source.name, day=str(day), failed=failed, branch=branch)

    def _publish(self, days: Sequence[SealedDay]) -> dict[date, SealedDay | Exception]:
        if days:
            versions = {one.day: one.version for one in days}
            files = {day: (one.version, paths(self.places, day, one)) for day, one in versions.items()}
            self.table.publish_all(files, _about(list(versions.values())))
        done: dict[date, SealedDay | Exception] = {}
        for one in days:
            version = one.version.model_copy(update={"published_at": datetime.now(UTC)})
            self.table.rows.write(one.day, version)
            tell = log.warning if one.verdict.severity is Severity.WARNING else log.info
            tell("published", source=self.source.name, day=str(one.day), version=version.version,
                 verdict=one.verdict.text)  # fmt: skip
            done[one.day] = SealedDay(one.day, version, one.verdict)
        return done


def _about(versions: Sequence[DayVersion]) -> dict[str, str]:
    days = " ".join(str(one.facts.day) for one in versions)
    reports = " ".join(one.report for one in versions if one.report)
    first = versions[0]
    return {"tocsin.run": first.version, "tocsin.code": first.code, "tocsin.day": days, "tocsin.report": reports}


def tasks(rows: int, buckets: int) -> int:
    """Count the tasks that write a day of so many rows: as few as keep each small; a task writes whole buckets.

    A key that lies in one of `buckets` lies in one task, too, if their number is a divisor of it.
    """
    divisors = [number for number in range(1, buckets + 1) if buckets % number == 0]
    return next((number for number in divisors if number * _ROWS_OF_A_TASK >= rows), buckets)


@cache
def code() -> str:
    """Name what sealed a day: the version of Tocsin, and a fingerprint of this file."""
    return f"{installed_version('tocsin')}+{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}"


def _removed(settings: Settings, source: Source, day: date) -> int:
    """Count the records, perhaps of `day`, that were removed before the ingest, or a flow, had read them."""
    found = removed_upstream(settings, read_catalog(settings.project).feeders_of([source.name]))
    since, until = begin(day), end(day)
    touching = [gap for _, gap in found if (gap.since is None or gap.since < until) and gap.until > since]
    return sum(max(gap.records, gap.is_recreated) for gap in touching)  # of a former topic nobody knows how many


def _check(places: Places, file: LandedFile, entry: Entry) -> None:
    """Raise Unsealable unless a landed file is still what the ledger says."""
    broken = fault(places.root / file.path, size=file.bytes, rows=file.total, sha256=file.sha256)
    if broken is None:
        return
    what = f"{places.source} {file.day}: a landed file is broken: {broken}; restore it from a backup"
    if entry.imported is not None:
        raise Unsealable(f"{what}, or withdraw the import and import the file again")
    raise Unsealable(
        f"{what}; or, while Kafka keeps its events, remove {places.ledger}/{entry.run}.json and all entries of later"
        " runs there: the next seal reads them again"
    )


def _discard(folders: Iterable[StoredPath]) -> None:
    """Remove what a seal has written that failed; what a store keeps that is away, retention removes."""
    for folder in folders:
        with contextlib.suppress(TransientError):
            remove_tree(folder)


def _sealed(path: StoredPath) -> SealedFile:
    return SealedFile(name=path.name, rows=rows_in(path), bytes=size_of(path), sha256=digest(path))
