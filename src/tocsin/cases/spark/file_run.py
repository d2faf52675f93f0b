"""Run a detector on a file: read by the rules of ingest, found in as by a backfill, and nothing kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F

from tocsin.cases.case_report import FileReport, FileRequest, LeftOutRows
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import EPOCH, MICROSECOND, closed_before, step_of
from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.history.backfill.backfill_status import without_table
from tocsin.history.places import begin as day_begin
from tocsin.history.spark.file_records import (
    as_read,
    file_digest,
    good_events,
    parsed_rows,
    rules_for_files,
    staged_name,
)
from tocsin.history.spark.flowed_events import FlowedEvents
from tocsin.history.spark.sealed_days import with_tick
from tocsin.history.spark.table_versions import tables_of_days
from tocsin.ingest.files.past_rows import form_of, stage
from tocsin.spark.columns import any_null
from tocsin.spark.events import IDENTITY, event_columns

_TELL_SECONDS = 2.0
_NUMBERS_TOLD = 5
_MOST_WINDOWS = 2_000_000
_NO_EVENT = "not_an_event"
_RUN = "file"
_MOST_BYTES = 16 << 20  # of findings in one report
_EDGES = {"first": F.min, "last": F.max}


def run_on_file(
    spark: SparkSession, settings: Settings, request: FileRequest, folder: Path, tell: Callable[[str], object]
) -> FileReport:
    """Run the detector of `request` on its file; files of the run lie in `folder`, which the caller removes.

    ConfigError if it cannot run on a file, or that cannot be read; TocsinError if a joined table cannot be had.
    """
    begin, tell = time.monotonic(), _now_and_then(tell)
    catalog = read_catalog(settings.project)
    spec = catalog.detector(request.detector)
    source = catalog.only_source(spec)
    origin = source if request.is_events else catalog.origin(source.name, request.records)
    report = FileReport(detector=spec.name, version=spec.version, source=source.name)
    rules, form = rules_for_files(settings, origin) if not request.is_events else (), form_of(request.file)
    staged = folder / staged_name(file_digest(request.file))
    report.rows = stage(request.file, form, origin.max_bytes, staged, lambda count: tell(f"{count:,} rows read"))
    tell(f"parsing {report.rows:,} rows")
    if request.is_events:
        read = _recorded_events(spark.read.parquet(str(staged)), source)
    else:
        read = parsed_rows(spark, staged, datetime.now(UTC), as_read(origin, form, request.file), rules)
    kept = read.drop("value").persist(StorageLevel.DISK_ONLY)
    with ExitStack() as stack:
        stack.callback(kept.unpersist)
        _count(kept, report)
        events = _events_of(kept, request, origin)
        if origin.name != source.name:
            made = FlowedEvents(spark, settings, catalog).made_of(events, origin, source)
            events = with_tick(made.persist(StorageLevel.DISK_ONLY))
            stack.callback(made.unpersist)
            _count_events(events, F.lit(True), report)
        if report.events:
            tell(f"detecting in {report.events:,} events")
            _find(events, settings, (spec, source), report, request)
    report.seconds = time.monotonic() - begin
    return report


def _recorded_events(rows: DataFrame, source: Source) -> DataFrame:
    """Read records of an events topic, as `event`; a tick is ignored, what has no identity or no time is no event."""
    kinds = ", ".join(f"`{name}` {kind}" for name, kind in event_columns(source).items())
    event = F.from_json(F.col("value").cast("string"), kinds)
    read = rows.select(F.col("row").alias("offset"), event.alias("event"), "value")
    lacks = any_null([F.col("event").getField(name) for name in (*IDENTITY, "event_time")])
    is_tick = F.coalesce(F.col("event").getField("tick"), F.lit(False))
    reasons = F.when(lacks & ~is_tick, F.lit(_NO_EVENT)).otherwise(F.lit(""))
    return read.withColumns(
        {"event_time": F.col("event").getField("event_time"), "ignored": is_tick, "reasons": reasons}
    )


def _events_of(read: DataFrame, request: FileRequest, source: Source) -> DataFrame:
    if not request.is_events:
        return with_tick(good_events(read, source))
    # A topic holds an event again that was written before a crash and after it.
    return read.where("reasons = '' AND NOT ignored").select("event.*").dropDuplicates([*IDENTITY, "event_time"])


def _count_events(read: DataFrame, is_event: Column, report: FileReport) -> None:
    (all_of,) = read.agg(
        F.count_if(is_event).alias("events"),
        *(F.unix_micros(of(F.when(is_event, F.col("event_time")))).alias(name) for name, of in _EDGES.items()),
    ).collect()
    report.events = all_of["events"]
    if report.events:
        report.first, report.last = (EPOCH + all_of[name] * MICROSECOND for name in _EDGES)


def _count(read: DataFrame, report: FileReport) -> None:
    is_event = (F.col("reasons") == "") & ~F.col("ignored")
    reasons = F.when(F.col("ignored"), F.array(F.lit("ignored"))).otherwise(F.split("reasons", ","))
    _count_events(read, is_event, report)
    if report.events == report.rows:
        return
    left_out = read.where(~is_event).select("offset", F.explode(reasons).alias("reason"))
    number = F.row_number().over(Window.partitionBy("reason").orderBy("offset"))
    firsts: dict[str, list[int]] = {}
    for row in left_out.withColumn("number", number).where(F.col("number") <= _NUMBERS_TOLD).collect():
        firsts.setdefault(row["reason"], []).append(row["offset"])
    for row in left_out.groupBy("reason").count().orderBy(F.desc("count"), "reason").collect():
        report.left_out.append(
            LeftOutRows(reason=row["reason"], count=row["count"], rows=sorted(firsts[row["reason"]]))
        )


def _take(found: DataFrame, report: FileReport, most: int) -> None:
    at = F.coalesce(*[F.get_json_object("value", f"$.{name}") for name in ("window_start", "event_time_max")])
    level = F.get_json_object("value", "$.level")
    counts = found.agg(F.count(F.lit(1)).alias("total"), F.count_if(level == "urgent").alias("urgent")).collect()[0]
    report.total, report.urgent = counts["total"], counts["urgent"]
    size = 0
    for row in found.orderBy(at, "key").limit(most).toLocalIterator():
        size += len(row["value"].encode())
        if size > _MOST_BYTES:
            break
        report.findings.append(Finding.model_validate_json(row["value"]))


def _now_and_then(tell: Callable[[str], object]) -> Callable[[str], object]:
    last = time.monotonic()

    def tell_now_and_then(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > _TELL_SECONDS:
            last = time.monotonic()
            tell(text)

    return tell_now_and_then


def _end_of_silence(file: Path, spec: DetectorSpec, covered: tuple[datetime, datetime]) -> datetime:
    """Find the time up to which windows begin that the `covered` time holds whole; one wrong time makes it decades."""
    (first, after), step = covered, step_of(spec)
    if (count := (after - first) // step) > _MOST_WINDOWS:
        what = f"has events from {first:%Y-%m-%d %H:%M} to {after:%Y-%m-%d %H:%M}: {count:,} windows to look through, "
        what += f"and {_MOST_WINDOWS:,} are the most; leave out lines with a wrong time, or take fewer days"
        raise ConfigError.one(file, what)
    return closed_before(spec, after) - MICROSECOND


def _without_tables(settings: Settings, spec: DetectorSpec, days: Sequence[date]) -> dict[date, str]:
    """Find the days for which a table that `spec` joins can have no rows, and why; TocsinError if these are all `days`.

    What looks back takes their events without a row, as its stream did.
    """
    if spec.looks_back:
        return {}
    no_table = without_table(settings, read_catalog(settings.project))
    lost = {day: why for day in days for why in filter(None, (no_table(name, day) for name in spec.tables))}
    if len(lost) == len(days):
        raise TocsinError(f"{days[0]} {lost[days[0]]}")
    return lost


def _find(
    events: DataFrame,
    settings: Settings,
    detector: tuple[DetectorSpec, Source],
    report: FileReport,
    request: FileRequest,
) -> None:
    spec, source = detector
    assert report.first is not None
    assert report.last is not None
    first, after = report.first, report.last + MICROSECOND
    # What is missing can be told only of windows that the file covers.
    end = after if spec.expect is None or spec.window is None else _end_of_silence(request.file, spec, (first, after))
    days = [first.date() + timedelta(days=n) for n in range((report.last.date() - first.date()).days + 1)]
    report.days_left_out = _without_tables(settings, spec, days)
    days = [day for day in days if day not in report.days_left_out]
    if report.days_left_out:
        events = events.where(F.to_date("event_time").isin(days))
        first = max(first, day_begin(days[0]))
    watched = Observation()
    reader = EventReader(
        lambda *_: events, is_exact=True, tables=lambda spark: tables_of_days(spark, settings, spec, days)
    )
    wanted = Range(start=first, end=end, run_id=_RUN, observed=watched)
    found = find_in_range(events.sparkSession, reader, spec, [source], wanted).persist(StorageLevel.DISK_ONLY)
    try:
        _take(found, report, request.most)
        if spec.has_step:
            report.failed_in_step = watched.get["failed_in_step"]
    finally:
        found.unpersist()
