"""Decide when a job with a watermark drains a backlog, and how wide its watermark delay must be meanwhile.

The watermark follows the latest event of all partitions. While one partition is read ahead of another, events of the
one behind would count as late, so a backlog is read with the delay widened by its age: in micro-batches, or in
real-time mode when it is short, as after a crash. Narrowing the delay afterwards is safe on the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tocsin.declare.feeding import Feeder
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.source import ingested_at, is_tick
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.reader import appended_at, came_in_at
from tocsin.platform.kafka.reporter import ReportReader
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet, oldest
from tocsin.platform.storage.job_folders import stored_folder
from tocsin.spark.query.checkpoint import read_committed

SLACK = timedelta(seconds=2)
"""Partitions, and the tasks that read them, are never quite in step, even with no backlog."""

FEW_RECORDS = 20_000
"""So many are read within the first real-time batch, and during it no watermark moves."""

FEW_A_SECOND = 400
"""Of a long batch so many a second are few: all that a killed job reads again at 290 records a second."""

_CHUNK = 1000
_MARGIN = timedelta(seconds=120)
_FEEDER_FRESH = timedelta(seconds=30)


@dataclass(frozen=True)
class Backlog:
    """The records that a job has not read yet; none came into the platform before `oldest`, UTC."""

    records: int = 0
    oldest: datetime | None = None

    def age(self, now: datetime) -> timedelta:
        """Return the time since the oldest came in; 0 when there are none."""
        return max(now - self.oldest, timedelta(0)) if self.oldest is not None else timedelta(0)


@dataclass(frozen=True)
class Decision:
    """The way to read on; `is_draining` widens the delay. A single real-time batch reads a backlog that `is_short`."""

    is_draining: bool
    delay: timedelta
    reason: str
    is_short: bool = True


def decide(
    lateness: timedelta, backlog: Backlog, ingest_lag: timedelta, now: datetime, few: int = FEW_RECORDS
) -> Decision:
    """Drain if the own backlog is older than `lateness`, or `ingest_lag` is not 0. Up to `few` records are short."""
    age, is_short = max(backlog.age(now), ingest_lag), not ingest_lag and backlog.records <= few
    if age <= lateness and is_short:
        return Decision(False, lateness + SLACK, "keeps up")
    seconds, allowed = age.total_seconds(), f"lateness is {lateness.total_seconds():.0f} s"
    if ingest_lag > backlog.age(now):
        reason = f"its input is up to {seconds:.0f} s behind, {allowed}"
    else:
        reason = f"{backlog.records} unread records are up to {seconds:.0f} s old, {allowed}"
    # While it drains, new events come in and the watermark moves on: the margin is for them.
    return Decision(True, lateness + SLACK + age + max(_MARGIN, age), reason, is_short)


def is_too_narrow(decision: Decision, lateness: timedelta, backlog: Backlog, now: datetime) -> bool:
    """Return whether a drain under `decision` has lasted so long that its delay no longer covers the backlog."""
    return decision.is_draining and backlog.age(now) + lateness + SLACK > decision.delay


class Unread:
    """Watches what a job has not read yet of its events topics.

    Records of one partition come from several raw partitions, which the ingest may have read unevenly: the first need
    not be the oldest. A tick says that nothing older follows, so the reading ends there. No record is read twice.
    """

    def __init__(self, topics: TopicSet) -> None:
        self._topics = topics
        self._read: dict[Place, _PartitionLook] = {}

    def look(self, position: Position) -> Backlog:
        """Return the backlog at `position`; its age may include 1,000 records before. TransientError without Kafka."""
        _, ends = self._topics.bounds()
        count, oldest = 0, None
        for place, end in ends.items():
            start = position.get(place, 0)
            count += max(0, end - start)
            moment = self._oldest(place, start, end)
            oldest = min((m for m in (oldest, moment) if m is not None), default=None)
        return Backlog(count, None if oldest is None else datetime.fromisoformat(oldest).astimezone(UTC))

    def _oldest(self, place: Place, start: int, end: int) -> str | None:
        read = self._read.setdefault(place, _PartitionLook())
        read.chunks = [chunk for chunk in read.chunks if chunk[0] > start]
        read.end = max(read.end, start)
        if read.tick is not None and read.tick < start:
            read.tick = None
        if read.tick is None and read.end < end:
            self._read_on(place, read, end)
        return min((moment for _, moment in read.chunks), default=None)

    def _read_on(self, place: Place, read: _PartitionLook, end: int) -> None:
        for message in self._topics.records(place, read.end, end):
            value = message.value() or b""
            offset, moment = message.offset() or 0, ingested_at(value)
            read.end = offset + 1
            if moment is not None:
                read.add(moment)
            if is_tick(value):
                read.tick = offset
                return


def unread_upstream(settings: Settings, feeders: Iterable[Feeder]) -> datetime | None:
    """Date the oldest record that one of `feeders` has not read, UTC. TransientError if Kafka cannot be reached."""
    found = []
    for feeder in feeders:
        with TopicSet(settings, feeder.job, feeder.reads(settings.names)) as topics:
            committed = read_committed(stored_folder(settings, feeder.job) / "query") or {}
            found.append(oldest(topics, committed, appended_at if feeder.is_ingest else came_in_at))
    return min((moment for moment in found if moment is not None), default=None)


@dataclass
class _PartitionLook:
    """One partition, up to the last look, which ended at the offset `tick` if it met a tick.

    `chunks` hold, for about each 1,000 records, the offset after the last and the oldest moment among them.
    """

    chunks: list[tuple[int, str]] = field(default_factory=list)
    end: int = 0
    tick: int | None = None
    _begun: int = 0

    def add(self, moment: str) -> None:
        """Note that the record before `end` has come in at `moment`."""
        if self.chunks and self.end - self._begun <= _CHUNK:
            self.chunks[-1] = (self.end, min(moment, self.chunks[-1][1]))
        else:
            self.chunks.append((self.end, moment))
            self._begun = self.end - 1


class FeederLag:
    """Reads the reports of the jobs through which events of some sources come. For one thread."""

    def __init__(self, settings: Settings, *chains: Sequence[Feeder]) -> None:
        """Read those of `chains`, one of each source."""
        self._settings = settings
        self._jobs = list(dict.fromkeys(feeder.job for chain in chains for feeder in chain))
        self._last = [chain[0].job if chain else "" for chain in chains]
        self._reports: ReportReader | None = None

    def __call__(self) -> timedelta:
        """Return how far behind one says it is, the most; 0 when all keep up, are silent, or Kafka does not answer."""
        reports = [self._report(job) for job in self._jobs]
        behind = (report.lag_seconds for report in reports if report and report.state is JobState.DRAINING)
        return timedelta(seconds=max(behind, default=0.0))

    def complete_through(self) -> datetime | None:
        """Return the earliest `complete_through` of the last ones; None while one drains, is silent, or Kafka is."""
        reports = [self._report(job) for job in self._last]
        known = [report.complete_through for report in reports if report and report.state is JobState.RUNNING]
        moments = [moment for moment in known if moment is not None]
        return min(moments) if moments and len(moments) == len(reports) else None

    def _report(self, job: str) -> JobReport | None:
        beat = read_beat(self._settings.state, job)
        if beat is not None and _is_fresh(beat.report):  # Kafka is asked about jobs of other machines alone
            return beat.report
        try:
            self._reports = self._reports or ReportReader(self._settings)
            report = self._reports.latest().get(job)
        except (ConfigError, TransientError):
            return None
        return report if report is not None and _is_fresh(report) else None


def _is_fresh(report: JobReport) -> bool:
    return datetime.now(UTC) - report.at <= _FEEDER_FRESH


class WatermarkDelay:
    """Chooses the watermark delay of one job, and says when to choose again."""

    def __init__(self, lateness: timedelta, ingest_lag: Callable[[], timedelta], few: int = FEW_RECORDS) -> None:
        """Take up to `few` records for a short backlog; `ingest_lag` asks how far behind the ingest is."""
        self._lateness, self._ingest_lag, self._few = lateness, ingest_lag, few
        self.decision = Decision(False, lateness + SLACK, "keeps up")
        self._unread: Unread | None = None
        self._began_at: Position = {}

    def choose(self, topics: TopicSet, position: Position) -> None:
        """Choose how the next query reads `topics` from `position` on. TransientError if Kafka cannot be reached."""
        self._unread, self._began_at = self._unread or Unread(topics), dict(position)
        self.decision = self._decide(self._unread.look(position), self._ingest_lag())

    def forget_backlog(self) -> None:
        """Look at the whole backlog again: the job begins elsewhere, perhaps earlier."""
        self._unread = None

    def restart_reason(self, position: Position, lag_seconds: float) -> str | None:
        """Say why the query must start again, with another delay; None while the delay is right.

        `position` is what the last finished batch has committed, and `lag_seconds` how far behind the job is there.
        Raises a TransientError if Kafka cannot be reached.
        """
        lag = self._ingest_lag()
        if self._unread is not None and self.decision.is_draining:
            return self._drain_reason(self._unread.look(position), lag, position)
        if lag:
            return f"the ingest drains a backlog of {lag.total_seconds():.0f} s"
        return f"behind by {lag_seconds:.0f} s" if lag_seconds > self._lateness.total_seconds() else None

    def _drain_reason(self, backlog: Backlog, ingest_lag: timedelta, position: Position) -> str | None:
        if ingest_lag + self._lateness > self.decision.delay:
            return "the ingest's backlog is older than the watermark delay"
        if self.decision.is_short and position == self._began_at:
            return None  # in its first batch, which reads them all: no watermark moves before it ends
        if is_too_narrow(self.decision, self._lateness, backlog, datetime.now(UTC)):
            return "the backlog has grown older than the watermark delay"
        return None if self._decide(backlog, ingest_lag).is_draining else "backlog drained"

    def _decide(self, backlog: Backlog, ingest_lag: timedelta) -> Decision:
        return decide(self._lateness, backlog, ingest_lag, datetime.now(UTC), self._few)
