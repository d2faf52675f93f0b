"""Run a detector over a past range by one query: the same `detect` and the same findings as on the stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.detect.spark.plan import check_range, read_plan
from tocsin.model.detector import DetectorSpec, reach
from tocsin.model.finding import Origin
from tocsin.model.source import Source
from tocsin.sparkjob.declared_function import DeclaredFunction
from tocsin.sparkjob.events import prepare_events
from tocsin.tables.spark.joined_tables import JoinedTables


@dataclass(frozen=True, kw_only=True)
class Range:
    """The windows to compute: those that begin from `start` up to, not including, `end`, in UTC.

    Without windows: the events of that time. `run_id` and `origin` are put into each finding.
    """

    start: datetime
    end: datetime
    run_id: str
    origin: Origin = Origin.BACKFILL


@dataclass(frozen=True)
class EventReader:
    """A source of events: a session to a DataFrame of events, each once, with the column `tick`.

    `is_exact` says that no event and no window lies outside of the range, so nothing has to be left out. `tables` makes
    the tables that the detector joins.
    """

    events: Callable[[SparkSession], DataFrame]
    is_exact: bool = False
    tables: Callable[[SparkSession], JoinedTables | None] = lambda _: None


def find_in_range(
    spark: SparkSession, read: EventReader, spec: DetectorSpec, source: Source, wanted: Range
) -> DataFrame:
    """Make records of the findings topic of what `read` holds of the range `wanted` of the detector `spec`.

    Raises:
        ConfigError: the detector's query is not one that runs, or (`StreamOnly`) not on a range of time.
    """
    events, time = read.events(spark), F.col("event_time")
    if not read.is_exact:
        last = wanted.end + reach(spec, wanted.end)
        events = events.where((time >= F.lit(wanted.start)) & (time < F.lit(last)))
    prepared = prepare_events(events, spec, source.lateness, once=True)
    rows = DeclaredFunction(spec.path, "detect")(prepared, read.tables(spark))
    check_range(read_plan(rows, spec), spec)
    if not read.is_exact:
        rows = rows.where(_begins(wanted, spec))
    return make_findings(rows, spec, Emission(origin=wanted.origin, run_id=wanted.run_id))


def _begins(wanted: Range, spec: DetectorSpec) -> Column:
    moment = F.col("event_time") if spec.window is None else F.col("window.start")
    return (moment >= F.lit(wanted.start)) & (moment < F.lit(wanted.end))
