"""The life of one long-running Spark job: one lock, one query, one report; the same for ingest and detectors.

A job waits for Kafka, starts its query, publishes its progress, starts the query again when Kafka comes back, when
partitions were added or when its own work asks for it, and stops within 15 seconds of SIGTERM. Everything it must find
again lies in its checkpoint, so SIGKILL at any moment loses nothing.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from dataclasses import replace
from typing import Any

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.kafka.offsets import Offsets, Topic, lag_of
from tocsin.model.errors import TransientError
from tocsin.model.job_report import JobState
from tocsin.project.settings import Settings
from tocsin.runtime.reporter import Reporter
from tocsin.runtime.stopping import on_signals
from tocsin.sparkjob import class_archive, jvm
from tocsin.sparkjob.failures import Unwritable, cause, is_kafka, is_unwritable, refusal
from tocsin.sparkjob.query.progress import Progress, listen
from tocsin.sparkjob.query.read_positions import Between
from tocsin.sparkjob.query.work import Started, Work
from tocsin.sparkjob.session import consumer_group, scratch_folder, streaming_session

PARTITION_SECONDS = 10.0
LAG_SECONDS = 5.0
_POLL_SECONDS = 0.25
_BOUNDARY_SECONDS = 5.0
_ARCHIVE_SECONDS = 60.0
_RETRIES = 5

log = structlog.get_logger()


class Run:
    """One run of a job, as its work sees it.

    Attributes:
        settings, work, reporter: of the job.
        topic: the topic it reads, beside Spark.
        partitions: how many that topic has; the slots fit them.
        spark: the session; a new one after partitions were added.
        position: next offset by partition, as committed by the last finished batch; a start sets it before the first.
        lag_seconds: since the oldest record came in that the last finished batch left unread; 0 before the first.
        between: how far the query has read since then.
    """

    spark: SparkSession

    def __init__(self, settings: Settings, work: Work, reporter: Reporter, stop: threading.Event) -> None:
        self.settings, self.work, self.reporter = settings, work, reporter
        self.topic = Topic(settings, work.job, work.reads)
        self.between = Between(self.topic, consumer_group(settings, work.job))
        self.partitions = 0
        self.position: Offsets = {}
        self.lag_seconds = 0.0
        self._stop = stop
        self._progress: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self._totals = {"rows_in": 0, "rows_out": 0, "rows_dropped_late": 0}
        self._started: Started | None = None
        self._since, self._began = 0.0, time.monotonic()
        self._checked = {"partitions": 0.0, "lag": 0.0}
        self._retries = 0
        self._archive: class_archive.Making | None = None

    @property
    def stopping(self) -> bool:
        """Whether the job was asked to stop; loops inside `Work.start` must end then."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until the job is asked to stop; True when it was."""
        return self._stop.wait(seconds)

    def restate(self, state: JobState, reason: str) -> None:
        """The same query goes on in another state, or for another reason; publishes the report if that is news."""
        now = self._started
        if now is not None and (now.state, now.reason) != (state, reason):
            self._started = replace(now, state=state, reason=reason)
            self._say_running()

    def until_stopped(self) -> None:
        """Keep the query running until the job is asked to stop."""
        while not self.stopping:
            if not self._reach_kafka():
                return
            self._session()
            try:
                started = self.work.start(self)
                if started is not None:
                    self._follow(started)
            except TransientError as error:
                self._pause(str(error))
            finally:
                self._halt()

    def close(self) -> None:
        """Stop query, session and JVM, and leave Kafka."""
        if self._archive is not None:
            self._archive.stop()
        self._halt()
        if self.partitions:
            self.spark.stop()
        self.topic.close()
        jvm.end()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _reach_kafka(self) -> bool:
        """Wait until Kafka answers and all topics exist; False when asked to stop."""
        told = ""
        while not self.stopping:
            missing = self._missing()
            if missing is None:
                return True
            if missing != told:
                told = missing
                log.warning("waiting", reason=missing)
                self.reporter.update(state=JobState.WAITING, reason=missing)
            self.wait(1.0)
        return False

    def _missing(self) -> str | None:
        """What Kafka lacks, as a sentence; None when nothing."""
        try:
            for name in self.work.writes:
                if Topic(self.settings, self.work.job, name).partitions() == 0:
                    return f"topic {name} does not exist yet"
            return None if self.topic.partitions() else f"topic {self.topic.name} does not exist yet"
        except TransientError as error:
            return f"{error} ({self.settings.kafka.bootstrap_servers})"

    def _pause(self, reason: str) -> None:
        """Kafka has just failed us: say so, and give it a moment. What outlives several attempts is not passing."""
        self._retries += 1
        if self._retries > _RETRIES:
            raise TransientError(reason)
        log.warning("starting again", reason=reason, attempt=self._retries)
        self.reporter.update(state=JobState.WAITING, reason=reason)
        self.wait(min(10.0, 2.0**self._retries))

    # --- session and query --------------------------------------------------------------------------------------------

    def _session(self) -> None:
        """A session whose slots fit the partitions of the topic."""
        partitions = self.topic.partitions()
        if partitions == self.partitions:
            return
        if self.partitions:
            self.spark.stop()
        self.partitions = partitions
        slots = self.work.slots(partitions)
        self.spark = streaming_session(self.settings, job=self.work.job, slots=slots)
        listen(self.spark, self._progress.put)
        on_signals(self._stop)  # Spark has put its own handler in place
        log.info("session ready", partitions=partitions, slots=slots)

    def _follow(self, started: Started) -> None:
        """Publish progress until there is a reason to stop the query."""
        self._started, self._since = started, time.monotonic()
        self.between.begin(self.position, started.batch_seconds)
        self.spark.sparkContext.setLogLevel("WARN")
        log.info("query started", mode=started.mode, state=started.state.value, reason=started.reason)
        self._say_running()
        while not self.wait(_POLL_SECONDS):
            self._take_progress()
            if not started.query.isActive:
                self._ended(started.query)
                return
            reason = self._grown() if self._due("partitions", PARTITION_SECONDS) else None
            reason = reason or self.work.poll(self)
            if reason is not None:
                log.info("starting again", reason=reason)
                return
            self._look_at_lag()
            self._make_archive()

    def _make_archive(self) -> None:
        """Once, when the job has run for a while: the classes of all its work are loaded, and its start is over."""
        if self._archive is None and time.monotonic() - self._began > _ARCHIVE_SECONDS:
            self._archive = class_archive.Making(
                self.settings, scratch_folder(self.settings, self.work.job), jvm.process_id()
            )

    def _say_running(self, **fields: Any) -> None:
        now = self._started
        if now is not None:
            fields |= {"state": now.state, "mode": now.mode, "reason": now.reason, "delay_seconds": now.delay_seconds}
        self.reporter.update(**fields)

    def _ended(self, query: StreamingQuery) -> None:
        """The query has stopped by itself: find out whether to try again."""
        error = cause(query)
        if refused := refusal(self.settings.checkpoint(self.work.job)):
            raise Unwritable(refused)
        if self.work.failed(error):
            log.info("starting again", reason="the query asked for another way", error=error.splitlines()[0][:300])
            return
        if is_unwritable(error):
            raise Unwritable(error)
        if (grown := self._grown()) is not None:  # Spark refuses new partitions while it looks for the first offsets
            log.info("starting again", reason=grown)
            return
        if is_kafka(error) or self._missing() is not None:
            raise TransientError(f"the query lost Kafka: {error.splitlines()[0][:300]}")
        raise RuntimeError(f"the query failed: {error}")

    def _halt(self) -> None:
        """Stop the query, at a batch boundary when that is near: less is repeated then."""
        started, self._started = self._started, None
        if started is None or not started.query.isActive:
            return
        self._await_boundary(started)
        # An aborted batch is told as a dozen errors, for seconds, and is none.
        self.spark.sparkContext.setLogLevel("OFF")
        with contextlib.suppress(Exception):  # a stop that times out leaves a dead query: the next start tells
            started.query.stop()
        self._take_progress()

    def _await_boundary(self, started: Started) -> None:
        remaining = started.batch_seconds - (time.monotonic() - self._since) if started.batch_seconds else 0.0
        busy = not started.batch_seconds and bool(started.query.status["isTriggerActive"])
        deadline = time.monotonic() + _BOUNDARY_SECONDS
        if remaining > _BOUNDARY_SECONDS or not (busy or started.batch_seconds):
            return
        while time.monotonic() < deadline and started.query.isActive and not self._take_progress():
            time.sleep(0.05)

    # --- what it tells ------------------------------------------------------------------------------------------------

    def _take_progress(self) -> bool:
        """Publish each batch that has finished since the last call; False when none has."""
        taken = False
        while not self._progress.empty():
            progress, taken = self._progress.get(), True
            self._retries, self._since = 0, time.monotonic()
            self.position |= progress.end_offsets.get(self.topic.name, {})
            if self.reporter.leads:
                self.topic.commit(self.position)
            rows = {"rows_in": progress.rows_in, "rows_out": progress.rows_out}
            for name, count in (rows | {"rows_dropped_late": progress.dropped_late}).items():
                self._totals[name] += count
            further = self.work.progressed(progress)
            delay = self._started.delay_seconds if self._started is not None else None
            watermark = progress.watermark if delay is None else progress.next_watermark(delay)
            latest = progress.latest_offsets.get(self.topic.name, {})
            fields: dict[str, Any] = {"batch_id": progress.batch_id, "watermark": watermark, **self._totals}
            lag = self._lag(latest or self.position)
            self.lag_seconds = lag["lag_seconds"]
            self._say_running(**fields, **lag, **further)
        if taken and self._started is not None:
            self.between.begin(self.position, self._started.batch_seconds)
        return taken

    def _look_at_lag(self) -> None:
        """The figure of the last batch stands; when a batch takes longer than it should, the topic's ends tell."""
        started = self._started
        quiet = (started.batch_seconds if started else 0.0) + LAG_SECONDS
        if time.monotonic() - self._since < quiet or not self._due("lag", LAG_SECONDS):
            return
        try:
            _, ends = self.topic.bounds()
            self._say_running(**self._lag(ends))
        except TransientError as error:
            log.warning("waiting", reason=str(error))
            self.reporter.update(state=JobState.WAITING, reason=str(error))

    def _lag(self, ends: Offsets) -> dict[str, Any]:
        lag = lag_of(self.topic, self.position, ends, self.work.appended_at)
        return {"lag_records": lag.records, "lag_seconds": lag.seconds}

    def _grown(self) -> str | None:
        """A sentence when partitions were added; None else."""
        with contextlib.suppress(TransientError):
            partitions = self.topic.partitions()
            if partitions > self.partitions:
                return f"{self.topic.name} has grown from {self.partitions} to {partitions} partitions"
        return None

    def _due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now - self._checked[what] < seconds:
            return False
        self._checked[what] = now
        return True
