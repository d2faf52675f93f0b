"""Run the job of one flow: events of some sources in, events of another out, in one stateless real-time query."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

import structlog
from py4j.protocol import Py4JJavaError
from pydantic import BaseModel, Field
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.catalog import read_catalog
from tocsin.declare.code.own_modules import code_of
from tocsin.declare.declaration import read_flow
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.source import Source, is_tick
from tocsin.declare.settings import Settings
from tocsin.ingest.flows.spark.flow_plan import OBSERVATION, PlannedFlow, apply_flow, make_events, plan_flow
from tocsin.ingest.spark.mover import PLAN, Mover, PassedOn
from tocsin.job import Job
from tocsin.platform import state_file
from tocsin.platform.code_versions import keep_version, kept_file, kept_versions
from tocsin.platform.failures import in_a_line
from tocsin.platform.kafka.reader import came_in_at
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet, as_json, partition_of, place_of
from tocsin.platform.storage.job_folders import stored_folder
from tocsin.platform.storage.stored_path import StoredPath, modified_at, remove_tree
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.entry import run_query
from tocsin.spark.events import count_ticks
from tocsin.spark.query.checkpoint import Checkpoint, read_committed
from tocsin.spark.query.drain import FeederLag
from tocsin.spark.query.poison import Poison, Read
from tocsin.spark.query.stream_job import StreamJob, StreamSpec
from tocsin.spark.query.stream_tables import StreamTables
from tocsin.spark.query.work import Choice, Run
from tocsin.spark.query_plan import QueryPlan
from tocsin.spark.session import read_topics

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


_FILE = "begins.json"
_LATE = timedelta(seconds=15)
"""A batch takes so much longer than it is meant to; what hangs for longer is ended."""

Write = Callable[[DeclaredFunction, Read], None]

log = structlog.get_logger()


class Begin(BaseModel, frozen=True):
    """The place where a version begins; events before `offsets` were made by a version before."""

    version: str = ""
    offsets: Position = Field(default_factory=dict)


def begin_version(run: Run, spec: FlowSpec, committed: Position, write: Write) -> Position:
    """Finish what another version had begun; returns the offsets before which `spec` leaves out what it reads again.

    `run` is of the job, which alone writes the checkpoint by now; `committed` is empty before the first batch.

    Raises:
        TransientError: Kafka cannot be reached; a retry helps.
        OSError: the state folder cannot be written.
    """
    note = stored_folder(run.settings, run.job) / _FILE
    if not committed:  # it begins with the first event, also where the topic was made anew
        note.unlink(missing_ok=True)
        return {}
    begin = state_file.read(note, Begin, Begin())
    last = max(kept_versions(run.settings, run.job), key=lambda version: version.last_at, default=None)
    if last is not None and last.version != spec.version:
        own = begin.offsets if begin.version == last.version else {}
        starts = {place: max(offset, own.get(place, 0)) for place, offset in committed.items()}
        begin = Begin(version=spec.version, offsets=_finish(run, spec, last.version, starts, write))
        state_file.write(note, Begin, begin)
    mine = begin.offsets if begin.version == spec.version else {}
    return {place: offset for place, offset in mine.items() if offset > committed.get(place, 0)}


def forget_topics(settings: Settings, job: str, topics: Collection[str]) -> None:
    """Leave out nothing of recreated `topics`: what a version before has made was of the former ones.

    OSError if the state folder cannot be written.
    """
    note = stored_folder(settings, job) / _FILE
    begin = state_file.read(note, Begin, Begin())
    left = {place: offset for place, offset in begin.offsets.items() if partition_of(place)[0] not in topics}
    if left != begin.offsets:
        state_file.write(note, Begin, begin.model_copy(update={"offsets": left}))


def _finish(run: Run, spec: FlowSpec, version: str, starts: Position, write: Write) -> Position:
    """Let `version` make what it may have read from `starts` on; returns up to where that was, or could be, done."""
    first, ends = run.topics.bounds()
    starts = {place: max(offset, starts.get(place, 0)) for place, offset in first.items()}
    read = _read_by(run, ends)
    ends = {place: max(starts[place], min(end, read[place])) for place, end in ends.items()}
    if ends == starts:
        return starts
    log.info("finishing the batch of another version", version=version, starts=starts, ends=ends)
    run.reporter.update(state=JobState.WAITING, reason=f"finishes what version {version} had begun")
    path = kept_file(run.settings, run.job, version)
    try:
        last = read_flow(path)
        if ({*last.sources}, last.to, last.tables) != ({*spec.sources}, spec.to, spec.tables):
            raise ConfigError.one(path, f"reads, joins or writes something else than {spec.path}")
        write(DeclaredFunction(path, "flow"), _between(run, starts, ends))
    except (ConfigError, FileNotFoundError, PySparkException, Py4JJavaError) as error:
        run.topics.bounds()  # if Kafka is away, the other version is not to blame
        log.warning("not finished by its version", version=version, error=in_a_line(error))
        return starts
    return ends


def _between(run: Run, starts: Position, ends: Position) -> Read:
    def read(topics: Sequence[str]) -> DataFrame:
        both = [
            {p: offset for p, offset in offsets.items() if partition_of(p)[0] in topics} for offsets in (starts, ends)
        ]
        options = {"startingOffsets": as_json(both[0]), "endingOffsets": as_json(both[1]), "includeHeaders": "true"}
        return read_topics(run.spark.read, run.settings, run.job, topics, **options)

    return read


def _read_by(run: Run, ends: Position) -> Position:
    """Return offsets that the last process of the job cannot have read: `ends`, if it was there a moment ago."""
    commits = (stored_folder(run.settings, run.job) / "query" / "commits").glob("[0-9]*")
    last = max((modified_at(path) for path in commits), default=datetime.now(UTC).timestamp())
    moment = datetime.fromtimestamp(last, UTC)
    moment += timedelta(seconds=run.settings.spark.ingest_trigger_seconds) + _LATE
    return ends if moment > datetime.now(UTC) else run.topics.since(moment)


_ORDER_FILE = "order.json"


class Order(BaseModel, frozen=True):
    """The order of the topics in a checkpoint, which begins at `offsets`; none at the first event.

    `is_pending`: the checkpoint that is there is the one before.
    """

    topics: list[str] = Field(default_factory=list)
    offsets: Position = Field(default_factory=dict)
    is_pending: bool = False


def begin_at(query: StoredPath, offsets: Position) -> None:
    """Let the next `fit_order` replace the checkpoint in `query` by one that begins at `offsets`, else at the start.

    OSError if the state folder cannot be written.
    """
    note = query.parent / _ORDER_FILE
    order = state_file.read(note, Order, Order())
    state_file.write(note, Order, order.model_copy(update={"offsets": offsets, "is_pending": True}))


def fit_order(query: StoredPath, topics: list[str] | None, places: Sequence[Place]) -> Position:
    """Make Spark's checkpoint in `query` one for a plan that reads `topics` in this order; None for that which it has.

    Returns the offset at which the query begins in each of `places`, -2 for the first event; nothing where it goes on
    with the checkpoint, or begins at the first event everywhere. OSError if the state folder cannot be written.
    """
    committed, note = read_committed(query) or {}, query.parent / _ORDER_FILE
    known = state_file.read(
        note, Order, Order(topics=list(dict.fromkeys(partition_of(place)[0] for place in committed)))
    )
    if topics is not None and known.topics != topics:
        if committed and not known.is_pending:
            known = Order(offsets=committed, is_pending=True)
        known = known.model_copy(update={"topics": topics})
        state_file.write(note, Order, known)
    if known.is_pending:
        remove_tree(query)
        committed, known = {}, known.model_copy(update={"is_pending": False})
        state_file.write(note, Order, known)
    if committed or not any(place in known.offsets for place in places):
        return {}
    remove_tree(query)  # of a first batch that was broken off, over which Spark does not begin
    return {place: known.offsets.get(place, -2) for place in places}
