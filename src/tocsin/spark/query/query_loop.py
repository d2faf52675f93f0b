"""Keep one long-running Spark job alive: one lock, one query, one report.

A job waits for Kafka, starts its query, publishes its progress, starts the query again when Kafka comes back, when
partitions were added or when its kind asks for it, and stops within 15 seconds of SIGTERM. Everything it must find
again lies in its checkpoint, so SIGKILL at any moment loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.declare.blocks.spark_settings import LOCAL
from tocsin.declare.model.errors import ConfigError, StartAgain, TransientError
from tocsin.declare.model.job_report import ISOLATED, JobState
from tocsin.declare.settings import Settings
from tocsin.platform.failures import (
    Unwritable,
    cause,
    is_kafka,
    is_unwritable,
    missing_in_workers,
    refusal,
    root_cause,
    store_failure,
)
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.kafka.topic_set import Position, lag_of, partition_of
from tocsin.platform.kafka.topics import check_access
from tocsin.platform.process_exit import on_signals
from tocsin.spark.engine import jvm
from tocsin.spark.engine.attachment import Attachment, attach
from tocsin.spark.engine.cluster import ClusterLost, has_lost_executor, is_lost, refusal_of_masters
from tocsin.spark.engine.deaths import isolation
from tocsin.spark.query.progress import BatchProgress, Ended, listen
from tocsin.spark.query.stream_job import StreamJob
from tocsin.spark.query.work import WAIT_SECONDS, Run, Started
from tocsin.spark.session import JOB_SLOTS, streaming_session

PARTITION_SECONDS = 10.0
LAG_SECONDS = 5.0
_POLL_SECONDS = 0.25
_BOUNDARY_SECONDS = 5.0
_END_SECONDS = 2.0
_RETRIES = 5
_LOSSES = 3

log = structlog.get_logger()


class QueryLoop:
    """Keeps the query of one job running."""

    def __init__(self, settings: Settings, job: StreamJob, reporter: Reporter, stop: threading.Event) -> None:
        self._settings, self._job, self._reporter, self._stop = settings, job, reporter, stop
        self._run = Run(settings, job.spec.job, job.spec.topics(), reporter, stop)
        self._run.resources = job.spec.resources if settings.spark.master != LOCAL else None
        self._attachment: Attachment | None = None
        self._progress: queue.SimpleQueue[BatchProgress | Ended] = queue.SimpleQueue()
        self._totals = {"rows_in": 0, "rows_out": 0, "rows_dropped_late": 0}
        self._since, self._ended = 0.0, ""
        self._checked = {"partitions": 0.0, "lag": 0.0}
        self._retries = self._losses = 0

    def run_until_stopped(self) -> None:
        """Keep the query running until the job is asked to stop. Raises StartAgain when its engine has ended."""
        try:
            self._run_until_stopped()
        except StartAgain:
            raise
        except Exception as error:
            if self._attachment is None and isinstance(error, Py4JError | ConnectionError) and jvm.has_ended():
                raise RuntimeError("the JVM has ended; the end of the log says why") from error
            if self._attachment is None or not self._attachment.is_lost():
                raise
            self._run.started = None
            if self._run.is_stopping:  # both were asked to stop, and the engine was quicker
                return
            self._job.spec.poison.end()  # the engine has ended, for a reason of its own or of any of its jobs
            raise StartAgain(f"{self._attachment.engine} has ended; attaches to the next") from error

    def _run_until_stopped(self) -> None:
        while not self._run.is_stopping:
            if not self._reach(self._missing):
                return
            try:
                if not self._fit_session():
                    return
                started = self._job.start(self._run)
                if started is not None:
                    self._follow(started)
            except TransientError as error:
                # A cluster without room is waited for, as Kafka is at the start.
                self._pause(str(error), counts=not self._end_session(cluster_lost=isinstance(error, ClusterLost)))
            except (PySparkException, Py4JError) as error:
                if not self._end_session(cluster_lost=self._has_lost_cluster()):
                    raise
                self._pause(f"the cluster has ended the session: {root_cause(error)}")
            finally:
                self._halt()

    def close(self) -> None:
        """Stop query, session and JVM, and leave Kafka."""
        self._halt()
        self._stop_session()
        self._run.topics.close()
        if self._attachment is not None:
            self._attachment.close()
        jvm.end()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _reach(self, missing_of: Callable[[], str | None]) -> bool:
        """Wait until nothing is missing any more; False when asked to stop."""
        retry = self._run.retry()
        while not self._run.is_stopping:
            missing = missing_of()
            if missing is None:
                return True
            retry.failed(missing, WAIT_SECONDS)
        return False

    def _missing(self) -> str | None:
        """Name what Kafka lacks, in a sentence; None when nothing. ConfigError if it refuses what the job needs."""
        try:
            check_access(self._settings, self._run.job, self._run.topics.names, self._job.spec.writes)
            for name in self._job.spec.writes:
                with TopicReader(self._settings, self._run.job, name) as topic:
                    if not topic.partitions():
                        return f"topic {name} does not exist yet"
            missing = self._run.topics.missing()
            return None if missing is None else f"topic {missing} does not exist yet"
        except TransientError as error:
            return str(error)

    def _pause(self, reason: str, *, counts: bool = True) -> None:
        """Report what has failed, and give it a moment; raise when several that count have failed in a row."""
        self._retries += counts
        if self._retries > _RETRIES:
            raise TransientError(reason)
        log.warning("query restarting", reason=reason, attempt=self._retries)
        self._reporter.update(state=JobState.WAITING, reason=reason)
        self._run.wait(min(10.0, 2.0**self._retries))

    # --- session and query --------------------------------------------------------------------------------------------

    def _fit_session(self) -> bool:
        """Start a session whose slots fit the partitions of the topics, unless there is one; False if asked to stop."""
        places, resources = self._run.topics.partitions(), self._run.resources
        if places == self._run.places:
            return True
        self._stop_session()
        if resources is not None and not self._reach(lambda: refusal_of_masters(self._settings.spark)):
            return False
        # With fewer than one for each partition a stateless real-time query silently leaves partitions unread.
        own = len(places) + self._settings.spark.shuffle_partitions * self._job.spec.exchanges
        slots = self._run.slots = own if resources is None else resources.slots
        if self._may_attach(own) and not self._reach(self._attach):
            return False
        if self._attachment is None:
            latency = self._job.spec.latency
            self._run.spark = streaming_session(
                self._settings, job=self._run.job, slots=slots, resources=resources, latency=latency
            )
            jvm.halt_at_end()
            listen(self._run.spark, self._progress.put)
        elif own > JOB_SLOTS:
            raise StartAgain(f"needs {own} task slots, more than {self._attachment.engine} has for a job")
        self._run.places, self._run.executors = places, frozenset()
        on_signals(self._stop)  # Spark has put its own handler in place
        master = self._attachment.engine if self._attachment is not None else self._settings.spark.master
        log.info("session ready", partitions=len(places), slots=slots, master=master)
        return True

    def _may_attach(self, slots: int) -> bool:
        """Return whether the job shares an engine; one that was submitted to Spark has its JVM already."""
        return bool(self._job.spec.pool) and slots <= JOB_SLOTS and "PYSPARK_GATEWAY_PORT" not in os.environ

    def _attach(self) -> str | None:
        """Attach to an engine, unless it is done, or the job is isolated; says why it cannot be, in a sentence."""
        run, spec = self._run, self._job.spec
        reason = isolation(self._settings.state, run.job, spec.version)
        run.counts[ISOLATED] = bool(reason)
        if reason:
            log.warning("isolated", reason=reason)
        if reason or self._attachment is not None:
            return None
        try:
            self._attachment = run.attachment = attach(self._settings, run.job, spec.pool, spec.version)
        except TransientError as error:
            return str(error)
        run.spark = self._attachment.session
        self._reporter.add_usage(self._attachment.cost)
        listen(run.spark, self._progress.put)
        return None

    def _stop_session(self) -> None:
        """Stop the session, if there is one of this process alone."""
        if self._run.places and self._attachment is None:
            jvm.log_errors(wanted=False)
            with contextlib.suppress(Py4JError, ConnectionError):  # the JVM has ended
                self._run.spark.stop()
        self._run.places = []

    def _accept_loss(self, error: str) -> bool:
        """Return whether the query has failed for the loss of an executor, and is to start again at once.

        A record may be what ends executors, so several losses without a batch between them are a failure like others.
        """
        run = self._run
        if run.resources is None or self._losses >= _LOSSES or not has_lost_executor(run.spark, run.executors, error):
            return False
        self._losses += 1
        return True

    def _has_lost_cluster(self) -> bool:
        """Return whether the cluster has ended the session, or never began it."""
        return self._run.resources is not None and (not self._run.places or is_lost(self._run.spark))

    def _end_session(self, *, cluster_lost: bool) -> bool:
        """Let the next start ask the cluster anew if it was lost; returns whether it was."""
        if cluster_lost and self._run.places:
            with contextlib.suppress(Exception):  # it has ended
                self._run.spark.stop()
            self._run.places = []
        return cluster_lost

    def _follow(self, started: Started) -> None:
        self._run.started, self._since = started, time.monotonic()
        if self._attachment is not None:
            self._attachment.note_start(str(started.query.runId))
        self._run.read_positions.begin(self._run.position, started.batch_seconds)
        jvm.log_errors(wanted=True)
        log.info("query started", mode=started.mode, state=started.state.value, reason=started.reason)
        self._run.report()
        while not self._run.wait(_POLL_SECONDS):
            self._take_progress()
            if not started.query.isActive:
                self._handle_end(started.query)
                return
            reason = self._change_of_topics() if self._is_due("partitions", PARTITION_SECONDS) else None
            reason = reason or self._job.poll(self._run)
            if reason is not None:
                log.info("query restarting", reason=reason)
                return
            self._look_at_lag()

    def _handle_end(self, query: StreamingQuery) -> None:
        error = cause(query)
        if self._attachment is not None:
            self._attachment.note_failure(error)
        if self._accept_loss(error):
            log.warning("query restarting", reason="an executor was lost", error=error.splitlines()[0][:300])
            return
        if refused := refusal(self._settings.checkpoint(self._run.job)):
            raise Unwritable(refused)
        # Spark refuses new partitions while it looks for the first offsets.
        if (change := self._change_of_topics()) is not None:
            log.info("query restarting", reason=change)
            return
        if self._run.resources is not None and (missing := missing_in_workers(error)):
            raise ConfigError.one("spark.master", missing)  # no record is the cause
        if self._job.accept_failure(self._run, error):
            log.info("query restarting", reason="the query changes its mode", error=error.splitlines()[0][:300])
            return
        if is_unwritable(error):
            raise Unwritable(error)
        if self._settings.storage.is_remote and (failure := store_failure(error)) is not None:
            raise failure
        if is_kafka(error) or self._missing() is not None:
            raise TransientError(f"the query lost Kafka: {error.splitlines()[0][:300]}")
        raise RuntimeError(f"the query failed: {error}")

    def _halt(self) -> None:
        """Stop the query, at a batch boundary when that is near: less is repeated then."""
        started, self._run.started = self._run.started, None
        if started is None:
            return
        # These raise if the JVM has ended: a record may be the cause. Later it may end, as it is asked to, too.
        run_id, is_active = str(started.query.runId), started.query.isActive
        with contextlib.suppress(TransientError):  # the store is away, which ends no process
            self._job.spec.poison.end()  # process and JVM have not ended
        if is_active:
            self._await_boundary(started)
            jvm.log_errors(wanted=False)
            with contextlib.suppress(Exception):  # one that times out leaves a dead query, which the next start reports
                started.query.stop()
        self._await_end(run_id)

    def _await_end(self, run_id: str) -> None:
        """Take what finished batches of a run that has ended still have to say."""
        deadline = time.monotonic() + _END_SECONDS
        self._take_progress()
        while self._ended != run_id and time.monotonic() < deadline:
            time.sleep(0.02)
            self._take_progress()

    def _await_boundary(self, started: Started) -> None:
        remaining = started.batch_seconds - (time.monotonic() - self._since) if started.batch_seconds else 0.0
        busy = not started.batch_seconds and bool(started.query.status["isTriggerActive"])
        deadline = time.monotonic() + _BOUNDARY_SECONDS
        if remaining > _BOUNDARY_SECONDS or not (busy or started.batch_seconds):
            return
        while time.monotonic() < deadline and started.query.isActive and not self._take_progress():
            time.sleep(0.05)

    # --- reports ------------------------------------------------------------------------------------------------------

    def _take_progress(self) -> bool:
        """Publish each batch that has finished since the last call; False when none has."""
        has_taken, started = False, self._run.started
        while not self._progress.empty():
            progress = self._progress.get()
            if isinstance(progress, Ended):
                self._ended = progress.run_id
                continue
            if started is not None and progress.run_id != str(started.query.runId):
                continue  # of the query before, which may have read other topics
            self._publish(progress)
            has_taken = True
        if has_taken and started is not None:
            self._run.read_positions.begin(self._run.position, started.batch_seconds)
        return has_taken

    def _publish(self, progress: BatchProgress) -> None:
        run = self._run
        self._retries, self._losses, self._since = 0, 0, time.monotonic()
        run.position |= progress.end_offsets
        if self._reporter.leads:
            run.topics.commit(run.position)
        self._totals["rows_in"] += progress.rows_in
        self._totals["rows_out"] += progress.rows_out
        self._totals["rows_dropped_late"] += progress.dropped_late
        further = self._job.count_batch(run, progress)
        delay = run.started.delay_seconds if run.started is not None else None
        watermark = progress.watermark if delay is None else progress.next_watermark(delay)
        lag = self._lag(progress.latest_offsets or run.position)
        run.lag_seconds = lag["lag_seconds"]
        run.report(**{"batch_id": progress.batch_id, "watermark": watermark, **self._totals, **lag, **further})

    def _look_at_lag(self) -> None:
        """Count the lag from the ends of the topics when a batch takes too long; else report the batch's own."""
        started = self._run.started
        quiet = (started.batch_seconds if started else 0.0) + LAG_SECONDS
        if time.monotonic() - self._since < quiet or not self._is_due("lag", LAG_SECONDS):
            return
        self._report_lag()

    def _report_lag(self) -> None:
        try:
            _, ends = self._run.topics.bounds()
            self._run.report(**self._lag(ends))
        except TransientError as error:
            log.warning("waiting", reason=str(error))
            self._reporter.update(state=JobState.WAITING, reason=str(error))

    def _lag(self, ends: Position) -> dict[str, Any]:
        records, seconds = lag_of(self._run.topics, self._run.position, ends, self._job.spec.appended_at)
        return {"lag_records": records, "lag_seconds": seconds}

    def _change_of_topics(self) -> str | None:
        """Describe in a sentence a topic that was recreated, or given partitions; None if there is none."""
        with contextlib.suppress(TransientError):
            if (recreated := self._run.recreated_topic(self._run.topics)) is not None:
                return f"{recreated} was deleted and created again"
            both = self._run.places, self._run.topics.partitions()
            for topic in self._run.topics.names:
                before, now = (sum(partition_of(place)[0] == topic for place in some) for some in both)
                if now > before:
                    return f"{topic} has grown from {before} to {now} partitions"
        return None

    def _is_due(self, what: str, seconds: float) -> bool:
        now = time.monotonic()
        if now - self._checked[what] < seconds:
            return False
        self._checked[what] = now
        return True
