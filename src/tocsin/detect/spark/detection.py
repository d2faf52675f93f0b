"""Run the job of one detector: events in, findings out."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tocsin.detect.spark.closed_windows import ClosedWindows
from tocsin.detect.spark.exact_scores import ExactScores
from tocsin.detect.spark.expected_windows import ClosedByBatch
from tocsin.detect.spark.findings import FAULTS, OBSERVATION, STEPS, WRITTEN, Emission, make_findings
from tocsin.detect.spark.plan import DetectorPlan, read_plan
from tocsin.detect.spark.step_query import NULL_ENTITY, detector_function
from tocsin.ingest.backlog import FeederLag
from tocsin.job import Job
from tocsin.model.detector import ScoreKind, Span
from tocsin.model.durations import longest
from tocsin.model.names import detector_job
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.runtime.code_versions import keep_version
from tocsin.sparkjob.declared_function import QueryFunction
from tocsin.sparkjob.entry import run_query
from tocsin.sparkjob.query.checkpoint import Checkpoint, Needed, open_checkpoint
from tocsin.sparkjob.query.drain import SLACK, unread_upstream
from tocsin.sparkjob.query.keyed_query import KeyedQuery
from tocsin.sparkjob.query.leadership import remove_other_checkpoints
from tocsin.sparkjob.query.poison import SetAside
from tocsin.sparkjob.query.progress import BatchProgress
from tocsin.sparkjob.query.work import REAL_TIME, Run
from tocsin.sparkjob.session import findings_sink

log = structlog.get_logger()


class Detection(KeyedQuery[DetectorPlan]):
    """Runs `detector:<name>`; see `tocsin.sparkjob.query.work.Work`."""

    observations = (OBSERVATION, WRITTEN, NULL_ENTITY, STEPS)

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        self.spec = catalog.detector(name)
        self.function = self.spec.function
        chains = [catalog.upstream(source) for source in self.spec.sources]
        self._ingest_lag = FeederLag(settings, *chains)
        self._feeders = catalog.feeders_of(self.spec.sources)
        super().__init__(settings, detector_job(name), self.spec, catalog.sources_of(self.spec), self._ingest_lag)
        self._lateness = max(source.lateness for source in self.sources)
        self._memory = self.spec.memory_span + self._lateness + SLACK
        self.writes = (settings.names.findings,)
        self.left_out |= {"null_entity": 0, "null_score": 0, "too_long": 0}
        self._closed = ClosedWindows(self._ingest_lag, longest(self.spec), self._lateness)
        self._exact = ExactScores(settings, self.spec, self.sources, self._folders.stored)

    def _load(self) -> QueryFunction:
        return detector_function(self.spec, self.sources[0], text=self._text)

    def _plan_of(self, rows: DataFrame) -> DetectorPlan:
        return read_plan(rows, self.spec, self.sources)

    def _checkpoint_name(self) -> str:
        return self.plan.fingerprint

    def _open(self, run: Run, name: str) -> Checkpoint:
        """Open the checkpoint of the plan, and note that this version runs on it."""
        unread = functools.partial(unread_upstream, self._settings, self._feeders)
        needed = Needed(self._memory, self.plan.reach)
        checkpoint = open_checkpoint(self._folders, name, run.topics, needed, unread)
        versions = keep_version(self._settings, self.job, self.version, self._text, name)
        if run.reporter.leads:  # it alone removes what no kept version can go back to
            remove_other_checkpoints(self._settings, self._folders, {version.fingerprint for version in versions})
        return checkpoint

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
        return tuple((since, until + memory) for since, until in self._incomplete)

    def _publish_from(self, checkpoint: Checkpoint) -> datetime | None:
        """Tell from when on findings are published: with `step`, from when its state is whole, or is nobody else's."""
        since, memory = checkpoint.publish_from, self.spec.forget_after
        if since is None or memory is None or checkpoint.wanted is None:
            return since
        return min(since + memory, checkpoint.wanted + self._memory)

    def _writer(self, records: DataFrame, checkpoint: Checkpoint) -> DataStreamWriter:
        if self.spec.expect is None:
            return super()._writer(records, checkpoint)
        emission = Emission(publish_from=checkpoint.publish_from, incomplete=self._incomplete_spans())
        closed = ClosedByBatch(self.spec, checkpoint.query, emission, tables=self._tables.tables)
        return records.writeStream.foreachBatch(functools.partial(self._write_batch, closed))

    def _write_batch(self, closed: ClosedByBatch, rows: DataFrame, batch: int) -> None:
        # They are read more than once, and all of them even if nothing comes of it: that writes down Spark's state.
        kept = rows.persist(StorageLevel.DISK_ONLY)
        try:
            made = closed.make_findings(kept, batch)
            if made is not None:
                made.write.format("kafka").options(**self._sink()).save()
        except Py4JJavaError as error:
            # Spark 4.3.0 looks behind the name of this error for an interruption, by a pattern that overflows the stack
            # of the query's thread: that ends without a cause, and 1,000 lines stand in the log.
            raise RuntimeError(str(error)) from None
        finally:
            kept.unpersist()
        if closed.nobody and not self._remark:
            log.warning("nobody expected", reason=closed.nobody)
        self._remark = f"{closed.nobody}, so nobody is expected; " if closed.nobody else ""

    def _sink(self) -> dict[str, str]:
        return findings_sink(self._settings)

    def _began(self, run: Run, mode: str) -> None:
        self._exact.begin(self.used, self._tables.tables, self._text)
        self._closed.begin(run, mode, self.plan.score.kind, is_draining=self._delay.decision.is_draining)

    def _take_figures(self, figures: dict[str, Any], progress: BatchProgress) -> None:
        if faults := json.loads(figures.pop(FAULTS, None) or "[]"):
            self._poison.add([_set_aside(**one) for one in faults])
        self._exact.note_batch(figures, progress.next_watermark(self._delay.decision.delay.total_seconds()))

    def count_batch(self, progress: BatchProgress) -> dict[str, Any]:
        """Report of silence the watermark up to which it is found: the next batch finds what the next one closes."""
        further = super().count_batch(progress)
        return further if self.spec.expect is None else further | {"watermark": progress.watermark}

    def poll(self, run: Run) -> str | None:
        """Report what is closed, make closed windows exact, and see `KeyedQuery`."""
        self._closed.look(run)
        self._exact.look(run)
        return super().poll(run)


def _set_aside(place: str, fault: str) -> SetAside:
    """Describe the event, or the timer, at `place` that `step` failed on."""
    log.error("event left out by step", place=place, error=fault)
    topic, partition, offset = place.rsplit("/", 2)
    return SetAside(topic=topic, partition=int(partition), offset=int(offset), error=fault, at=datetime.now(UTC))


def run(job: Job) -> None:
    """Run the job of one detector; errors as of `run_query`."""
    run_query(job, Detection)
