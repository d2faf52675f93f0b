"""Windows of a detector recomputed without some of their events: proof of why the stream has found something else.

What is recomputed reads the very versions of the days that the backfill has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.names import detector_job, parity_job
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.detect.spark.ranges import EventReader, Range, find_in_range
from tocsin.history.backfill.parity.comparison import Difference, DifferenceReason, ReportedFinding
from tocsin.history.backfill.parity.reasons import Lack, Recomputation
from tocsin.history.day_versions import DayVersion
from tocsin.history.places import Places
from tocsin.history.spark.sealed_days import sealed_events, with_tick
from tocsin.history.spark.table_versions import tables_of_days
from tocsin.platform.code_versions import Version
from tocsin.platform.lock import try_lead
from tocsin.platform.storage.job_folders import stored_folder
from tocsin.spark.batch_session import running_batch
from tocsin.spark.events import IDENTITY
from tocsin.spark.query.checkpoint import whole_since
from tocsin.spark.query.drain import SLACK
from tocsin.spark.query.gaps import read_gaps, removed_upstream
from tocsin.spark.tables.spark.joined_tables import JoinedTables

Identity = tuple[str, int, int]
"""Topic, partition and offset of the raw record of an event."""

_STRETCHES = 200
"""With more stretches of time to read than this, all between the first and the last is read."""

_QUARANTINED = "tocsin_quarantined"
_FILE = r"^(?:flow:[^/]+/\d*:)*file:"
"""So the `raw_topic` of an imported event begins, also of one that flows have made."""


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """The windows to be recomputed.

    Attributes:
        spec: the detector, in the version that made the backfill.
        days: the versions that the backfill has read.
        differences: that have no reason yet, at least one.
        quarantined: raw records that were in quarantine, of the time of these windows or later.
        events: of the days; those of `days` if None.
    """

    spec: DetectorSpec
    source: Source
    days: Mapping[date, DayVersion]
    differences: Sequence[Difference]
    quarantined: Sequence[Identity] = ()
    events: DataFrame | None = None


@dataclass(frozen=True)
class _LeftOut:
    reason: DifferenceReason
    why: str
    events: Column


def recompute(settings: Settings, doubt: Doubt) -> tuple[dict[str, ReportedFinding], list[Recomputation]]:
    """Do what `recomputed` does, in a Spark session of its own.

    Raises:
        LockHeld: the same is being recomputed for this detector; a retry helps once that has ended.
        TransientError: the cluster is away; a retry helps.
        ConfigError: the detector's query does not run, or there is no Java.
    """
    job = parity_job(doubt.spec.name)
    with try_lead(settings, settings.checkpoint(job) / "lock"), running_batch(settings, job) as spark:
        return recomputed(spark, settings, doubt)


def recomputed(
    spark: SparkSession, settings: Settings, doubt: Doubt
) -> tuple[dict[str, ReportedFinding], list[Recomputation]]:
    """Find in the windows of `doubt` with all events, by finding_id, and with some left out.

    Only the stretches of the days in which the windows lie are read. There is a trial only for events that are there:
    those later than the lateness, those that were quarantined first, those that were imported.
    """
    days = {*doubt.days, *(one.start.date() for one in doubt.differences)}
    tables = tables_of_days(spark, settings, doubt.spec, days)
    trials = _Trials(spark, doubt, _events(spark, settings, doubt).persist(), tables)
    whole = trials.found(None)
    batch = timedelta(seconds=settings.spark.batch_seconds(joins_tables=bool(doubt.spec.tables)))
    return whole, [Recomputation(one.reason, one.why, trials.found(one.events)) for one in trials.worth(batch)]


def stream_lacks(settings: Settings, spec: DetectorSpec, ran: Sequence[Version]) -> Iterator[Lack]:
    """List events that the stream of `spec` never read; `ran` are the kept versions, the oldest first.

    ValueError if the gaps of the detector cannot be read; a retry does not help.
    """
    base = stored_folder(settings, detector_job(spec.name))
    for gap in read_gaps(base):
        yield Lack(gap.since, gap.until, f"the stream has a gap: {gap.sentence}")
    for job, gap in removed_upstream(settings, read_catalog(settings.project).feeders_of(spec.sources)):
        until = gap.until + (spec.forget_after or timedelta(0))
        yield Lack(gap.since, until, f"{job} has a gap: {gap.sentence}")
    if not ran:
        yield Lack(None, None, "the stream never ran here")
    elif (since := whole_since(base, ran[0].fingerprint)) is not None:
        mark = f"{since:%Y-%m-%d %H:%M:%S} UTC"
        since += spec.looks_back
        yield Lack(None, since, f"the stream began when Kafka no longer had all events from before {mark}")


class _Trials:
    def __init__(self, spark: SparkSession, doubt: Doubt, events: DataFrame, tables: JoinedTables | None) -> None:
        self._spark, self._doubt, self._events, self._tables = spark, doubt, events, tables
        starts = [one.start for one in doubt.differences]
        self._range = Range(start=min(starts), end=max(starts) + timedelta(microseconds=1), run_id="parity")

    def found(self, left_out: Column | None) -> dict[str, ReportedFinding]:
        """Find in the windows in question without the events for which `left_out` is true."""
        events = self._events if left_out is None else self._events.where(~F.coalesce(left_out, F.lit(False)))
        read = EventReader(lambda *_: events.drop(_QUARANTINED), tables=lambda _: self._tables)
        doubt, ids = self._doubt, {one.finding_id for one in self._doubt.differences}
        rows = find_in_range(self._spark, read, doubt.spec, [doubt.source], self._range)
        found = (Finding.model_validate_json(row["value"]) for row in rows.where(F.col("key").isin(ids)).collect())
        return {finding.finding_id: ReportedFinding.of(finding) for finding in found}

    def worth(self, batch: timedelta) -> Iterator[_LeftOut]:
        """Trials that leave out something, in the order in which they are believed.

        Real-time mode moves the watermark between its batches only, each of which lasts a `batch`, and Spark drops what
        lies behind that of the batch before. So some of what is late still counts: all that is late by less than one
        batch more, nothing that is late by more than two.
        """
        lateness, delay = self._doubt.source.lateness, _seconds("ingested_at") - _seconds("event_time")
        imported, quarantined = F.col("raw_topic").rlike(_FILE), F.col(_QUARANTINED)
        limits = [limit.total_seconds() for limit in (lateness, *(lateness + SLACK + n * batch for n in (1, 2)))]
        later = {f"more than {limit:g} s": ~imported & (delay > limit) for limit in limits}
        counts = self._counted({**later, "quarantined": quarantined, "imported": imported})
        late, counted = next(iter(later.values())), 0
        slow, files, same = "replayed events", "imported events", "the detector finds the same as the stream"
        for by, events in later.items():
            if counts[by] not in (0, counted):
                yield _LeftOut(DifferenceReason.LATE, f"without events that came {by} late {same}", events)
                counted = counts[by]
        if counts["quarantined"]:
            yield _LeftOut(DifferenceReason.QUARANTINED, f"without {slow} {same}", quarantined)
        if counts["quarantined"] and counted:
            yield _LeftOut(DifferenceReason.QUARANTINED, f"without {slow} and late ones {same}", quarantined | late)
        if counts["imported"]:
            yield _LeftOut(DifferenceReason.MISSING, f"without {files} {same}", imported)
        if counts["imported"] and (counts["quarantined"] or counted):
            what = f"{files}, {slow} and late ones"
            yield _LeftOut(DifferenceReason.MISSING, f"without {what} {same}", imported | quarantined | late)

    def _counted(self, kinds: Mapping[str, Column]) -> dict[str, int]:
        counts = self._events.agg(*[F.count_if(kind).alias(name) for name, kind in kinds.items()]).head()
        assert counts is not None, "an aggregate without groups gives one row"
        return counts.asDict()


def _events(spark: SparkSession, settings: Settings, doubt: Doubt) -> DataFrame:
    """The events of all windows in question, with a mark on those that were in quarantine before."""
    events = doubt.events
    if events is None:
        events = with_tick(sealed_events(spark, Places.of(settings, doubt.source.name), doubt.source, doubt.days))
    time = F.col("event_time")
    stretches = _stretches(doubt.differences, doubt.spec.looks_back)
    inside = [(time >= F.lit(start)) & (time < F.lit(end)) for start, end in stretches]
    events = events.where(reduce(or_, inside))
    if not doubt.quarantined:
        return events.withColumn(_QUARANTINED, F.lit(False))
    kinds = ", ".join(f"{name} {kind}" for name, kind in zip(IDENTITY, ("string", "int", "bigint"), strict=True))
    marked = spark.createDataFrame(sorted(set(doubt.quarantined)), kinds).withColumn(_QUARANTINED, F.lit(True))
    joined = events.join(F.broadcast(marked), list(IDENTITY), "left")
    return joined.withColumn(_QUARANTINED, F.coalesce(F.col(_QUARANTINED), F.lit(False)))


def _stretches(differences: Iterable[Difference], before: timedelta) -> list[tuple[datetime, datetime]]:
    """The times that the windows cover together, and so long `before` each, for the state.

    An event without a window covers one microsecond.
    """
    stretches: list[tuple[datetime, datetime]] = []
    instant = timedelta(microseconds=1)
    for start, end in sorted((one.start - before, max(one.end, one.start + instant)) for one in differences):
        if stretches and start <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(end, stretches[-1][1]))
        else:
            stretches.append((start, end))
    return stretches if len(stretches) <= _STRETCHES else [(stretches[0][0], stretches[-1][1])]


def _seconds(name: str) -> Column:
    return F.unix_micros(F.col(name)) / 1e6
