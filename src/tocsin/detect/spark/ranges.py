"""Run a detector over a past range by one query: the same `detect` and the same findings as on the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.model.detector import DetectorSpec, Span
from tocsin.declare.model.durations import EPOCH, MICROSECOND, last_number, reach, start
from tocsin.declare.model.finding import Origin
from tocsin.declare.model.source import Source
from tocsin.detect.spark.expected_windows import Known, Silence, fill_in
from tocsin.detect.spark.findings import Emission, make_findings, make_scores
from tocsin.detect.spark.model_scores import feature_function, features_of
from tocsin.detect.spark.plan import check_range, read_plan
from tocsin.detect.spark.step_query import detector_function
from tocsin.spark.events import SourceEvents, by_source, prepare_events
from tocsin.spark.tables.spark.joined_tables import JoinedTables


@dataclass(frozen=True, kw_only=True)
class Range:
    """The windows to compute: those that begin from `start` up to, not including, `end`, in UTC.

    Without windows: the events, and timers, of that time. `run_id` and `origin` are put into each finding, and
    `observed` takes what is told of `step`. Only windows of `spans` are looked through for silence, if there are any.
    With `is_first` there was nothing before: as on a stream, silence counts from the window of the first event on.
    `text` is that of the detector's file in the version that is wanted; without it, what the file holds now.
    """

    start: datetime
    end: datetime
    run_id: str
    origin: Origin = Origin.BACKFILL
    observed: Observation | None = None
    spans: Sequence[Span] = ()
    is_first: bool = False
    text: bytes | None = None


@dataclass(frozen=True)
class EventReader:
    """Reads events: session and source to a DataFrame of its events, each once, with the column `tick`.

    `is_exact` says that no event and no window lies outside of the range, so nothing has to be left out. `tables` makes
    the tables that the detector joins.
    """

    events: Callable[[SparkSession, Source], DataFrame]
    is_exact: bool = False
    tables: Callable[[SparkSession], JoinedTables | None] = lambda _: None


def find_in_range(
    spark: SparkSession, read: EventReader, spec: DetectorSpec, sources: Sequence[Source], wanted: Range
) -> DataFrame:
    """Make records of the findings topic of what `read` holds of the range `wanted` of the detector `spec`.

    Raises a ConfigError if the detector's query is not one that runs, or (`StreamOnly`) not on a range of time.
    """
    rows = _rows_in_range(spark, read, spec, sources, wanted)
    return make_findings(rows, spec, Emission(origin=wanted.origin, run_id=wanted.run_id, observed=wanted.observed))


def score_range(
    spark: SparkSession, read: EventReader, spec: DetectorSpec, sources: Sequence[Source], wanted: Range
) -> DataFrame:
    """Make of what `find_in_range` looks at the scores above the limits of `spec`: see `make_scores`. Errors alike."""
    return make_scores(_rows_in_range(spark, read, spec, sources, wanted), spec, wanted.observed)


def _rows_in_range(
    spark: SparkSession, read: EventReader, spec: DetectorSpec, sources: Sequence[Source], wanted: Range
) -> DataFrame:
    """Give what the function of `spec` returns about the range, and about entities that are missing in it."""
    function = detector_function(spec, sources[0], until=wanted.end, text=wanted.text)
    tables = read.tables(spark)
    rows = function(_events(spark, read, spec, sources, wanted), tables)
    check_range(read_plan(rows, spec), spec)
    silence = Silence.of(spec)
    if not read.is_exact and silence is None:  # those of expected entities are chosen by the windows
        rows = rows.where(_begins(wanted, spec))
    if silence is not None:
        begin = _first(read.events(spark, sources[0]), spec, wanted) if wanted.is_first else wanted.start
        spans = wanted.spans or [(begin, wanted.end)]
        rows = fill_in(rows, silence, spans, Known(tables))
    return rows


def features_in_range(
    spark: SparkSession, read: EventReader, spec: DetectorSpec, sources: Sequence[Source], wanted: Range
) -> DataFrame:
    """Compute the features of the windows of `wanted`, as `train` gets them; errors as of `find_in_range`."""
    rows = feature_function(spec, wanted.text)(_events(spark, read, spec, sources, wanted), read.tables(spark))
    return features_of(rows if read.is_exact else rows.where(_begins(wanted, spec)), spec)


def _events(
    spark: SparkSession, read: EventReader, spec: DetectorSpec, sources: Sequence[Source], wanted: Range
) -> DataFrame | SourceEvents:
    time, last = F.col("event_time"), wanted.end + reach(spec, wanted.end)

    def events_of(source: Source) -> DataFrame:
        events = read.events(spark, source)
        if not read.is_exact:
            first = wanted.start - spec.looks_back
            events = events.where((time >= F.lit(first)) & (time < F.lit(last)))
        return prepare_events(events, spec, None, is_only=len(sources) == 1)

    return by_source(sources, spec.path, spec, events_of)


def _first(events: DataFrame, spec: DetectorSpec, wanted: Range) -> datetime:
    """Find the start of the window that holds the first of `events`; the end of the range where there is none."""
    first = events.agg(F.min(F.unix_micros("event_time")).alias("at")).collect()[0]["at"]
    if first is None:
        return wanted.end
    return max(wanted.start, start(spec, last_number(spec, EPOCH + first * MICROSECOND)))


def _begins(wanted: Range, spec: DetectorSpec) -> Column:
    if spec.has_step:
        return (F.col("at") >= F.unix_micros(F.lit(wanted.start))) & (F.col("at") < F.unix_micros(F.lit(wanted.end)))
    moment = F.col("event_time") if spec.window is None else F.col("window.start")
    return (moment >= F.lit(wanted.start)) & (moment < F.lit(wanted.end))
