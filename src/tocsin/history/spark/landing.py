"""Land events: what is new in a source's topic becomes Parquet files by event day, and the ledger records it.

A run reads from where the one before ended up to where the topic ended when it began. Files come first, the ledger's
entry last, so a run that is killed has landed nothing, and the next one removes what it left.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.names import landing_job
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.settings import Settings
from tocsin.history.kafka_reach import find_reach
from tocsin.history.landing_ledger import (
    PARTITION,
    Entry,
    LandedFile,
    OffsetSpan,
    Quarantined,
    landing_lock,
    read_ledger,
    record,
    sweep,
)
from tocsin.history.parquet_files import digest
from tocsin.history.places import Places, end, stamp
from tocsin.platform.failures import is_store, is_unwritable, refusal, root_cause
from tocsin.platform.kafka.client import is_recreated
from tocsin.platform.kafka.reader import Offsets, TopicReader
from tocsin.platform.kafka.topics import QUARANTINE_DAYS
from tocsin.platform.storage.stored_path import ObjectPath, StoredPath, move_in, remove_tree, size_of
from tocsin.quality.day_facts import Hole
from tocsin.spark.events import event_columns
from tocsin.spark.session import LONG_POLLS, read_topics

RUN, DAY = "tocsin_run", "tocsin_day"
"""The columns by which `write_by_day` makes folders; what has no day is no event."""

_APPENDED = "tocsin_appended"
_NEEDED = ("raw_topic", "raw_partition", "raw_offset", "event_time", "ingested_at")
_TIMEOUT_SECONDS = 15.0

log = structlog.get_logger()


@dataclass(frozen=True)
class TopicRange:
    """The part of a topic that a run reads.

    Attributes:
        topic_id: Kafka's id of the topic; "" if it has none.
        starts, ends: of each partition the first offset to read, and the first not to read.
        before: of each partition what earlier runs have read; empty for a topic that is new, or was recreated.
        lost: what Kafka held before `starts` and no run has read.
    """

    run: str
    topic: str
    topic_id: str
    starts: Offsets
    ends: Offsets
    before: Mapping[int, OffsetSpan] = field(default_factory=dict)
    lost: Mapping[int, Hole] = field(default_factory=dict)

    def append_before(self, partition: int) -> datetime | None:
        """Date the last record before `starts` that was ever read, UTC; None without one."""
        lost, before = self.lost.get(partition), self.before.get(partition)
        return lost.after if lost else before.newest_append if before else None


def land_new(settings: Settings, source: Source, session: Callable[[], SparkSession]) -> Entry:
    """Land what `events.<source>` holds since the last run; returns what it landed, perhaps nothing.

    A topic that was deleted and created again is read from its start, and what was unread of the former is a hole.
    `session` is called only if there is something to read.

    Raises:
        LockHeld: an import into this source runs; a retry helps once it has ended.
        TransientError: Kafka cannot be reached, or removed records while they were read; a retry helps.
        BrokenLedger: an entry of the ledger cannot be read.
        OSError: the disk is full or cannot be written; nothing is landed, a retry helps once there is room.
    """
    places = Places.of(settings, source.name)
    with landing_lock(settings, source.name):
        ledger = read_ledger(places)
        sweep(places, ledger)
        try:
            with _reader(settings, source, settings.names.events(source.name)) as reader:
                wanted = _find_new(reader, ledger.last)
            entry = _land(settings, source, places, wanted, session)
            if not source.is_derived:
                # After the events: what their ticks vouch for has been written by now, to quarantine as well.
                entry = entry.model_copy(update={"quarantined": _quarantined(settings, source, ledger.last)})
            record(places, entry)
        except BaseException:
            with contextlib.suppress(TransientError):  # a store that is away: the next run sweeps
                sweep(places, ledger)
            raise
    holes = {p: [hole.sentence for hole in span.holes] for p, span in entry.partitions.items() if span.holes}
    unreadable = sum(span.unreadable for span in entry.partitions.values())
    if holes:
        log.warning("offsets missing", topic=entry.topic, holes=holes)
    if unreadable:
        log.warning("records skipped, neither events nor ticks", topic=entry.topic, records=unreadable)
    log.info("events landed", run=entry.run, events=entry.events, files=len(entry.files))
    return entry


def land_since(
    settings: Settings, source: Source, moment: datetime, places: Places, spark: SparkSession
) -> tuple[Entry, datetime | None]:
    """Land in `places`, and in no ledger, what `events.<source>` holds of events from `moment` on, and some before.

    Returns the entry and from when on it holds all events; None if Kafka never removed any. Errors as from `land_new`.
    """
    with _reader(settings, source, settings.names.events(source.name)) as reader:
        _, ends = _bounds(reader)
        since = reader.since(moment - source.max_ahead)
        reach = find_reach(reader, source, read_ledger(Places.of(settings, source.name))).since
    starts = {partition: min(since.get(partition, 0), last) for partition, last in ends.items()}
    wanted = TopicRange(stamp(datetime.now(UTC)), reader.name, "", starts, ends)
    return _land(settings, source, places, wanted, lambda: spark), reach


def write_by_day(rows: DataFrame, folder: StoredPath) -> None:
    """Write `rows`, with RUN, DAY and PARTITION, into folders by run and day."""
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # New events are of few days: with a file open for each they need no sort, which takes 500 MB for 4 million rows.
    rows.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", "4")
    options = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
    rows.write.partitionBy(RUN, DAY).options(**options).parquet(str(folder))


def figures_of(spark: SparkSession, folder: StoredPath, lateness: timedelta) -> list[Row]:
    """Count what `write_by_day` wrote: one row for each file and partition. Times are UTC."""
    of_kafka = f"event_time timestamp, ingested_at timestamp, tick boolean, {_APPENDED} timestamp"
    rows = spark.read.schema(f"{of_kafka}, {PARTITION} int, {RUN} string, {DAY} string").parquet(str(folder))
    is_tick = F.coalesce(F.col("tick") & F.col("event_time").isNotNull(), F.lit(False))
    is_late = F.col("ingested_at") - F.col("event_time") > F.lit(lateness)
    found = rows.groupBy(RUN, DAY, F.col("_metadata.file_name").alias("file"), F.col(PARTITION).alias("partition")).agg(
        F.count("*").alias("rows"),
        F.count_if(~is_tick).alias("other"),
        F.count_if(is_late & (F.col(PARTITION) >= 0)).alias("late"),
        F.max("event_time").alias("newest_event"),
        F.max("ingested_at").alias("newest_append"),
        F.max(F.when(is_tick, F.col("event_time"))).alias("newest_tick"),
        F.min(_APPENDED).alias("first_appended"),
        F.max(_APPENDED).alias("last_appended"),
    )
    return [Row(**{name: _in_utc(value) for name, value in row.asDict().items()}) for row in found.collect()]


def move_to_landing(folder: StoredPath, places: Places, figures: list[Row]) -> dict[str, list[LandedFile]]:
    """Move the files of events that `figures` counted from `folder` to their place in landing; returns them by run."""
    by_file: dict[tuple[str, str, str], list[Row]] = {}
    for row in figures:
        if row[DAY] is not None:
            by_file.setdefault((row[RUN], row[DAY], row["file"]), []).append(row)
    landed: dict[str, list[LandedFile]] = {}
    for (run, day, name), rows in sorted(by_file.items()):
        path = folder / f"{RUN}={run}" / f"{DAY}={day}" / name
        target = places.landed(date.fromisoformat(day), run) / name
        file = LandedFile(
            path=places.within(target),
            day=date.fromisoformat(day),
            rows={row["partition"]: row["rows"] for row in rows},
            late=sum(row["late"] for row in rows),
            newest_event=max(row["newest_event"] for row in rows),
            newest_append=max(row["newest_append"] for row in rows),
            bytes=size_of(path),
            sha256=digest(path),
        )
        landed.setdefault(run, []).append(file)
        move_in(path, target)
    return landed


def count_by_day(reader: TopicReader, starts: Offsets, ends: Offsets, since: date, until: date) -> dict[date, int]:
    """Count records from `starts` up to `ends` by the UTC day of their append time, without reading them.

    What is older than `since` counts as of that day, what is newer than `until` as of that one.
    """
    counts: dict[date, int] = {}
    left, day = {p: start for p, start in starts.items() if start < ends[p]}, since
    while left:
        afters = reader.since(end(day)) if day < until else {}
        for partition, start in list(left.items()):
            after = min(max(start, afters.get(partition, ends[partition])), ends[partition])
            if after > start:
                counts[day] = counts.get(day, 0) + after - start
            left[partition] = after
            if after == ends[partition]:
                del left[partition]
        day += timedelta(days=1)
    return counts


def disk_failure(places: Places, what: str, error: Exception) -> OSError | TransientError | None:
    """Find out whether the disk or the object store of history is why Spark failed; None if it is not."""
    if is_unwritable(str(error)) or (isinstance(places.root, Path) and refusal(places.root)):
        return OSError(errno.ENOSPC, f"no room, or no permission: {what}")
    if isinstance(places.root, ObjectPath) and is_store(str(error)):
        return TransientError(f"{what}: the object store did not answer, or refused: {root_cause(error)}")
    return None


def _reader(settings: Settings, source: Source, topic: str) -> TopicReader:
    return TopicReader(settings, landing_job(source.name), topic, timeout_seconds=_TIMEOUT_SECONDS)


def _bounds(reader: TopicReader) -> tuple[Offsets, Offsets]:
    firsts, ends = reader.bounds()
    if not firsts:
        raise TransientError(f"{reader.name} does not exist (yet)")
    return firsts, ends


def _find_new(reader: TopicReader, last: Entry | None) -> TopicRange:
    """Find what the topic holds now behind the run `last`."""
    now, topic_id, (firsts, ends) = datetime.now(UTC), reader.topic_id(), _bounds(reader)
    run, spans = stamp(now, last.run if last else None), last.partitions if last else {}
    read = {partition: span.to_offset for partition, span in spans.items()}

    def lose(partition: int, to: int) -> Hole:
        after = spans[partition].newest_append
        return Hole(from_offset=read[partition], to_offset=to, removed=True, after=after, before=now)

    if last is not None and is_recreated(last.topic_id, topic_id, read, ends):
        log.warning("topic was deleted and created again, reading it from its start", topic=reader.name)
        lost = {partition: lose(partition, read[partition]) for partition in firsts if partition in read}
        return TopicRange(run, reader.name, topic_id, firsts, ends, {}, lost)
    starts = {partition: max(first, read.get(partition, first)) for partition, first in firsts.items()}
    lost = {
        partition: lose(partition, first) for partition, first in firsts.items() if read.get(partition, first) < first
    }
    return TopicRange(run, reader.name, topic_id, starts, ends, spans, lost)


def _land(
    settings: Settings, source: Source, places: Places, wanted: TopicRange, session: Callable[[], SparkSession]
) -> Entry:
    """Write the events of `wanted` into landing, and describe them; nothing is recorded."""
    began, files, missing = datetime.now(UTC), dict[str, list[LandedFile]](), dict[int, list[Hole]]()
    own: dict[int, list[Row]] = {partition: [] for partition in wanted.ends}
    if wanted.starts != wanted.ends:
        spark, folder = session(), places.landing / "reading"
        records = _records(spark, settings, landing_job(source.name), wanted)
        with _spark_errors(places, wanted.topic), _emptied(folder):
            write_by_day(_rows(records, source, wanted.run), folder)
            figures = figures_of(spark, folder, source.lateness)
            files = move_to_landing(folder, places, figures)
            for row in figures:
                own[row["partition"]].append(row)
            missing = _missing(spark, records, wanted, own, began)
    return Entry(
        run=wanted.run,
        began=began,
        ended=datetime.now(UTC),
        topic=wanted.topic,
        topic_id=wanted.topic_id,
        partitions={p: _span(p, wanted, rows, missing.get(p, []), began) for p, rows in own.items()},
        columns=columns_of(source),
        files=tuple(files.get(wanted.run, ())),
    )


@contextlib.contextmanager
def _emptied(folder: StoredPath) -> Iterator[None]:
    """Remove `folder` before the block, since a killed run leaves it, and behind it."""
    remove_tree(folder)
    try:
        yield
    finally:
        with contextlib.suppress(TransientError):
            remove_tree(folder)


@contextlib.contextmanager
def _spark_errors(places: Places, topic: str) -> Iterator[None]:
    """Turn an error of Spark into one of ours: the disk is full (OSError), else a retry helps (TransientError)."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        what = f"{topic} cannot be read"
        raise disk_failure(places, what, error) or TransientError(f"{what}: {root_cause(error)}") from error


def _records(spark: SparkSession, settings: Settings, job: str, wanted: TopicRange) -> DataFrame:
    places = {
        name: json.dumps({wanted.topic: {str(partition): offset for partition, offset in offsets.items()}})
        for name, offsets in (("startingOffsets", wanted.starts), ("endingOffsets", wanted.ends))
    }
    return read_topics(spark.read, settings, job, [wanted.topic], failOnDataLoss="true", **LONG_POLLS, **places)


def _rows(records: DataFrame, source: Source, run: str) -> DataFrame:
    """Parse `records`; ticks, and what is neither tick nor event, have no day. Null is what does not fit a column."""
    columns = event_columns(source)
    kinds = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    event = F.from_json(F.col("value").cast("string"), kinds)
    parsed = records.select(
        F.col("partition").alias(PARTITION), F.col("timestamp").alias(_APPENDED), event.alias("event")
    )
    rows = parsed.select(*[F.col(f"event.`{name}`") for name in columns], PARTITION, _APPENDED)
    is_event = reduce(and_, [F.col(name).isNotNull() for name in _NEEDED], F.col("tick").isNull())
    return rows.withColumns({RUN: F.lit(run), DAY: F.when(is_event, F.to_date("event_time"))})


def _missing(
    spark: SparkSession, records: DataFrame, wanted: TopicRange, own: Mapping[int, list[Row]], began: datetime
) -> dict[int, list[Hole]]:
    """Find the offsets that Kafka did not give (compacted, aborted), in partitions that gave fewer than they span."""
    lacking = [p for p, start in wanted.starts.items() if sum(row["rows"] for row in own[p]) < wanted.ends[p] - start]
    if not lacking:
        return {}
    edges = [(p, wanted.starts[p] - 1, wanted.append_before(p)) for p in lacking]
    edges += [(p, wanted.ends[p], began) for p in lacking]
    seen = records.where(F.col("partition").isin(lacking)).select("partition", "offset", "timestamp")
    seen = seen.unionByName(spark.createDataFrame(edges, "partition int, offset bigint, timestamp timestamp"))
    order = Window.partitionBy("partition").orderBy("offset")
    last, after = F.lag("offset").over(order).alias("last"), F.lag("timestamp").over(order).alias("after")
    holes: dict[int, list[Hole]] = {}
    for row in seen.select("*", last, after).where("offset > last + 1").sort("partition", "offset").collect():
        times = {"after": _in_utc(row["after"]), "before": _in_utc(row["timestamp"])}
        hole = Hole(from_offset=row["last"] + 1, to_offset=row["offset"], removed=False, **times)
        holes.setdefault(row["partition"], []).append(hole)
    return holes


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _span(partition: int, wanted: TopicRange, rows: list[Row], missing: list[Hole], began: datetime) -> OffsetSpan:
    lost, before = wanted.lost.get(partition), wanted.before.get(partition)
    ticks = [row["newest_tick"] for row in rows] + [before.newest_tick if before else None]
    first_append = min((row["first_appended"] for row in rows), default=began)
    return OffsetSpan(
        from_offset=before.to_offset if before else wanted.starts[partition],
        to_offset=wanted.ends[partition],
        events=sum(row["rows"] for row in rows if row[DAY] is not None),
        unreadable=sum(row["other"] for row in rows if row[DAY] is None),
        holes=(*([lost.model_copy(update={"before": first_append})] if lost else []), *missing),
        newest_append=max((row["last_appended"] for row in rows), default=wanted.append_before(partition)),
        newest_tick=max((tick for tick in ticks if tick is not None), default=None),
    )


def _quarantined(settings: Settings, source: Source, last: Entry | None) -> Quarantined:
    now, counts = datetime.now(UTC), last.quarantined if last else None
    with _reader(settings, source, settings.names.quarantine(source.name)) as reader:
        topic_id, (firsts, ends) = reader.topic_id(), _bounds(reader)
        counted = counts.positions if counts else {}
        if counts and is_recreated(counts.topic_id, topic_id, counted, ends):
            log.warning("quarantine was deleted and created again, counting from its start", topic=reader.name)
            counted = {}
        starts = {partition: max(first, counted.get(partition, first)) for partition, first in firsts.items()}
        since = last.began if last and counts else now - timedelta(days=QUARANTINE_DAYS)
        days = count_by_day(reader, starts, ends, since.date(), now.date())
    return Quarantined(positions=ends, days=days, topic_id=topic_id)
