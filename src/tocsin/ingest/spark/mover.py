"""Run a job that makes events of records one by one, and keeps no state: what an ingest and a flow have in common.

Delivery is at least once: after a crash the records since the last commit are written again, with the same identity.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from confluent_kafka import Message

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import TOPICS_RECREATED, JobReport, JobState
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.ingest.ticks import Ticker, TickRule, TrueAfter, Watched
from tocsin.platform import state_file
from tocsin.platform.heartbeat import read_besides
from tocsin.platform.kafka.reader import TopicReader, came_in_at
from tocsin.platform.kafka.reporter import ReportReader
from tocsin.platform.kafka.topic_set import Position, TopicSet, oldest, partition_of
from tocsin.platform.storage.job_folders import JobFolders
from tocsin.platform.storage.stored_path import modified_at, remove_tree
from tocsin.spark.query import gaps
from tocsin.spark.query.checkpoint import Checkpoint, read_committed
from tocsin.spark.query.drain import FeederLag
from tocsin.spark.query.progress import BatchProgress
from tocsin.spark.query.work import MICRO_BATCH, REAL_TIME, Choice, Run
from tocsin.spark.query_plan import QueryPlan
from tocsin.spark.session import kafka_options

PLAN = QueryPlan(
    mode=REAL_TIME,
    reason="reads one record at a time, keeps no state",
    output="update",
    exchanges=0,
    fingerprint="owner",  # folder of the lock: beside Spark's own, which may be removed
)
LONGEST_WAIT = timedelta(seconds=20)
"""A detector that is not ready by then will find the backlog in its own topic when it starts."""

_DETECTOR_FRESH = timedelta(seconds=10)
_STARTING = (JobState.STARTING, JobState.WAITING, JobState.READY)
_AT_REST = (JobState.STOPPED, JobState.FAILED, JobState.STOPPING)
_TOPICS = "topics.json"
_Ids = dict[str, dict[str, str]]
"""Under "ids" Kafka's ids of the topics to which the offsets of a checkpoint belong."""

log = structlog.get_logger()


class Mover:
    """What an ingest and a flow share, which make events of records one by one: backlog, gaps, ticks.

    `query` is the folder of Spark's checkpoint; `ticker` is there from the first start on.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        source: Source,
        *,
        true_after: Callable[[Run, TopicSet], TrueAfter],
        appended_at: Callable[[Message], datetime | None],
    ) -> None:
        """`true_after` returns what asks when the next tick is true; it gets topics for the ticker's thread."""
        feeder = catalog.upstream(source.name)[0]
        self.job, self.reads, self.writes = feeder.job, feeder.reads(settings.names), settings.names.events(source.name)
        self.folders = JobFolders.of(settings, self.job)
        self._folder = self.folders.stored
        self.query = self._folder / "query"
        self.sink = kafka_options(settings) | {"kafka.max.request.size": str(EVENT_BYTES)}
        self.ticker: Ticker | None = None
        self._settings, self._source = settings, source
        self._true_after, self._appended_at = true_after, appended_at
        self._keepers = catalog.downstream(source.name)
        self._ticks_end = threading.Event()
        self._removed = 0
        self._is_behind_recreated = False  # since the last start
        self._finished_batch = False

    # --- start --------------------------------------------------------------------------------------------------------

    def fit_topics(self, run: Run, committed: Position, leave: Callable[[list[str], Position], None]) -> None:
        """Read topics that were deleted and created again from their start, and note which those of now are.

        `leave` drops what is committed of these; it gets what is of others.
        """
        note = self._folder / _TOPICS
        known = state_file.read(note, _Ids, {}).get("ids", {})
        ids = run.topics.ids()  # before their ends
        if recreated := run.topics.recreated(known, committed):
            log.error("topic recreated, what was unread of it is lost; reading it from its start", topics=recreated)
            since = self._written_since()
            self._is_behind_recreated = True
            for topic in recreated:
                until = oldest(run.topics.only([topic]), {})  # what was lost came before the first that is there
                self._record_gap(topic, since, until, is_recreated=True)
            leave(recreated, {p: at for p, at in committed.items() if partition_of(p)[0] not in recreated})
            self._ticks_end.set()  # it waits for ends of the former topic
            self.ticker = None
        run.topic_ids = {**known, **ids}
        if run.topic_ids != known:
            state_file.write(note, _Ids, {"ids": run.topic_ids})

    def resume(self, run: Run, starts: Position) -> Checkpoint:
        """Go on behind what is committed, else at `starts`, else at the first record; record what was removed."""
        first, _ = run.topics.bounds()
        committed = self.committed() or {place: offset for place, offset in starts.items() if offset >= 0}
        if not committed:
            # What a broken-off first batch left behind says nothing, and Spark refuses to begin over it. So it does
            # where the records came from another topic.
            remove_tree(self.query)
        self._removed = sum(max(0, first[p] - offset) for p, offset in committed.items() if p in first)
        if self._removed:
            self._record_removed(run, committed, first)
        return Checkpoint(self._folder, self.query, starts, None, None, run.topic_ids, first=first)

    def committed(self) -> Position:
        """Read the next offset of each place that it reads, as committed; none before the first batch."""
        committed = read_committed(self.query) or {}
        return {place: offset for place, offset in committed.items() if partition_of(place)[0] in self.reads}

    def choose(self, run: Run, reason: str) -> Choice:
        """Announce a backlog to the jobs behind it first, and wait until they are ready; else it runs for `reason`."""
        # A backlog as old as the gap: the jobs behind it begin again for that, and read what it says of its windows.
        lag = max(self._lag(run), self._gap_age() if self._removed or self._is_behind_recreated else 0.0)
        self._is_behind_recreated = self._finished_batch = False
        # What is read first grows older until the query reads it: half of the lateness is left for that.
        draining = lag > self._source.lateness.total_seconds() / 2
        if draining:
            self._await_keepers(run, lag)
        state = JobState.DRAINING if draining else JobState.RUNNING
        if self._removed:
            # Real-time mode cannot step over records that retention has removed; one micro-batch can. What is removed
            # while that reads is lost without a word: it is a short one.
            skips = f"{self._removed} records were removed before they were read; continuing after them"
            return Choice(mode=MICRO_BATCH, reason=skips, state=state, skips_removed=True)
        return Choice(mode=REAL_TIME, reason=lost(run) + (_drains(lag) if draining else reason), state=state)

    def begin(self, run: Run, _: Choice) -> None:
        """Let ticks follow what is committed."""
        self.ticker = self.ticker or self._new_ticker(run)
        self.ticker.note_committed(run.position)

    # --- while the query runs -----------------------------------------------------------------------------------------

    def take(self, _: Run, __: object, progress: BatchProgress) -> dict[str, Any]:
        """Let ticks follow what a finished batch has committed."""
        self._finished_batch = True
        if self.ticker is not None:
            self.ticker.note_committed(progress.end_offsets)
        return {}

    def describe(self, run: Run, choice: Choice, reason: str) -> tuple[JobState, str]:
        """Keep the state true: a backlog makes it draining, the end of the backlog running again, for `reason`."""
        if not self._finished_batch:
            return choice.state, choice.reason
        if run.lag_seconds > self._source.lateness.total_seconds():
            return JobState.DRAINING, lost(run) + _drains(run.lag_seconds)
        return JobState.RUNNING, lost(run) + reason

    def restart_reason(self, _: Run) -> str | None:
        """Go on in real-time mode behind removed records."""
        return "past the removed records" if self._removed and self._finished_batch else None

    # --- backlog ------------------------------------------------------------------------------------------------------

    def _record_removed(self, run: Run, reached: Position, first: Position) -> None:
        """Write down what was removed between `reached` and `first`; until a batch is committed, each start does."""
        begins = {place: max(offset, reached[place]) for place, offset in first.items() if place in reached}
        before, since = gaps.count_removed(self._folder), self._written_since()
        for topic, holes in gaps.find_holes(run.topics, reached, begins).items():
            self._record_gap(topic, since, max(hole.appended_before for hole in holes.values()), partitions=holes)
        if new := gaps.count_removed(self._folder) - before:
            log.error("records lost: retention is shorter than the outage", count=new)

    def _record_gap(self, topic: str, since: datetime | None, until: datetime | None, **more: Any) -> None:
        """Write down that events from `since` until `until`, else until now, are lost."""
        now = datetime.now(UTC)
        removed = {"partitions": {}, **more, "topic": topic, "cause": gaps.Cause.REMOVED}
        gaps.record(self._folder, gaps.Gap(**removed, found_at=now, since=since, until=until or now))

    def _written_since(self) -> datetime | None:
        """Find an event time before which all events are written: by the last of them or, if they are gone, a commit.

        Each partition of the events topic has a tick or an event of about the time at which this job last wrote.
        """
        with TopicSet(self._settings, self.job, [self.writes]) as events:
            first, ends = events.bounds()
            last = (events.first_at(p, end - 1, end, came_in_at) for p, end in ends.items() if end > first[p])
            moments = [moment for moment in last if moment is not None]
        if not moments:
            commits = (modified_at(path) for path in (self.query / "commits").glob("[0-9]*"))
            moments = [datetime.fromtimestamp(at, UTC) for at in sorted(commits)[-1:]]
        return min(moments) - self._source.lateness if moments else None

    def _gap_age(self) -> float:
        """Return the seconds since the last gap begins; 0 without one, or if its begin is not known."""
        begins = [gap.since for gap in gaps.read_gaps(self._folder)[-1:]]
        return max(((datetime.now(UTC) - since).total_seconds() for since in begins if since is not None), default=0.0)

    def _lag(self, run: Run) -> float:
        since = oldest(run.topics, run.position, self._appended_at)
        return 0.0 if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds())

    def _await_keepers(self, run: Run, lag: float) -> None:
        """Announce the backlog and wait until the running jobs that keep state have widened their delay for it.

        Partitions drain unevenly; a detector that does not know would drop events of the slower ones as late.
        """
        reader = ReportReader(self._settings)
        reported: list[str] = []
        # The backlog grows older while it waits and until it is read, so the normal delay is never enough.
        needed = lag + self._source.lateness.total_seconds() + LONGEST_WAIT.total_seconds()
        try:
            end = datetime.now(UTC) + LONGEST_WAIT
            while not run.is_stopping and datetime.now(UTC) < end:
                # Those that are to take over from a detector report to this machine alone.
                beats = read_besides(self._settings.state, self._keepers)
                beside = {f"the next {job}": beat.report for job, beat in beats.items()}
                keepers = [*self._keepers, *beside]
                waiting = not_ready(reader.latest() | beside, keepers, needed, datetime.now(UTC))
                if waiting != reported or not reported:
                    reported = waiting
                    what = f"; waiting until {', '.join(waiting)} are ready" if waiting else ""
                    log.info("backlog", lag_seconds=round(lag, 1), waiting_for=",".join(waiting) or None)
                    run.reporter.update(state=JobState.DRAINING, lag_seconds=lag, reason=_drains(lag) + what)
                if not waiting:
                    return
                run.wait(0.25)
            log.warning("starting without the jobs behind it", waited_for=",".join(reported))
        except TransientError as error:
            log.warning("jobs behind it not reachable", reason=str(error))
        finally:
            reader.close()

    def _new_ticker(self, run: Run) -> Ticker:
        # Clients of its own: the ticker has its own thread.
        read = TopicSet(self._settings, self.job, self.reads)
        events = TopicReader(self._settings, self.job, self.writes)
        true_after, end = self._true_after(run, read), threading.Event()
        self._ticks_end = end

        def of_known_topics() -> tuple[datetime, Position] | None:
            # What lies in a topic that was recreated is read from the next start on, wherever that one ends.
            asked = true_after()
            return None if run.recreated_topic(read) is not None else asked

        watched = Watched(
            true_after=of_known_topics,
            events_partitions=events.partitions,
            is_stopping=lambda: run.is_stopping or end.is_set(),
        )
        return Ticker(self._settings, self._source.name, watched)


def not_ready(
    reports: Mapping[str, JobReport], detectors: Iterable[str], needed_seconds: float, now: datetime
) -> list[str]:
    """Name those of the jobs `detectors` that run with a watermark delay below `needed_seconds`, in order. Pure.

    A job that has not reported for 10 seconds does not run. A job without a watermark is always ready.
    """
    waiting = []
    for job in sorted(detectors):
        report = reports.get(job)
        if report is None or now - report.at > _DETECTOR_FRESH or report.state in _AT_REST:
            continue
        starting = report.delay_seconds is None and report.state in _STARTING
        if starting or (report.delay_seconds is not None and report.delay_seconds < needed_seconds):
            waiting.append(job)
    return waiting


class PassedOn:
    """Carries `complete_through` of the feeder on, once the query has read the topic up to the end it had then."""

    def __init__(self, feeder: FeederLag) -> None:
        self._feeder, self._rule = feeder, TickRule()
        self._asked: datetime | None = None

    def forget(self) -> None:
        """Begin anew with another query."""
        self._rule = TickRule()

    def look(self, run: Run) -> datetime | None:
        """Return the latest time before which all that came in has been read; None without a newer one."""
        moment = self._feeder.complete_through()
        if moment is None:
            return None
        if moment != self._asked:
            with contextlib.suppress(TransientError):
                self._rule.ask(moment, run.topics.bounds()[1])
                self._asked = moment
        return self._rule.answer(run.read_positions.offsets()) if self._rule.asks else None


def lost(run: Run) -> str:
    """Say what was lost before it was read, to put before the reason of a job; empty for nothing."""
    removed, recreated = run.counts.get("removed_unread"), run.counts.get(TOPICS_RECREATED)
    text = f"{removed} records were removed before they were read, their events are lost; " if removed else ""
    if recreated:
        text += "a topic that it reads was deleted and created again, what was unread of it is lost; "
    return text


def _drains(lag_seconds: float) -> str:
    return f"drains a backlog up to {timedelta(seconds=round(lag_seconds))} old"
