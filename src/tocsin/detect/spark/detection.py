"""Run the job of one detector: events in, findings out."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame

from tocsin.detect.drain_request import RequestedDrain
from tocsin.detect.spark.closed_windows import ClosedWindows
from tocsin.detect.spark.exact_scores import ExactScores
from tocsin.detect.spark.findings import OBSERVATION, WRITTEN, Emission, make_findings
from tocsin.detect.spark.plan import DetectorPlan, read_plan
from tocsin.ingest.backlog import FeederLag
from tocsin.model.names import detector_job
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import catalog_in_force, keep_version
from tocsin.sparkjob.query.checkpoint import Checkpoint, open_checkpoint, remove_other_checkpoints, unread_upstream
from tocsin.sparkjob.query.drain import SLACK
from tocsin.sparkjob.query.keyed_query import KeyedQuery
from tocsin.sparkjob.query.progress import BatchProgress
from tocsin.sparkjob.query.work import REAL_TIME, Run
from tocsin.sparkjob.session import findings_sink


class Detection(KeyedQuery[DetectorPlan]):
    """Runs `detector:<name>`; see `tocsin.sparkjob.query.work.Work`."""

    function = "detect"
    observations = (OBSERVATION, WRITTEN)

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = catalog_in_force(settings)
        self.spec = catalog.detector(name)
        self._feeders = catalog.upstream(self.spec.source)
        self._ingest_lag = FeederLag(settings, self._feeders)
        super().__init__(
            settings, detector_job(name), self.spec, catalog.source(self.spec.source), self._ingest_lag
        )  # fmt: skip
        self.writes = (settings.names.findings,)
        self.left_out |= {"null_entity": 0, "null_score": 0, "too_long": 0}
        self._closed = ClosedWindows(self._ingest_lag, self.spec.window or timedelta(0), self.source.lateness)
        self._requested_drain = RequestedDrain(settings.state, self.job)
        self._exact = ExactScores(settings, self.spec, self.source, self._folder)

    def _plan_of(self, rows: DataFrame) -> DetectorPlan:
        return read_plan(rows, self.spec, self.source)

    def _checkpoint_name(self) -> str:
        return self.plan.fingerprint

    def _open(self, run: Run, name: str) -> Checkpoint:
        """Open the checkpoint of the plan, and note that this version runs on it."""
        memory = (self.spec.window or timedelta(0)) + self.source.lateness + SLACK
        unread = functools.partial(unread_upstream, self._settings, self._feeders)
        checkpoint = open_checkpoint(self._folder, name, run.topic, memory, unread)
        versions = keep_version(self._settings, self.spec, self._text, name)
        if run.reporter.leads:  # it alone removes what no kept version can go back to
            remove_other_checkpoints(self._folder, {version.fingerprint for version in versions})
        return checkpoint

    def _records(self, rows: DataFrame, mode: str, checkpoint: Checkpoint | None) -> DataFrame:
        if checkpoint is None:
            return make_findings(rows, self.spec, Emission())
        ladder = self.plan.score.counts and mode == REAL_TIME
        return make_findings(rows, self.spec, Emission(ladder=ladder, publish_from=checkpoint.publish_from))

    def _sink(self) -> dict[str, str]:
        return findings_sink(self._settings)

    def _began(self, run: Run, mode: str) -> None:
        self._exact.used, self._exact.tables = self.used, self._tables.tables
        self._closed.begin(run, mode, self.plan.score.kind, is_draining=self._delay.decision.is_draining)

    def _take_figures(self, figures: dict[str, Any], progress: BatchProgress) -> None:
        self._exact.note_batch(figures, progress.next_watermark(self._delay.decision.delay.total_seconds()))

    def poll(self, run: Run) -> str | None:
        """Report what is closed, make closed windows exact, and see `KeyedQuery`."""
        self._closed.look(run)
        self._exact.look(run)
        return super().poll(run)

    def _restart_reason(self, run: Run) -> str | None:
        if run.reporter.leads:
            self._requested_drain.look(run.topic.bounds, self._ingest_lag, run.position)
        return None
