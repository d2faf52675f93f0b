"""Run the job of one flow: events of one source in, events of another out, in one stateless real-time query."""

from __future__ import annotations

from datetime import datetime

from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from tocsin.flows.spark.flow_plan import apply_flow, plan_flow
from tocsin.flows.spark.flow_rows import OBSERVATION, make_events
from tocsin.flows.upstream_ticks import UpstreamTicks
from tocsin.ingest.backlog import FeederLag
from tocsin.ingest.spark.mover import Mover
from tocsin.ingest.spark.passed_on import PassedOn
from tocsin.ingest.ticks import TrueAfter
from tocsin.kafka.reader import TopicReader, came_in_at
from tocsin.model.errors import ConfigError
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.sparkjob.declared_function import DeclaredFunction, first_line
from tocsin.sparkjob.events import count_ticks
from tocsin.sparkjob.query.poison import SetAside
from tocsin.sparkjob.query.stream_tables import StreamTables
from tocsin.sparkjob.query.work import Run, Started


class FlowRun(Mover):
    """The work of `flow:<name>`; see `tocsin.sparkjob.query.work.Work`."""

    observation = OBSERVATION

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        self.spec = catalog.flow(name)
        super().__init__(settings, catalog, catalog.upstream(self.spec.to)[0], catalog.source(self.spec.to))
        self.version, self._catalog = self.spec.version, catalog
        self._from = catalog.source(self.spec.source)
        self._flow = DeclaredFunction(self.spec.path, "flow")
        self._passed_on = PassedOn(FeederLag(settings, catalog.upstream(self.spec.source)))
        self._tables = StreamTables(settings, self.spec, self._from, settings.spark.ingest_trigger_seconds)
        self._is_checked = False

    def check(self, spark: SparkSession) -> None:
        """Check what the flow returns, once."""
        if not self._is_checked:
            plan_flow(spark, self.spec, self._catalog)
            self._is_checked = True

    def start(self, run: Run) -> Started | None:
        """Start or resume, once there are the tables that it joins; see `Mover.start`."""
        self._passed_on.forget()
        return super().start(run) if self._tables.opened(run) else None

    def poll(self, run: Run) -> str | None:
        """Let the next batch join the newest rows; see `Mover.poll`."""
        self._tables.refresh()
        return super().poll(run)

    def make_rows(self, records: DataFrame) -> DataFrame:
        """Make what is written for `records` of the events topic."""
        rows = apply_flow(self._flow, count_ticks(records), self._from, self._tables.newest())
        return make_events(rows, self.spec, self.source, self._settings.names)

    def set_aside(self, record: SetAside) -> None:
        """Keep nothing more: `set-aside.json` says which event it was."""

    def accept_failure(self, run: Run, error: str) -> bool:
        """Refuse what real-time mode refuses; see `Mover.accept_failure`."""
        if "REAL_TIME_MODE" in error:
            what = f"Spark refuses real-time mode for its plan: {first_line(error)}"
            raise ConfigError.one(self.spec.path, what, key="flow")
        return super().accept_failure(run, error)

    def true_after(self, run: Run, topic: TopicReader) -> TrueAfter:
        """Take the newest tick of the events that it reads."""
        return UpstreamTicks(topic)

    def complete_through(self, run: Run) -> datetime | None:
        """Carry on what the job before says, once the events that were there then are written."""
        return self._passed_on.look(run)

    def appended_at(self, message: Message) -> datetime | None:
        """Read the append time of the raw record behind an event; of a tick, its time."""
        return came_in_at(message)
