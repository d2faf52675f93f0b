"""The findings of whole days of history, computed and not yet anybody's: neighbouring days by one query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import psutil
from pyspark.sql import SparkSession

from tocsin.backfill.backfill_planning import inputs
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.history.day_status import published_days
from tocsin.history.places import Places, begin, end
from tocsin.history.spark.sealed_days import sealed_events, with_tick
from tocsin.model.detector import DetectorSpec
from tocsin.model.errors import TocsinError
from tocsin.model.finding import Finding
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.sparkjob import jvm
from tocsin.tables.spark.joined_tables import open_tables

ROWS_AT_ONCE = 100_000_000
"""Days of so many events together are one query: what fails costs no more, and findings come in at that pace."""

MOST_FINDINGS = 200_000
"""Of one query: they are handled in memory."""


@dataclass(frozen=True)
class Found:
    """The findings of one query.

    Attributes:
        by_day: each day that was asked for, with its findings in an order that is the same each time.
        cpu_seconds: that it took, of Python and Spark together.
    """

    by_day: dict[date, list[Finding]]
    cpu_seconds: float


class Days:
    """The published days of one source, as they are when this is made.

    Raises:
        TransientError: the catalogue of history does not answer; a retry helps.
    """

    def __init__(self, settings: Settings, source: Source) -> None:
        self._settings = settings
        self._places, self._source = Places.of(settings, source.name), source
        self._sealed = published_days(settings, source)
        self.versions = {day: one.version for day, one in self._sealed.items()}
        self.rows = {day: one.facts.rows for day, one in self._sealed.items()}

    def findings(self, spark: SparkSession, spec: DetectorSpec, days: Sequence[date], run_id: str) -> Found:
        """Run `spec` over `days`: neighbours in order, whose inputs are all published.

        Raises:
            ConfigError: the detector's query is not one that runs.
            TocsinError: there are more findings than `MOST_FINDINGS`; fewer days, or higher limits, help.
        """
        before = _cpu_seconds()
        read = {other: self._sealed[other] for day in days for other in inputs(day, spec)}
        reading = EventReader(
            lambda spark: with_tick(sealed_events(spark, self._places, self._source, read)),
            is_exact=set(read) == set(days),  # a sealed day holds its own events alone, and these windows end with it
            tables=lambda spark: open_tables(spark, self._settings, spec.tables, spec.path),
        )
        wanted = Range(start=begin(days[0]), end=end(days[-1]), run_id=run_id)
        rows = find_in_range(spark, reading, spec, self._source, wanted).limit(MOST_FINDINGS + 1).collect()
        if len(rows) > MOST_FINDINGS:
            what = f"{days[0]} to {days[-1]} hold more than {MOST_FINDINGS:,} findings; raise its limits"
            raise TocsinError(f"{spec.path}: {what}")
        found: dict[date, list[Finding]] = defaultdict(list)
        for row in rows:
            finding = Finding.model_validate_json(row.value)
            found[finding.day].append(finding)
        ordered = {day: sorted(found[day], key=lambda one: (one.moment, one.finding_id)) for day in days}
        return Found(ordered, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    """Of this process and of Spark's JVM since they began."""
    total = 0.0
    for process in (psutil.Process(), psutil.Process(jvm.process_id())):
        times = process.cpu_times()
        total += times.user + times.system
    return total
