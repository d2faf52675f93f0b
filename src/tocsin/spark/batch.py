"""A detector over a past range as one batch: the same `detect` and the same findings as on the stream.

Days that are published are read from history, anything else from what Kafka still holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin import logs
from tocsin.backfill.planning import reach
from tocsin.detector import DetectorSpec
from tocsin.errors import ConfigError
from tocsin.finding import Origin
from tocsin.history.places import Places
from tocsin.history.standing import sealed_days
from tocsin.lock import hold
from tocsin.settings import Settings, load_settings
from tocsin.source import Source
from tocsin.spark.drain import SLACK
from tocsin.spark.entry import OK, code_of
from tocsin.spark.events import parse_events, prepared, used_columns
from tocsin.spark.findings import Emission, findings
from tocsin.spark.function import load_detect, scored
from tocsin.spark.history import sealed_events, with_tick
from tocsin.spark.plan import check_range, read_plan
from tocsin.spark.session import kafka_options, running_batch
from tocsin.spark.topic import Topic
from tocsin.versions import catalog_in_force

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Range:
    """What to compute: the windows of `detector` that begin from `start` up to, not including, `end`, in UTC.

    Without windows: the events of that time. `run_id` is put into each finding.
    """

    detector: str
    start: datetime
    end: datetime
    run_id: str


@dataclass(frozen=True)
class Read:
    """Where events come from: a session and the used columns (None: all) to a DataFrame as `parse_events` makes it.

    `once` says that each event is in it once, and that Spark itself reads only columns that are used. `exact` says that
    no event and no window lies outside of the range, so nothing has to be left out.
    """

    events: Callable[[SparkSession, frozenset[str] | None], DataFrame]
    once: bool = False
    exact: bool = False


def run(settings: Settings, wanted: Range) -> int:
    """Write the findings of `wanted` to the findings topic; returns how many there are.

    A second run writes the same findings with the same ids again, which changes nothing. Nothing is written unless all
    windows of the range can be computed whole.

    Raises:
        ConfigError: there is no such detector, the range is empty or not over, or neither history nor Kafka holds all
            of it.
        LockHeld: another batch of this detector runs; a retry helps once it has ended.
        TransientError: Kafka or the catalogue of history cannot be reached; a retry helps.
        BrokenVersion: a published day cannot be read; sealing it again may help.
    """
    catalog = catalog_in_force(settings)
    spec = catalog.detector(wanted.detector)
    source, job = catalog.source(spec.source), f"batch:{spec.name}"
    _check(wanted, spec, source, datetime.now(UTC))
    with hold(settings.checkpoint(job) / "lock"):
        read = _reading(settings, spec, source, wanted)
        with running_batch(settings, job) as spark:
            rows = findings_of(spark, read, spec, source, wanted).persist()
            count = rows.count()
            rows.write.format("kafka").options(**kafka_options(settings), topic=settings.names.findings).save()
    log.info("written", detector=spec.name, findings=count, start=str(wanted.start), end=str(wanted.end))
    return count


def main(arguments: list[str] | None, *, doc: str) -> int:
    """Run the batch that `arguments` name; returns the exit code.

    0 done, 1 failed and may go well when tried again, 2 something must be fixed first, 3 another batch of it runs, 4
    the disk is full or not writable.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("detector")
    parser.add_argument("--start", type=_moment, required=True, help="first window that counts, ISO-8601, UTC")
    parser.add_argument("--end", type=_moment, required=True, help="the first that counts no more")
    parser.add_argument("--run-id", required=True, help="put into each finding")
    given = parser.parse_args(arguments)
    logs.configure(f"batch:{given.detector}")
    wanted = Range(detector=given.detector, start=given.start, end=given.end, run_id=given.run_id)
    return code_of(lambda: _run(wanted))


def _run(wanted: Range) -> int:
    run(load_settings(), wanted)
    return OK


def _check(wanted: Range, spec: DetectorSpec, source: Source, now: datetime) -> None:
    where, over = f"range of {spec.name}", _last(wanted, spec) + source.lateness + SLACK
    if wanted.start >= wanted.end:
        raise ConfigError.one(where, f"{wanted.start} is not before {wanted.end}", key="start")
    if over > now:
        what = f"its last window can still change; ask again after {over:%Y-%m-%d %H:%M:%S} UTC, or for an earlier end"
        raise ConfigError.one(where, what, key="end")


def _check_kept(topic: Topic, wanted: Range, spec: DetectorSpec) -> None:
    """Where retention has removed records, a window that begins before the first one kept would be counted in part."""
    first, ends = topic.bounds()
    removed = {partition: offset for partition, offset in first.items() if offset}
    kept = [topic.appended_at(partition, offset, ends[partition]) for partition, offset in removed.items()]
    since = max((moment for moment in kept if moment is not None), default=None)
    if since is not None and wanted.start < since:
        what = f"{topic.name} holds no longer all records from before {since:%Y-%m-%d %H:%M:%S} UTC"
        what += ", and history has not all of its days (`tocsin history list`); begin later"
        raise ConfigError.one(f"range of {spec.name}", what, key="start")


def _reading(settings: Settings, spec: DetectorSpec, source: Source, wanted: Range) -> Read:
    """How to read what the range needs: from history if it has all days, else from Kafka.

    Raises:
        ConfigError: neither has all of it.
    """
    days = sealed_days(settings, source, wanted.start, _last(wanted, spec))
    if days is not None:
        log.info("reads history", days=len(days), versions=sorted(version.version for version in days.values()))
        places = Places.of(settings, source.name)
        return Read(lambda spark, _: with_tick(sealed_events(spark, places, source, days)), once=True)
    topic = Topic(settings, f"batch:{spec.name}", settings.names.events(source.name))
    try:
        _check_kept(topic, wanted, spec)
    finally:
        topic.close()
    log.info("reads Kafka", topic=topic.name)
    return Read(lambda spark, used: parse_events(_records(spark, settings, spec, source, wanted), source, used))


def findings_of(spark: SparkSession, read: Read, spec: DetectorSpec, source: Source, wanted: Range) -> DataFrame:
    """Keys and values of the findings topic for what `read` holds of the range `wanted` of the detector `spec`.

    Raises:
        ConfigError: the detector's query is not one that runs, or (`StreamOnly`) not on a range of time.
    """
    emission = Emission(origin=Origin.BACKFILL, run_id=wanted.run_id)
    detect = load_detect(spec)

    def made(used: frozenset[str] | None) -> DataFrame:
        events = read.events(spark, used)
        time = F.col("event_time")
        near = (time >= F.lit(wanted.start)) & (time < F.lit(_last(wanted, spec)))
        near_events = events if read.exact else events.where(near)
        rows = scored(detect, spec, prepared(near_events, spec, source.lateness, once=read.once))
        if used is None:
            check_range(read_plan(rows, spec), spec)
        return findings(rows if read.exact else rows.where(_begins(wanted, spec)), spec, emission)

    whole = made(None)
    return whole if read.once else made(used_columns(whole, source))


def _records(spark: SparkSession, settings: Settings, spec: DetectorSpec, source: Source, wanted: Range) -> DataFrame:
    """All records that can hold an event of the range: one is appended at most `max_ahead` before its event time."""
    since = wanted.start - source.max_ahead
    options = {
        "subscribe": settings.names.events(source.name),
        "startingTimestamp": str(int(since.timestamp() * 1000)),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    return spark.read.format("kafka").options(**kafka_options(settings), **options).load()


def _begins(wanted: Range, spec: DetectorSpec) -> Column:
    moment = F.col("event_time") if spec.window is None else F.col("window.start")
    return (moment >= F.lit(wanted.start)) & (moment < F.lit(wanted.end))


def _last(wanted: Range, spec: DetectorSpec) -> datetime:
    """The first moment that no window of the range holds."""
    return wanted.end + reach(spec, wanted.end)


def _moment(text: str) -> datetime:
    """ISO-8601; UTC where it names no zone."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
