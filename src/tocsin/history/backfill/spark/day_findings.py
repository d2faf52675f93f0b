"""The findings of whole days of history, computed and not yet anybody's: neighbouring days by one query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date

import psutil
import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession

from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import closed_before
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.detect.spark.findings import FAULTS
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range, score_range
from tocsin.history.backfill.backfill_planning import inputs
from tocsin.history.day_status import published_days
from tocsin.history.day_versions import DayVersion
from tocsin.history.places import Places, begin, end
from tocsin.history.spark.open_day import OpenDay, read_open_day
from tocsin.history.spark.sealed_days import sealed_events, with_tick
from tocsin.history.spark.table_versions import tables_of_days
from tocsin.platform.failures import in_a_line
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.spark.engine import jvm

log = structlog.get_logger()

ROWS_AT_ONCE = 100_000_000
"""Days of so many events together are one query: what fails costs no more, and findings come in at that pace."""

MOST_FINDINGS = 200_000
"""Of one query: they are handled in memory."""


@dataclass(frozen=True)
class Found:
    """The findings of one query, by each day asked for, in an order that is the same each time.

    `cpu_seconds` are those of Python and Spark together.
    """

    by_day: dict[date, list[Finding]]
    cpu_seconds: float


class Days:
    """The published days of one source, as they are when this is made: the version of each, and how many events it has.

    `open` is the current day, once `read_today` has read it. TransientError if the catalogue of history does not
    answer; a retry helps.
    """

    def __init__(self, settings: Settings, source: Source) -> None:
        self._settings = settings
        self._places, self.source = Places.of(settings, source.name), source
        self._sealed = published_days(settings, source)
        self.versions = {day: one.version for day, one in self._sealed.items()}
        self.rows = {day: one.facts.rows for day, one in self._sealed.items()}
        self.open: OpenDay | None = None

    def read_today(self, spark: SparkSession, folder: StoredPath) -> OpenDay:
        """Read the current day from Kafka, by way of files in `folder`; see `read_open_day`."""
        self.open = read_open_day(spark, self._settings, self.source, folder)
        self.rows[self.open.day] = self.open.events.count()
        return self.open

    def sealed_inputs(self, day: date, spec: DetectorSpec) -> list[date]:
        """List the days, sealed or to be sealed, that a run of `day` reads: of the open day those before it."""
        days = inputs(day, spec, min(self._sealed, default=day))
        return [one for one in days if one < day] if self.open and day == self.open.day else days

    def findings(self, spark: SparkSession, spec: DetectorSpec, days: Sequence[date], run_id: str) -> Found:
        """Run `spec` over `days`: neighbours in order, whose inputs are all published; or the open day by itself.

        ConfigError if the detector's query does not run. TocsinError if there are more findings than `MOST_FINDINGS`;
        fewer days, or higher limits, help.
        """
        before = _cpu_seconds()
        wanted = replace(self._range(days, spec), run_id=run_id, observed=(watched := Observation()))
        records = find_in_range(spark, self._reader(days, spec), spec, [self.source], wanted)
        rows = records.limit(MOST_FINDINGS + 1).collect()
        _tell_failed(spec, watched)
        if len(rows) > MOST_FINDINGS:
            what = f"{days[0]} to {days[-1]} hold more than {MOST_FINDINGS:,} findings; raise its limits"
            raise TocsinError(f"{spec.path}: {what}")
        found: dict[date, list[Finding]] = defaultdict(list)
        for row in rows:
            finding = Finding.model_validate_json(row.value)
            found[finding.day].append(finding)
        ordered = {day: sorted(found[day], key=lambda one: (one.moment, one.finding_id)) for day in days}
        return Found(ordered, _cpu_seconds() - before)

    def write_scores(self, spark: SparkSession, spec: DetectorSpec, days: Sequence[date], folder: StoredPath) -> float:
        """Write the scores of `spec` over `days` (see `make_scores`) as Parquet; returns the CPU-seconds it took.

        ConfigError if the detector's query does not run.
        """
        before = _cpu_seconds()
        reader, wanted = self._reader(days, spec), replace(self._range(days, spec), observed=(watched := Observation()))
        score_range(spark, reader, spec, [self.source], wanted).write.parquet(str(folder))
        _tell_failed(spec, watched)
        return _cpu_seconds() - before

    def _reader(self, days: Sequence[date], spec: DetectorSpec) -> EventReader:
        read = self.read_of(days, spec)
        return EventReader(
            lambda spark, _: self.events(spark, spec, days),
            is_exact=set(read) == set(days),  # a sealed day holds its own events alone, and these windows end with it
            tables=lambda spark: tables_of_days(spark, self._settings, spec, {*read, *days}),
        )

    def read_of(self, days: Sequence[date], spec: DetectorSpec) -> dict[date, DayVersion]:
        """Return the sealed days that a run of `spec` over `days` reads."""
        return {other: self._sealed[other] for day in days for other in self.sealed_inputs(day, spec)}

    def events(self, spark: SparkSession, spec: DetectorSpec, days: Sequence[date]) -> DataFrame:
        """Read the events that a run of `spec` over `days` reads, each once, with the column `tick`."""
        rows = sealed_events(spark, self._places, self.source, self.read_of(days, spec))
        return with_tick(rows.unionByName(self.open.events) if self.open and self.open.day in days else rows)

    def _range(self, days: Sequence[date], spec: DetectorSpec) -> Range:
        """Take all windows that begin on `days`; of the open day those that are whole and closed."""
        first, last = begin(days[0]), end(days[-1])
        if self.open and self.open.day in days:
            until = self.open.until if spec.window is None else closed_before(spec, self.open.until)
            first, last = self.open.since, min(last, max(until, self.open.since))
        return Range(start=first, end=last, run_id="", is_first=not any(day < days[0] for day in self._sealed))


def _tell_failed(spec: DetectorSpec, watched: Observation) -> None:
    if spec.has_step and (failed := watched.get["failed_in_step"]):
        log.warning("events left out by step", detector=spec.name, count=failed, first=watched.get[FAULTS])


@contextmanager
def blaming(spec: DetectorSpec) -> Iterator[None]:
    """Raise a TocsinError that names the file of `spec` where its query fails in the block."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise TocsinError(f"{spec.path}: {in_a_line(error)}") from error


def _cpu_seconds() -> float:
    """Of this process and of Spark's JVM since they began."""
    total = 0.0
    for process in (psutil.Process(), psutil.Process(jvm.process_id())):
        times = process.cpu_times()
        total += times.user + times.system
    return total
