"""The run of a job that its query loop and its kind share, and the query that runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.declare.blocks.spark_settings import ResourceSettings
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.settings import PROJECT_FILE, Settings
from tocsin.platform.kafka.client import is_recreated
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.kafka.retry import Retry
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet
from tocsin.spark.engine import cluster
from tocsin.spark.engine.attachment import Attachment
from tocsin.spark.query.read_positions import ReadPositions
from tocsin.spark.session import consumer_group

SLOTS_SECONDS = 60.0
"""So long executors may take to come before the cluster is asked anew."""

WAIT_SECONDS = 1.0
"""Between two attempts of a job to start its query."""

_LOOK_SECONDS = 0.2
REAL_TIME, MICRO_BATCH = "real-time", "micro-batch"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The way in which a query reads on.

    Attributes:
        mode: "real-time" or "micro-batch".
        reason: why this mode and state, one sentence.
        delay_seconds: watermark delay in force; None without a watermark.
        skips_removed: records were removed before they were read, and are stepped over.
    """

    mode: str
    reason: str
    state: JobState = JobState.RUNNING
    delay_seconds: float | None = None
    skips_removed: bool = False


@dataclass(frozen=True, kw_only=True)
class Started(Choice):
    """A running query; `batch_seconds` is the length of its batches, 0 in micro-batch mode."""

    query: StreamingQuery
    batch_seconds: float = 0.0


class Run:
    """One run of a job; the query loop keeps it up to date.

    Attributes:
        topic_ids: Kafka's ids of these, as they were when the query began to read them; a start sets them.
        attachment: what this process has of an engine; None with a JVM of its own.
        places: their partitions; the slots fit them.
        spark: the session; a new one after partitions were added.
        slots: its task slots on this machine; on a cluster see `await_slots`.
        executors: those of the cluster that the query began with; of the session before, none.
        counts: of what was read, left out or lost, by name, for reports.
        resources: what the job gets on the cluster; None where it runs on this machine.
        position: next offset by place, as committed by the last finished batch; a start sets it before the first.
        lag_seconds: since the oldest record came in that the last finished batch left unread; 0 before the first.
        read_positions: how far the query has read since then.
        started: the query that runs; None while none does.
    """

    spark: SparkSession

    def __init__(
        self, settings: Settings, job: str, reads: Sequence[str], reporter: Reporter, stop: threading.Event
    ) -> None:
        self.settings, self.job, self.reporter = settings, job, reporter
        self.topics, self.read_positions = self._readers(reads)
        self.places: list[Place] = []
        self.slots = 0
        self.executors: frozenset[str] = frozenset()
        self.counts: dict[str, float] = {}
        self.resources: ResourceSettings | None = None
        self.position: Position = {}
        self.topic_ids: dict[str, str] = {}
        self.lag_seconds = 0.0
        self.attachment: Attachment | None = None
        self.started: Started | None = None
        self._stop = stop

    def follow(self, names: Sequence[str]) -> bool:
        """Read the topics `names`; False when they are others than before: the next session has slots for them."""
        if self.topics.names == tuple(names):
            return True
        self.topics.close()
        self.topics, self.read_positions = self._readers(names)
        return False

    def _readers(self, names: Sequence[str]) -> tuple[TopicSet, ReadPositions]:
        topics = TopicSet(self.settings, self.job, names)
        return topics, ReadPositions(topics, consumer_group(self.settings, self.job))

    @property
    def is_stopping(self) -> bool:
        """Return whether the job was asked to stop; loops inside a start must end then."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until the job is asked to stop; True when it was."""
        return self._stop.wait(seconds)

    def retry(self) -> Retry:
        """Begin to wait for something that the job needs before it can run."""
        return Retry(self.reporter, self._stop, first_seconds=WAIT_SECONDS)

    def await_slots(self, needed: int) -> int:
        """Wait until as many task slots are there as the query holds at once; returns how many, 0 if asked to stop.

        Raises a ConfigError if what the job gets on the cluster is never enough, and ClusterLost if executors did not
        come in time, or the session has ended.
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
        retry, began = self.retry(), time.monotonic()
        while True:
            before, self.executors = self.executors, cluster.executors_of(self.spark)
            if lost := len(before - self.executors):
                self.counts["executors_lost"] = self.counts.get("executors_lost", 0) + lost
            there = len(self.executors) * self.resources.cores
            if there >= needed:
                return there
            reason = f"needs {needed} task slots at once; executors with {there} have registered"
            if time.monotonic() - began > SLOTS_SECONDS:
                raise cluster.ClusterLost(f"{reason} (asking anew after {SLOTS_SECONDS:.0f} s)")
            retry.report(reason)
            if self.wait(_LOOK_SECONDS):
                return 0

    def recreated_topic(self, topics: TopicSet) -> str | None:
        """Name one of `topics` recreated since the query began to read it. TransientError if Kafka is away."""
        ids = topics.ids().items()
        return next((name for name, id_ in ids if is_recreated(self.topic_ids.get(name, ""), id_, {}, {})), None)

    def restate(self, state: JobState, reason: str) -> None:
        """Report another state, or another reason, of the same query; nothing if both are as before."""
        now = self.started
        if now is not None and (now.state, now.reason) != (state, reason):
            self.started = replace(now, state=state, reason=reason)
            self.report()

    def report(self, **fields: Any) -> None:
        """Publish `fields` and the counts, and the state of the query if one runs."""
        now, fields = self.started, fields | {"counts": dict(self.counts)}
        if now is not None:
            fields |= {"state": now.state, "mode": now.mode, "reason": now.reason, "delay_seconds": now.delay_seconds}
        self.reporter.update(**fields)
