"""Run the job of one detector: events in, findings out."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import ScoreKind, Span
from tocsin.declare.model.durations import longest
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import detector_job
from tocsin.declare.settings import Settings
from tocsin.detect.spark.exact_scores import ExactScores
from tocsin.detect.spark.expected_windows import ClosedByBatch, Silence
from tocsin.detect.spark.findings import FAULTS, OBSERVATION, STEPS, WRITTEN, Emission, make_findings
from tocsin.detect.spark.plan import DetectorPlan, read_plan
from tocsin.detect.spark.step_query import NULL_ENTITY, detector_function
from tocsin.ingest.spark.mover import PassedOn
from tocsin.job import Job
from tocsin.platform.code_versions import keep_version
from tocsin.spark.declared_function import QueryFunction
from tocsin.spark.entry import run_query
from tocsin.spark.query.checkpoint import Checkpoint, Retention, open_checkpoint
from tocsin.spark.query.drain import SLACK, FeederLag, unread_upstream
from tocsin.spark.query.keyed_query import EXCHANGES, KeyedQuery
from tocsin.spark.query.leadership import remove_other_checkpoints
from tocsin.spark.query.poison import SetAside
from tocsin.spark.query.progress import BatchProgress, batches_in, watermark_of
from tocsin.spark.query.stream_job import StreamJob, StreamSpec, write_to_kafka
from tocsin.spark.query.work import REAL_TIME, Choice, Run
from tocsin.spark.session import findings_sink

log = structlog.get_logger()


_LOOK_SECONDS, _REST_SECONDS = 0.5, 1.0
_WAIT_SECONDS = 30.0


class ClosedWindows:
    """Reports which windows are closed between two boundaries of batches, so that e-mails need not wait.

    The ingest says up to when all that came in is in the events topic. Once the query has read that topic up to the end
    it had then, all that belongs to windows that ended a lateness before is found. Nothing is dropped because of it:
    Spark's own watermark moves at boundaries alone.
    """

    def __init__(self, ingest: FeederLag, window: timedelta, lateness: timedelta) -> None:
        self._passed_on, self._lateness = PassedOn(ingest), lateness
        self._wait_seconds = (window + lateness).total_seconds() + _WAIT_SECONDS
        self._is_reporting = False
        self._sent, self._sent_at, self._look_at = -1.0, float("-inf"), 0.0

    def begin(self, run: Run, mode: str, kind: ScoreKind | None, *, is_draining: bool) -> None:
        """Begin with a query. Report nothing while it drains, in micro-batch mode, and for scores that can fall."""
        self._passed_on.forget()
        self._is_reporting = mode == REAL_TIME and kind is ScoreKind.RISING and not is_draining
        self._sent, self._sent_at = -1.0, float("-inf")  # what was sent before may wait
        run.reporter.update(complete_through=None)

    def look(self, run: Run) -> None:
        """Report what is closed by now, twice a second at most. Nothing while Kafka does not answer."""
        now = time.monotonic()
        if not self._is_reporting or now < self._look_at:
            return
        is_awaited = self._may_be_awaited(run, now)
        self._look_at = now + (_LOOK_SECONDS if is_awaited else _REST_SECONDS)
        if is_awaited and (moment := self._passed_on.look(run)) is not None:
            run.reporter.update(complete_through=moment - self._lateness)

    def _may_be_awaited(self, run: Run, now: float) -> bool:
        """Return whether the window of a finding that was sent can still be open; asks for more if none is known."""
        if now - self._sent_at >= self._wait_seconds and (sent := run.read_positions.sent()) != self._sent:
            self._sent, self._sent_at = sent, now
        return now - self._sent_at < self._wait_seconds


class Detection(KeyedQuery[DetectorPlan]):
    """What `detector:<name>` does."""

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        self.spec = catalog.detector(name)
        super().__init__(settings, detector_job(name), self.spec, catalog)
        self._unread = functools.partial(unread_upstream, settings, self._feeders)
        lateness = max(source.lateness for source in self.sources)
        self._memory = self.spec.memory_span + lateness + SLACK
        self._closed = ClosedWindows(self._lag, longest(self.spec), lateness)
        self._exact = ExactScores(settings, self.spec, self.sources, self.folders.stored)
        self._nobody = ""
        self._unnoted_from: datetime | None = None

    def open(self, run: Run, name: str) -> Checkpoint:
        """Open the checkpoint of the plan, and note that this version runs on it."""
        retention = Retention(self._memory, self.plan.reach)
        checkpoint = open_checkpoint(self.folders, name, run.topics, retention, self._unread)
        if self.plan.score.counts:  # others have no lower bounds
            reached = watermark_of(checkpoint.query, max(batches_in(checkpoint.query / "commits"), default=-1))
            self._unnoted_from = None if reached is None else reached - longest(self.spec)
        versions = keep_version(self._settings, self.job, self.spec.version, self._text, name)
        if run.reporter.leads:  # it alone removes what no kept version can go back to
            remove_other_checkpoints(self._settings, self.folders, {version.fingerprint for version in versions})
        return checkpoint

    def _load(self) -> QueryFunction:
        return detector_function(self.spec, self.sources[0], text=self._text)

    def _read_plan(self, rows: DataFrame) -> DetectorPlan:
        return read_plan(rows, self.spec, self.sources)

    def _records(self, rows: DataFrame, mode: str, checkpoint: Checkpoint | None) -> DataFrame:
        if self.spec.expect is not None:
            return rows  # of each batch findings are made once it is complete
        if checkpoint is None:
            return make_findings(rows, self.spec, Emission())
        ladder = self.plan.score.counts and mode == REAL_TIME
        since, incomplete = self._publish_from(checkpoint), self._incomplete_spans()
        return make_findings(rows, self.spec, Emission(ladder=ladder, publish_from=since, incomplete=incomplete))

    def _incomplete_spans(self) -> tuple[Span, ...]:
        """List the spans in which events are missing; none for a rising score, which is true without them, too."""
        if self.plan.score.kind is ScoreKind.RISING and not self.spec.has_step:
            return ()
        memory = self.spec.forget_after or timedelta(0)
        return tuple((since, until + memory) for since, until in self.incomplete)

    def _publish_from(self, checkpoint: Checkpoint) -> datetime | None:
        """Tell from when on findings are published: with `step`, from when its state is whole, or is nobody else's."""
        since, memory = checkpoint.publish_from, self.spec.forget_after
        if since is None or memory is None or checkpoint.wanted is None:
            return since
        return min(since + memory, checkpoint.wanted + self._memory)

    def write(self, records: DataFrame, checkpoint: Checkpoint, sink: Mapping[str, str]) -> DataStreamWriter:
        """Write findings to Kafka; of silence batch by batch."""
        silence = Silence.of(self.spec)
        if silence is None:
            return write_to_kafka(records, checkpoint, sink)
        emission = Emission(publish_from=checkpoint.publish_from, incomplete=self._incomplete_spans())
        closed = ClosedByBatch(silence, checkpoint.query, emission, tables=self.tables.tables)
        return records.writeStream.foreachBatch(functools.partial(self._write_batch, closed, sink))

    def _write_batch(self, closed: ClosedByBatch, sink: Mapping[str, str], rows: DataFrame, batch: int) -> None:
        # They are read more than once, and all of them even if nothing comes of it: that writes down Spark's state.
        kept = rows.persist(StorageLevel.DISK_ONLY)
        try:
            made = closed.make_findings(kept, batch)
            if made is not None:
                made.write.format("kafka").options(**sink).save()
        except Py4JJavaError as error:
            # Spark 4.3.0 looks behind the name of this error for an interruption, by a pattern that overflows the stack
            # of the query's thread: that ends without a cause, and 1,000 lines stand in the log.
            raise RuntimeError(str(error)) from None
        finally:
            kept.unpersist()
        if closed.nobody and not self._nobody:
            log.warning("nobody expected", reason=closed.nobody)
        self._nobody = closed.nobody

    def begin(self, run: Run, choice: Choice) -> None:
        """Follow the query that has started."""
        self._exact.begin(self.used, self.tables.tables, self._text, self._unnoted_from)
        self._closed.begin(run, choice.mode, self.plan.score.kind, is_draining=self.decision.is_draining)

    def look(self, run: Run) -> None:
        """Report what is closed, and make closed windows exact."""
        self._closed.look(run)
        self._exact.look(run)

    def describe(self, _: Run, choice: Choice) -> tuple[JobState, str]:
        """Say if nobody is expected."""
        nobody = f"{self._nobody}, so nobody is expected; " if self._nobody else ""
        return choice.state, nobody + choice.reason

    def take(self, _: Run, figures: dict[str, Any], progress: BatchProgress) -> dict[str, Any]:
        """Set aside what `step` failed on, and note which windows have lower bounds.

        Of silence the report has the watermark up to which it is found: the next batch finds what the next one closes.
        """
        if faults := json.loads(figures.pop(FAULTS, None) or "[]"):
            self.poison.add([_left_out(**fault) for fault in faults])
        self._exact.note_batch(figures, progress.next_watermark(self.decision.delay.total_seconds()))
        return {} if self.spec.expect is None else {"watermark": progress.watermark}


def detection(settings: Settings, name: str) -> StreamJob:
    """Make the job `detector:<name>`: events in, findings out."""
    detector = Detection(settings, name)
    spec = detector.spec
    return StreamJob(settings, StreamSpec(
        pool=settings.pool(spec), latency=spec.latency,
        job=detector.job, version=spec.version, query=name, path=spec.path, function=spec.function,
        folders=detector.folders, poison=detector.poison, tables=detector.tables, exchanges=EXCHANGES,
        resources=settings.spark.resources.with_declared(spec.resources), topics=detector.topics,
        writes=(settings.names.findings,), sink=findings_sink(settings), batch_seconds=detector.batch_seconds,
        plan=detector.read_plan, open=detector.open, choose=detector.choose, rows=detector.rows, write=detector.write,
        set_aside=detector.set_aside, begin=detector.begin, look=detector.look, describe=detector.describe,
        restart_reason=detector.restart_reason, take=detector.take,
        observations=(OBSERVATION, WRITTEN, NULL_ENTITY, STEPS),
    ))  # fmt: skip


def _left_out(place: str, fault: str) -> SetAside:
    log.error("event left out by step", place=place, error=fault)
    topic, partition, offset = place.rsplit("/", 2)
    return SetAside(topic=topic, partition=int(partition), offset=int(offset), error=fault, at=datetime.now(UTC))


def run(job: Job) -> None:
    """Run the job of one detector; errors as of `run_query`."""
    run_query(job, detection)
