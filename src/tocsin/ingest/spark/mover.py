"""Run a job that makes events of records one by one, and keeps no state: what an ingest and a flow have in common.

Delivery is at least once: after a crash the records since the last commit are written again, with the same identity.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from confluent_kafka import Message
from pydantic import BaseModel, Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.ingest.backlog import LONGEST_WAIT, not_ready
from tocsin.ingest.ticks import Ticker, TrueAfter, Watched
from tocsin.kafka.job_reports import ReportReader
from tocsin.kafka.reader import TopicReader, came_in_at
from tocsin.kafka.topic_set import Position, TopicSet, oldest, partition_of
from tocsin.model.errors import TransientError
from tocsin.model.job_report import TOPICS_RECREATED, JobState
from tocsin.model.sizes import EVENT_BYTES
from tocsin.model.source import Source
from tocsin.project.catalog import Catalog
from tocsin.project.feeding import Feeder
from tocsin.project.settings import Settings
from tocsin.runtime import state_file
from tocsin.runtime.heartbeat import read_besides
from tocsin.sparkjob.query import gaps
from tocsin.sparkjob.query.checkpoint import read_committed
from tocsin.sparkjob.query.leadership import Ownership
from tocsin.sparkjob.query.poison import Poison, Read, SetAside
from tocsin.sparkjob.query.progress import BatchProgress
from tocsin.sparkjob.query.work import MICRO_BATCH, REAL_TIME, Run, Started
from tocsin.sparkjob.session import kafka_options, read_topics
from tocsin.storage.job_folders import JobFolders, stored_folder
from tocsin.storage.stored_path import StoredPath, modified_at, remove_tree

# Two milliseconds of waiting make batches of what a backlog brings, and save a fifth of the CPU.
_PRODUCER = {"kafka.max.request.size": str(EVENT_BYTES), "kafka.linger.ms": "2"}

# Beside Spark's own folder, which may be removed.
_OWNER = "owner"
_TOPICS = "topics.json"

log = structlog.get_logger()


class KnownTopics(BaseModel, frozen=True):
    """Kafka's ids of the topics to which the offsets of a checkpoint belong."""

    ids: dict[str, str] = Field(default_factory=dict)


class Mover(ABC):
    """The work of a feeder, a job that writes events; see `tocsin.sparkjob.query.work.Work`."""

    observation: str
    """The name of the figures that the query counts in each batch."""
    version = ""

    def __init__(self, settings: Settings, catalog: Catalog, feeder: Feeder, source: Source) -> None:
        """Write the events of `source`, of what `feeder` reads."""
        self.source, self.job = source, feeder.job
        self.reads = feeder.reads(settings.names)
        self.writes: tuple[str, ...] = (settings.names.events(source.name),)
        self.resources = None  # it keeps no state, and waits for Kafka more than it computes
        self._settings = settings
        self._keepers = catalog.downstream(source.name)
        self._ticker: Ticker | None = None
        self._ticks_end = threading.Event()
        self._is_behind_recreated = False  # since the last start
        self._counts: dict[str, float] = {}
        self._folder = stored_folder(settings, self.job)
        self._poison = Poison(JobFolders.of(settings, self.job))
        self._ownership = Ownership()
        self._began_at: Position = {}
        self._skipping = False
        self._finished_batch = False

    # --- what differs -------------------------------------------------------------------------------------------------

    @abstractmethod
    def check(self, spark: SparkSession) -> None:
        """Check before each start what only Spark can tell.

        Raises:
            ConfigError: something must be fixed first.
        """

    @abstractmethod
    def make_rows(self, read: Read) -> DataFrame:
        """Make what is written for the records that `read` gives of the topics: rows with `topic`, `key`, `value`."""

    @abstractmethod
    def set_aside(self, record: SetAside) -> None:
        """Keep a record that is not read any more."""

    @abstractmethod
    def true_after(self, run: Run, topics: TopicSet) -> TrueAfter:
        """Return what asks when the next tick is true; `topics` is what it reads, for the ticker's thread."""

    @abstractmethod
    def complete_through(self, run: Run) -> datetime | None:
        """Return up to when all that came in is in the events topic, if that is news."""

    @abstractmethod
    def appended_at(self, message: Message) -> datetime | None:
        """Read when a record that it reads came into the platform."""

    def owns(self, run: Run) -> bool:
        """Become the one that writes, before each start; False when asked to stop while another version still does."""
        if not self._ownership.take(run, self._settings.checkpoint(self.job) / _OWNER):
            return False
        self._fit_topics(run)
        return True

    def leave(self, topics: Collection[str], committed: Position) -> None:
        """Begin at the start of `topics`, which were recreated; `committed` is of the others, if there are others."""
        del topics, committed
        remove_tree(self._checkpoint())

    def starts(self, topics: Sequence[str]) -> str:
        """Give Spark's `startingOffsets` for `topics`, for a checkpoint that has none of its own."""
        del topics
        return "earliest"

    def count_figures(self, figures: dict[str, Any]) -> None:
        """Add the figures of a finished batch."""
        for name, count in figures.items():
            self._counts[name] = self._counts.get(name, 0) + (count or 0)

    def sentence(self) -> str:
        """Say what it does, for its report."""
        return "reads one record at a time, keeps no state"

    # --- what the job's life asks for ---------------------------------------------------------------------------------

    def slots(self, partitions: int) -> int:
        """Count one for each partition: with fewer, a stateless real-time query silently leaves partitions unread."""
        return partitions

    def start(self, run: Run) -> Started | None:
        """Start or resume, once no other version writes; announce a backlog to the jobs behind it first."""
        self.check(run.spark)
        if not self.owns(run):
            return None
        run.position, removed = self._position(run)
        self._poison.search(run, run.position, self._write, self.set_aside)
        self._counts["set_aside"] = self._poison.count
        self._began_at = run.position
        # A backlog as old as the gap: the jobs behind it begin again for that, and read what it says of its windows.
        lag = max(self._lag(run), self._gap_age() if removed or self._is_behind_recreated else 0.0)
        self._is_behind_recreated = False
        # What is read first grows older until the query reads it: half of the lateness is left for that.
        draining = lag > self.source.lateness.total_seconds() / 2
        if draining:
            self._await_keepers(run, lag)
        # Real-time mode cannot step over records that retention has removed; one micro-batch can.
        self._skipping, self._finished_batch = removed > 0, False
        query = self._query(run.spark)
        self._poison.begin(run.position)
        self._ticker = self._ticker or self._new_ticker(run)
        self._ticker.note_committed(run.position)
        reason = self._reason(lag if draining else None)
        return Started(
            query=query,
            mode=MICRO_BATCH if removed else REAL_TIME,
            reason=f"{removed} records were removed before they were read; continuing after them"
            if removed
            else reason,
            state=JobState.DRAINING if draining else JobState.RUNNING,
            batch_seconds=0.0 if removed else self._settings.spark.ingest_trigger_seconds,
        )

    def note_end(self) -> None:
        """Note that the query has ended, and its process has not."""
        self._poison.end()

    def count_batch(self, progress: BatchProgress) -> dict[str, Any]:
        """Count what was read, and let ticks follow what was committed."""
        self._finished_batch = True
        self.count_figures(dict(progress.observed.get(self.observation, {})))
        if self._ticker is not None:
            self._ticker.note_committed(progress.end_offsets)
        return {"counts": dict(self._counts)}

    def poll(self, run: Run) -> str | None:
        """Keep the reported state true: a backlog makes it draining, the end of the backlog running again."""
        moment = self.complete_through(run)
        if moment is not None:
            run.reporter.update(complete_through=moment)
        if not self._finished_batch:
            return None
        if self._skipping:
            return "past the removed records"
        draining = run.lag_seconds > self.source.lateness.total_seconds()
        state = JobState.DRAINING if draining else JobState.RUNNING
        run.restate(state, self._reason(run.lag_seconds if draining else None))
        return None

    def accept_failure(self, _: Run, error: str) -> bool:
        """Try again; when it fails at the same place once more, `start` looks for the record that ends it."""
        committed = self._committed()
        # Before the first commit since removed records were passed over, what is committed lies before them.
        return self._poison.count_failure(error, _furthest(self._began_at, committed))

    # --- backlog ------------------------------------------------------------------------------------------------------

    def _position(self, run: Run) -> tuple[Position, int]:
        """Find the next offset of each place, and how many records there were removed before they were read."""
        first, _ = run.topics.bounds()
        committed = self._committed()
        if not committed:
            # What a broken-off first batch left behind says nothing, and Spark refuses to begin over it. So it does
            # where the records came from another topic.
            remove_tree(self._checkpoint())
            return first, 0
        removed = _between(committed, first)
        if removed:
            self._record_gap(run, committed, first)
        if lost := gaps.count_removed(self._folder):
            self._counts["removed_unread"] = lost
        return _furthest(first, committed), removed

    def _record_gap(self, run: Run, reached: Position, first: Position) -> None:
        """Write down what was removed between `reached` and `first`; until a batch is committed, each start does."""
        begins = {place: offset for place, offset in _furthest(first, reached).items() if place in reached}
        before, since = gaps.count_removed(self._folder), self._written_since()
        for topic, holes in gaps.find_holes(run.topics, reached, begins).items():
            until = max(hole.appended_before for hole in holes.values())
            fields = {"topic": topic, "cause": gaps.Cause.REMOVED, "found_at": datetime.now(UTC)}
            gaps.record(self._folder, gaps.Gap(**fields, since=since, until=until, partitions=holes))
        if new := gaps.count_removed(self._folder) - before:
            log.error("records lost: retention is shorter than the outage", count=new)

    def _written_since(self) -> datetime | None:
        """Find an event time before which all events are written: by the last of them or, if they are gone, a commit.

        Each partition of the events topic has a tick or an event of about the time at which this job last wrote.
        """
        with TopicSet(self._settings, self.job, self.writes[:1]) as events:
            first, ends = events.bounds()
            last = (events.first_at(p, end - 1, end, came_in_at) for p, end in ends.items() if end > first[p])
            moments = [moment for moment in last if moment is not None]
        if not moments:
            commits = (modified_at(path) for path in (self._checkpoint() / "commits").glob("[0-9]*"))
            moments = [datetime.fromtimestamp(at, UTC) for at in sorted(commits)[-1:]]
        return min(moments) - self.source.lateness if moments else None

    def _gap_age(self) -> float:
        """Return the seconds since the last gap begins; 0 without one, or if its begin is not known."""
        begins = [gap.since for gap in gaps.read_gaps(self._folder)[-1:]]
        return max(((datetime.now(UTC) - since).total_seconds() for since in begins if since is not None), default=0.0)

    def _fit_topics(self, run: Run) -> None:
        """Read topics that were deleted and created again from their start, and note which those of now are."""
        note = self._folder / _TOPICS
        known, committed = state_file.read(note, KnownTopics, KnownTopics()).ids, self._committed()
        ids = run.topics.ids()  # before their ends
        if recreated := run.topics.recreated(known, committed):
            log.error("topic recreated, what was unread of it is lost; reading it from its start", topics=recreated)
            since, now = self._written_since(), datetime.now(UTC)
            self._is_behind_recreated = True
            for topic in recreated:
                until = oldest(run.topics.only([topic]), {}) or now  # what was lost came before the first that is there
                gap = gaps.Gap(
                    topic=topic, cause=gaps.Cause.REMOVED, found_at=now, since=since, until=until, partitions={},
                    is_recreated=True,
                )  # fmt: skip
                gaps.record(self._folder, gap)
            self.leave(recreated, {p: at for p, at in committed.items() if partition_of(p)[0] not in recreated})
            self._began_at = {}
            self._ticks_end.set()  # it waits for ends of the former topic
            self._ticker = None
        run.topic_ids = {**known, **ids}
        if run.topic_ids != known:
            state_file.write(note, KnownTopics, KnownTopics(ids=run.topic_ids))
        self._poison.fit(run.topic_ids)
        if count := gaps.count_recreated(self._folder):
            self._counts[TOPICS_RECREATED] = count

    def _committed(self) -> Position:
        """Read the next offset of each place that it reads, as committed; none before the first batch."""
        committed = read_committed(self._checkpoint()) or {}
        return {place: offset for place, offset in committed.items() if partition_of(place)[0] in self.reads}

    def _lag(self, run: Run) -> float:
        """Return the seconds since the oldest unread record came in; 0 when all is read."""
        since = oldest(run.topics, run.position, self.appended_at)
        return 0.0 if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds())

    def _await_keepers(self, run: Run, lag: float) -> None:
        """Announce the backlog and wait until the running jobs that keep state have widened their delay for it."""
        reader = ReportReader(self._settings)
        reported: list[str] = []
        # The backlog grows older while it waits and until it is read, so the normal delay is never enough.
        needed = lag + self.source.lateness.total_seconds() + LONGEST_WAIT.total_seconds()
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
        events = TopicReader(self._settings, self.job, self.writes[0])
        true_after, end = self.true_after(run, read), threading.Event()
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
        return Ticker(self._settings, self.source.name, watched)

    def _reason(self, behind_seconds: float | None = None) -> str:
        """Say what there is to say while it runs, or drains a backlog that is so old."""
        removed = int(self._counts.get("removed_unread", 0))
        lost = f"{removed} records were removed before they were read, their events are lost; " if removed else ""
        if self._counts.get(TOPICS_RECREATED):
            lost += "a topic that it reads was deleted and created again, what was unread of it is lost; "
        return lost + self._poison.sentence + (self.sentence() if behind_seconds is None else _drains(behind_seconds))

    # --- query --------------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> StoredPath:
        return self._folder / "query"

    def _query(self, spark: SparkSession) -> StreamingQuery:
        kafka = kafka_options(self._settings)
        options = {"includeHeaders": "true", "failOnDataLoss": str(not self._skipping).lower()}
        if self._skipping:  # what is removed while this batch reads is lost without a word: it is a short one
            options["maxOffsetsPerTrigger"] = str(self._settings.spark.drain_offsets_per_trigger)

        def read(topics: Sequence[str]) -> DataFrame:
            own = options | {"startingOffsets": self.starts(topics)}
            return self._poison.without(read_topics(spark.readStream, self._settings, self.job, topics, **own))

        rows = self.make_rows(read)
        writer = rows.writeStream.format("kafka").options(**kafka, **_PRODUCER).outputMode("update")
        writer = writer.option("checkpointLocation", str(self._checkpoint())).queryName(self.source.name)
        if self._skipping:
            return writer.trigger(processingTime="0 seconds").start()
        cadence = f"{self._settings.spark.ingest_trigger_seconds} seconds"
        return writer.trigger(realTime=cadence).start()  # type: ignore[call-overload,no-any-return]  # not in its overloads

    def _write(self, read: Read) -> None:
        self.write(self.make_rows(read))

    def write(self, rows: DataFrame) -> None:
        """Write what `make_rows` has made, as a batch."""
        rows.write.format("kafka").options(**kafka_options(self._settings), **_PRODUCER).save()


def _furthest(one: Position, other: Position) -> Position:
    """Take the later of two positions, for each place of `one`."""
    return {place: max(offset, other.get(place, 0)) for place, offset in one.items()}


def _between(position: Position, first: Position) -> int:
    """Count the records that lie between `position` and the first that are kept."""
    return sum(max(0, first[place] - offset) for place, offset in position.items() if place in first)


def _drains(lag_seconds: float) -> str:
    return f"drains a backlog up to {timedelta(seconds=round(lag_seconds))} old"
