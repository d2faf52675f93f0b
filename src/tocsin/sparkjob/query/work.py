"""Define the work of a job, and the run of it that the query loop hands over."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from confluent_kafka import Message
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.kafka.reporter import Reporter
from tocsin.kafka.topic_identity import is_recreated
from tocsin.kafka.topic_set import Place, Position, TopicSet
from tocsin.model.errors import ConfigError
from tocsin.model.job_report import JobState
from tocsin.project.blocks.spark_settings import LOCAL, ResourceSettings
from tocsin.project.settings import PROJECT_FILE, Settings
from tocsin.sparkjob.engine import cluster
from tocsin.sparkjob.query.progress import BatchProgress
from tocsin.sparkjob.query.read_positions import ReadPositions
from tocsin.sparkjob.session import consumer_group

SLOTS_SECONDS = 60.0
"""So long executors may take to come before the cluster is asked anew."""

_LOOK_SECONDS = 0.2
REAL_TIME, MICRO_BATCH = "real-time", "micro-batch"


@dataclass(frozen=True, kw_only=True)
class Started:
    """A query that `Work.start` has started.

    Attributes:
        query: the running query.
        mode: "real-time" or "micro-batch".
        reason: why this mode and state, one sentence.
        state: RUNNING or DRAINING.
        batch_seconds: length of a real-time batch; 0 in micro-batch mode.
        delay_seconds: watermark delay in force; None without a watermark.
    """

    query: StreamingQuery
    mode: str
    reason: str
    state: JobState = JobState.RUNNING
    batch_seconds: float = 0.0
    delay_seconds: float | None = None


class Run:
    """One run of a job, as its work sees it; the query loop keeps it up to date.

    Attributes:
        settings, reporter: of the job.
        job: its name.
        topics: those it reads, beside Spark.
        topic_ids: Kafka's ids of these, as they were when the query began to read them; a start sets them.
        places: their partitions; the slots fit them.
        spark: the session; a new one after partitions were added.
        slots: its task slots on this machine; on a cluster see `await_slots`.
        executors: those of the cluster that the query began with; of the session before, none.
        executors_lost: how many that a query began with were gone when the next one began.
        resources: what the job gets on the cluster; None where it runs on this machine.
        position: next offset by place, as committed by the last finished batch; a start sets it before the first.
        lag_seconds: since the oldest record came in that the last finished batch left unread; 0 before the first.
        read_positions: how far the query has read since then.
        started: the query that runs; None while none does.
    """

    spark: SparkSession

    def __init__(self, settings: Settings, work: Work, reporter: Reporter, stop: threading.Event) -> None:
        self.settings, self.job, self.reporter = settings, work.job, reporter
        self.topics, self.read_positions = self._readers(work.reads)
        self.places: list[Place] = []
        self.slots = 0
        self.executors: frozenset[str] = frozenset()
        self.executors_lost = 0
        self.resources = work.resources if settings.spark.master != LOCAL else None
        self.position: Position = {}
        self.topic_ids: dict[str, str] = {}
        self.lag_seconds = 0.0
        self.started: Started | None = None
        self._stop = stop

    def follow(self, names: Sequence[str]) -> None:
        """Read the topics `names` from now on; the next session has slots for them."""
        self.topics.close()
        self.topics, self.read_positions = self._readers(names)

    def _readers(self, names: Sequence[str]) -> tuple[TopicSet, ReadPositions]:
        topics = TopicSet(self.settings, self.job, names)
        return topics, ReadPositions(topics, consumer_group(self.settings, self.job))

    @property
    def is_stopping(self) -> bool:
        """Return whether the job was asked to stop; loops inside `Work.start` must end then."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until the job is asked to stop; True when it was."""
        return self._stop.wait(seconds)

    def await_slots(self, needed: int) -> int:
        """Wait until as many task slots are there as the query holds at once; returns how many, 0 if asked to stop.

        Raises:
            ConfigError: what the job gets on the cluster is never enough.
            ClusterLost: executors did not come in time, or the session has ended.
        """
        if self.resources is None:
            return self.slots
        if needed > self.resources.slots:
            what = self.resources.sentence
            raise ConfigError.one(
                PROJECT_FILE,
                f"{self.job} needs {needed} task slots at once; {what} (its file may declare resources=)",
                key="spark.resources",
            )
        reported, began = "", time.monotonic()
        while True:
            before, self.executors = self.executors, cluster.executors_of(self.spark)
            self.executors_lost += len(before - self.executors)
            there = len(self.executors) * self.resources.cores
            if there >= needed:
                return there
            reason = f"needs {needed} task slots at once; executors with {there} have registered"
            if time.monotonic() - began > SLOTS_SECONDS:
                raise cluster.ClusterLost(f"{reason} (asking anew after {SLOTS_SECONDS:.0f} s)")
            if reason != reported:
                reported = reason
                self.reporter.update(state=JobState.WAITING, reason=reason)
            if self.wait(_LOOK_SECONDS):
                return 0

    def recreated_topic(self, topics: TopicSet) -> str | None:
        """Name one of `topics` that was deleted and created again since the query began to read it; None without one.

        Raises:
            TransientError: Kafka cannot be reached; a retry helps.
        """
        ids = topics.ids().items()
        return next((name for name, one in ids if is_recreated(self.topic_ids.get(name, ""), one, {}, {})), None)

    def restate(self, state: JobState, reason: str) -> None:
        """Report another state, or another reason, of the same query; nothing if both are as before."""
        now = self.started
        if now is not None and (now.state, now.reason) != (state, reason):
            self.started = replace(now, state=state, reason=reason)
            self.report()

    def report(self, **fields: Any) -> None:
        """Publish `fields`, and the state of the query if one runs."""
        now = self.started
        if now is not None:
            fields |= {"state": now.state, "mode": now.mode, "reason": now.reason, "delay_seconds": now.delay_seconds}
        self.reporter.update(**fields)


class Work(Protocol):
    """Do what one kind of job does, apart from staying alive. All is called on the job's main thread."""

    job: str
    version: str
    """Of what a user has written, for reports; empty where nothing has one."""
    reads: tuple[str, ...]
    """The topics whose partitions decide the slots; others after a start that has let the run follow them."""
    writes: tuple[str, ...]
    """Topics that must exist as well before the query starts."""

    @property
    def resources(self) -> ResourceSettings | None:
        """What it gets on a cluster; None for a job that always runs on its own machine."""

    def slots(self, partitions: int) -> int:
        """Count the task slots needed for `partitions` partitions of the topics that are read."""

    def start(self, run: Run) -> Started | None:
        """Start the query; called again after each stop. None when the job was asked to stop before it could.

        Raises:
            TransientError: Kafka went away, try again.
        """

    def note_end(self) -> None:
        """Take note that the query has ended, or is about to be stopped, and that its JVM lives."""

    def count_batch(self, progress: BatchProgress) -> dict[str, Any]:
        """Take note of a finished batch; returns further fields of the report."""

    def poll(self, run: Run) -> str | None:
        """Return a reason to stop the query and start it again, or None; called about four times a second."""

    def accept_failure(self, run: Run, error: str) -> bool:
        """Take note that the query has failed with `error`; True when starting it again will go another way."""

    def appended_at(self, message: Message) -> datetime | None:
        """Read when the record behind `message` came into the platform, UTC: `lag_seconds` is counted from it."""
