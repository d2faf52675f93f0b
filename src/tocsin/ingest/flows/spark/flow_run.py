"""Run the job of one flow: events of some sources in, events of another out, in one stateless real-time query."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.catalog import read_catalog
from tocsin.declare.code.own_modules import code_of
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Source, is_tick
from tocsin.declare.settings import Settings
from tocsin.ingest.flows.spark.flow_plan import PlannedFlow, apply_flow, plan_flow
from tocsin.ingest.flows.spark.flow_rows import OBSERVATION, make_events
from tocsin.ingest.flows.spark.last_version import begin_version, forget_topics
from tocsin.ingest.flows.spark.source_order import begin_at, fit_order
from tocsin.ingest.spark.mover import PLAN, Mover, PassedOn
from tocsin.job import Job
from tocsin.platform.code_versions import keep_version
from tocsin.platform.kafka.reader import came_in_at
from tocsin.platform.kafka.topic_set import Position, TopicSet, partition_of, place_of
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.entry import run_query
from tocsin.spark.events import count_ticks
from tocsin.spark.query.checkpoint import Checkpoint
from tocsin.spark.query.drain import FeederLag
from tocsin.spark.query.poison import Poison, Read
from tocsin.spark.query.stream_job import StreamJob, StreamSpec
from tocsin.spark.query.stream_tables import StreamTables
from tocsin.spark.query.work import Choice, Run
from tocsin.spark.query_plan import QueryPlan

_CHECKPOINT = "query"
"""All versions of a flow continue the same one: it keeps no state."""


_LOOKED_AT = 100
"""So many records of a partition are looked at in one look. Under load there are more, and no ticks among them."""


class UpstreamTicks:
    """The newest tick of each of some events topics, and where their events end; see `tocsin.ingest.ticks.TrueAfter`.

    Ticks do not count as what must be processed first: while nothing else comes, one follows another each second, and
    a job commits far less often.
    """

    def __init__(self, topics: TopicSet) -> None:
        self._topics = topics
        self._read: Position = {}
        self._ends: Position = {}
        self._newest: dict[str, datetime] = {}

    def __call__(self) -> tuple[datetime, Position] | None:
        """Return the tick up to which all topics have come, and after which offsets it is true; None before that.

        TransientError, where a retry helps, if Kafka cannot be reached.
        """
        self._look()
        newest = dict(self._newest)
        # One speaks of all partitions of its topic, and some of them may have been read before it was written.
        self._look()
        return (min(newest.values()), dict(self._ends)) if len(newest) == len(self._topics.names) else None

    def _look(self) -> None:
        first, ends = self._topics.bounds()
        starts = {p: max(first[p], self._read.get(p, 0), end - _LOOKED_AT) for p, end in ends.items()}
        for place, start in starts.items():
            if start > self._read.get(place, first[place]):
                self._ends[place] = start  # what is between may be events
        for message in self._topics.read(starts, ends):
            topic, moment = message.topic() or "", came_in_at(message)
            if not is_tick(message.value() or b""):
                self._ends[place_of(topic, message.partition() or 0)] = (message.offset() or 0) + 1
            elif moment is not None:
                self._newest[topic] = max(self._newest.get(topic, moment), moment)
        self._read = ends


class FlowRun:
    """What `flow:<name>` does."""

    _flow: PlannedFlow  # of the session that runs

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        self.spec, self._settings, self._catalog = catalog.flow(name), settings, catalog
        self._to, self._from = catalog.source(self.spec.to), catalog.sources_of(self.spec)
        self.mover = Mover(
            settings, catalog, self._to,
            true_after=lambda _, topics: UpstreamTicks(topics), appended_at=came_in_at,
        )  # fmt: skip
        self._text = code_of(self.spec.path)
        self.tables = StreamTables(settings, self.spec, self._from, settings.spark.ingest_trigger_seconds)
        self._passed_on = PassedOn(FeederLag(settings, *(catalog.upstream(source) for source in self.spec.sources)))
        self._session: SparkSession | None = None
        self._begins: Position = {}
        self._starts: Position = {}

    def plan(self, spark: SparkSession) -> QueryPlan:
        """Check what the flow returns, once in each session."""
        if self._session is not spark:
            self._flow = plan_flow(spark, self.spec, self._catalog, self._text)
            self._session = spark
        return PLAN

    def open(self, run: Run, _: str) -> Checkpoint:
        """Finish what the version before had begun, note that this one runs, and go on behind that."""
        query = self.mover.query
        self.mover.fit_topics(run, self._committed(), self._leave)
        self._starts = fit_order(query, None, run.places)
        self._begins = begin_version(run, self.spec, self._committed(), self._write_by)
        keep_version(self._settings, self.mover.job, self.spec.version, self._text, _CHECKPOINT)
        order = [self._settings.names.events(name) for name in self._flow.order]
        self._starts = fit_order(query, order, run.places)
        return self.mover.resume(run, self._starts)

    def _leave(self, recreated: Sequence[str], committed: Position) -> None:
        forget_topics(self._settings, self.mover.job, recreated)
        begin_at(self.mover.query, committed)

    def _committed(self) -> Position:
        return self.mover.committed() or {place: offset for place, offset in self._starts.items() if offset >= 0}

    def choose(self, run: Run, _: Checkpoint, obstacle: str) -> Choice:
        """Refuse what real-time mode refuses."""
        if obstacle:
            raise ConfigError.one(self.spec.path, obstacle, key="flow")
        self._passed_on.forget()
        return self.mover.choose(run, PLAN.reason)

    def rows(self, read: Read, *_: object) -> DataFrame:
        """Make events of those that no version before has made some of."""

        def read_behind(topics: Sequence[str]) -> DataFrame:
            records = read(topics)
            for place, offset in self._begins.items():
                topic, partition = partition_of(place)
                is_there = (F.col("topic") == topic) & (F.col("partition") == partition)
                records = records.where(~is_there | (F.col("offset") >= offset))
            return records

        return self._rows_by(self._flow.function, read_behind)

    def _rows_by(self, flow: DeclaredFunction, read: Read) -> DataFrame:
        def records_of(source: Source) -> DataFrame:
            topic = self._settings.names.events(source.name)
            return count_ticks(read([topic]), "" if len(self._from) == 1 else topic)

        rows = apply_flow(flow, self.spec, self._from, records_of, self.tables.newest())
        return make_events(rows, self.spec, self._to, self._settings.names)

    def _write_by(self, flow: DeclaredFunction, read: Read) -> None:
        self._rows_by(flow, read).write.format("kafka").options(**self.mover.sink).save()

    def look(self, run: Run) -> None:
        """Carry on what the jobs before say, once the events that were there then are written."""
        if (moment := self._passed_on.look(run)) is not None:
            run.reporter.update(complete_through=moment)


def flow_run(settings: Settings, name: str) -> StreamJob:
    """Make the job `flow:<name>`: events in, events of another source out."""
    flow = FlowRun(settings, name)
    mover, spec = flow.mover, flow.spec
    return StreamJob(settings, StreamSpec(
        pool=settings.pool(spec), latency=spec.latency,
        job=mover.job, version=spec.version, query=spec.to, path=spec.path, function="flow", folders=mover.folders,
        poison=Poison(mover.folders), tables=flow.tables, topics=lambda: mover.reads, writes=(mover.writes,),
        sink=mover.sink, source={"includeHeaders": "true"}, batch_seconds=settings.spark.ingest_trigger_seconds,
        is_repeatable=True, plan=flow.plan, open=flow.open, choose=flow.choose, rows=flow.rows,
        set_aside=lambda *_: None,  # `set-aside.json` says which event it was
        begin=mover.begin, look=flow.look, restart_reason=mover.restart_reason, take=mover.take,
        describe=lambda run, choice: mover.describe(run, choice, PLAN.reason), observations=(OBSERVATION,),
    ))  # fmt: skip


def run(job: Job) -> None:
    """Run the job of one flow; errors as of `run_query`."""
    run_query(job, flow_run)
