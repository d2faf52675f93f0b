"""Run the job that computes one view: events in, upserts of rows out."""

from __future__ import annotations

import hashlib

from pyspark.sql import DataFrame

from tocsin.ingest.backlog import FeederLag
from tocsin.kafka.reader import Offsets
from tocsin.model.names import compute_job
from tocsin.model.sizes import VIEW_BYTES
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.sparkjob.query.checkpoint import Checkpoint, open_checkpoint, remove_other_checkpoints
from tocsin.sparkjob.query.keyed_query import KeyedQuery
from tocsin.sparkjob.query.work import Run
from tocsin.sparkjob.query_plan import QueryPlan
from tocsin.sparkjob.session import kafka_sink
from tocsin.views.rebuild.rebuild_request import read_rebuild
from tocsin.views.spark.view_plan import FUNCTION, read_plan
from tocsin.views.spark.view_rows import OBSERVATION, WRITTEN, make_rows


class Computation(KeyedQuery[QueryPlan]):
    """Runs `compute:<view>`; see `tocsin.sparkjob.query.work.Work`.

    A build is one computation of the view from the earliest event that is kept: each change of the file that may change
    its rows, and each request for a rebuild, begins a new one. Its checkpoint has its name.
    """

    function = FUNCTION
    observations = (OBSERVATION, WRITTEN)

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        self.spec = catalog.view(name)
        lag = FeederLag(settings, catalog.upstream(self.spec.source))
        super().__init__(settings, compute_job(name), self.spec.computed, catalog.source(self.spec.source), lag)
        self.writes = (settings.names.view(name),)
        self._rebuild = ""
        self._build = ""
        self._missing: Offsets | None = None

    def _plan_of(self, rows: DataFrame) -> QueryPlan:
        return read_plan(rows, self.spec, self.source)

    def _checkpoint_name(self) -> str:
        self._rebuild = self._requested()
        text = "\n".join([self.version, self.plan.fingerprint, self._rebuild])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _open(self, run: Run, name: str) -> Checkpoint:
        """Open the checkpoint of the build, and report which it is before its first row is written."""
        checkpoint = open_checkpoint(self._folder, name, run.topic, None, lambda: None)
        remove_other_checkpoints(self._folder, {name})
        # Behind removed records its totals begin anew, and must not be mixed with those of before. Windows are whole.
        begun_anew = self.spec.computed.window is None and checkpoint.query.name != "query"
        self._build = f"{name}-{checkpoint.query.name}" if begun_anew else name
        self._missing = run.topic.bounds()[1]
        run.reporter.update(build=self._build, is_build_complete=False)
        return checkpoint

    def _records(self, rows: DataFrame, mode: str, checkpoint: Checkpoint | None) -> DataFrame:
        # The latest value is the latest, however much of its period was read.
        publish_from = None if checkpoint is None or self.spec.shows_latest else checkpoint.publish_from
        return make_rows(rows, self.spec, self._build, publish_from)

    def _sink(self) -> dict[str, str]:
        return kafka_sink(self._settings, self.writes[0], VIEW_BYTES)

    def _restart_reason(self, run: Run) -> str | None:
        """Report once that the build is complete, and start another when that is asked for."""
        if self._requested() != self._rebuild:
            return "rebuilding on request"
        missing = self._missing
        if missing is not None and all(run.position.get(partition, 0) >= end for partition, end in missing.items()):
            self._missing = None
            run.reporter.update(is_build_complete=True)
        return None

    def _requested(self) -> str:
        rebuild = read_rebuild(self._settings.state, self.spec.name)
        return "" if rebuild is None else rebuild.id
