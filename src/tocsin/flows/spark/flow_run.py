"""Run the job of one flow: events of some sources in, events of another out, in one stateless real-time query."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.flows.spark.flow_plan import PlannedFlow, apply_flow, plan_flow
from tocsin.flows.spark.flow_rows import OBSERVATION, make_events
from tocsin.flows.spark.last_version import begin_version, forget_topics
from tocsin.flows.spark.source_order import begin_at, fit_order
from tocsin.flows.upstream_ticks import UpstreamTicks
from tocsin.ingest.backlog import FeederLag
from tocsin.ingest.spark.mover import Mover
from tocsin.ingest.spark.passed_on import PassedOn
from tocsin.ingest.ticks import TrueAfter
from tocsin.job import Job
from tocsin.kafka.reader import came_in_at
from tocsin.kafka.topic_set import Position, TopicSet, as_json, partition_of
from tocsin.model.errors import ConfigError
from tocsin.model.source import Source
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.runtime.code_versions import keep_version
from tocsin.runtime.failures import first_line
from tocsin.sparkjob.declared_function import DeclaredFunction
from tocsin.sparkjob.entry import run_query
from tocsin.sparkjob.events import count_ticks
from tocsin.sparkjob.query.poison import Read, SetAside
from tocsin.sparkjob.query.stream_tables import StreamTables
from tocsin.sparkjob.query.work import Run, Started

_CHECKPOINT = "query"
"""All versions of a flow continue the same one: it keeps no state."""


class FlowRun(Mover):
    """The work of `flow:<name>`; see `tocsin.sparkjob.query.work.Work`."""

    observation = OBSERVATION
    _flow: PlannedFlow  # of the session that runs

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        self.spec = catalog.flow(name)
        super().__init__(settings, catalog, catalog.upstream(self.spec.to)[0], catalog.source(self.spec.to))
        self.version, self._catalog = self.spec.version, catalog
        self._from = catalog.sources_of(self.spec)
        self._text = self.spec.path.read_bytes()
        self._passed_on = PassedOn(FeederLag(settings, *(catalog.upstream(one) for one in self.spec.sources)))
        self._tables = StreamTables(settings, self.spec, self._from, settings.spark.ingest_trigger_seconds)
        self._session: SparkSession | None = None
        self._begins: Position = {}
        self._starts: Position = {}

    def check(self, spark: SparkSession) -> None:
        """Check what the flow returns, once in each session."""
        if self._session is not spark:
            self._flow = plan_flow(spark, self.spec, self._catalog, self._text)
            self._session = spark

    def start(self, run: Run) -> Started | None:
        """Start or resume, once there are the tables that it joins; see `Mover.start`."""
        self._passed_on.forget()
        return super().start(run) if self._tables.opened(run) else None

    def owns(self, run: Run) -> bool:
        """Finish what the version before had begun, and note that this one runs; see `Mover.owns`."""
        if not super().owns(run):
            return False
        self._starts = fit_order(self._checkpoint(), None, run.places)
        self._begins = begin_version(run, self.spec, self._committed(), self._write_by)
        keep_version(self._settings, self.job, self.version, self._text, _CHECKPOINT)
        order = [self._settings.names.events(name) for name in self._flow.order]
        self._starts = fit_order(self._checkpoint(), order, run.places)
        return True

    def leave(self, topics: Collection[str], committed: Position) -> None:
        """Begin at the start of `topics`, and go on with the others; see `Mover.leave`."""
        forget_topics(self._settings, self.job, topics)
        begin_at(self._checkpoint(), committed)

    def _committed(self) -> Position:
        return super()._committed() or {place: offset for place, offset in self._starts.items() if offset >= 0}

    def starts(self, topics: Sequence[str]) -> str:
        """Begin where the checkpoint before was; see `Mover.starts`."""
        own = {place: offset for place, offset in self._starts.items() if partition_of(place)[0] in topics}
        return as_json(own) if own else super().starts(topics)

    def poll(self, run: Run) -> str | None:
        """Let the next batch join the newest rows; see `Mover.poll`."""
        self._tables.refresh()
        return super().poll(run)

    def make_rows(self, read: Read) -> DataFrame:
        """Make what is written for the records that `read` gives of the events topics."""

        def read_behind(topics: Sequence[str]) -> DataFrame:
            records = read(topics)
            for place, offset in self._begins.items():
                topic, partition = partition_of(place)
                is_there = (F.col("topic") == topic) & (F.col("partition") == partition)
                records = records.where(~is_there | (F.col("offset") >= offset))
            return records

        return self._rows(self._flow.function, read_behind)

    def _rows(self, flow: DeclaredFunction, read: Read) -> DataFrame:
        def records_of(source: Source) -> DataFrame:
            topic = self._settings.names.events(source.name)
            return count_ticks(read([topic]), "" if len(self._from) == 1 else topic)

        rows = apply_flow(flow, self.spec, self._from, records_of, self._tables.newest())
        return make_events(rows, self.spec, self.source, self._settings.names)

    def _write_by(self, flow: DeclaredFunction, read: Read) -> None:
        self.write(self._rows(flow, read))

    def set_aside(self, record: SetAside) -> None:
        """Keep nothing more: `set-aside.json` says which event it was."""

    def accept_failure(self, run: Run, error: str) -> bool:
        """Refuse what real-time mode refuses; see `Mover.accept_failure`."""
        if "REAL_TIME_MODE" in error:
            what = f"Spark refuses real-time mode for its plan: {first_line(error)}"
            raise ConfigError.one(self.spec.path, what, key="flow")
        return super().accept_failure(run, error)

    def true_after(self, run: Run, topics: TopicSet) -> TrueAfter:
        """Take the newest tick up to which all that it reads has come."""
        return UpstreamTicks(topics)

    def complete_through(self, run: Run) -> datetime | None:
        """Carry on what the job before says, once the events that were there then are written."""
        return self._passed_on.look(run)

    def appended_at(self, message: Message) -> datetime | None:
        """Read the append time of the raw record behind an event; of a tick, its time."""
        return came_in_at(message)


def run(job: Job) -> None:
    """Run the job of one flow; errors as of `run_query`."""
    run_query(job, FlowRun)
