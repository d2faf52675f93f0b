"""Run the job that computes one view: events in, upserts of rows out."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import structlog
from confluent_kafka import Message
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.names import compute_job
from tocsin.declare.model.sizes import VIEW_BYTES
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.kafka.reader import appended_at, came_in_at
from tocsin.platform.kafka.topic_set import Position, partition_of
from tocsin.platform.kafka.topics import empty_topic, remove_topics
from tocsin.spark.declared_function import DeclaredFunction, QueryFunction
from tocsin.spark.entry import run_query
from tocsin.spark.query.checkpoint import Checkpoint, Retention, begin_at, open_checkpoint
from tocsin.spark.query.keyed_query import EXCHANGES, KeyedQuery
from tocsin.spark.query.leadership import remove_other_checkpoints
from tocsin.spark.query.stream_job import StreamJob, StreamSpec
from tocsin.spark.query.work import Run
from tocsin.spark.query_plan import QueryPlan
from tocsin.spark.session import kafka_sink
from tocsin.views.rebuild.rebuild_request import (
    HistoryPart,
    log_refusal,
    next_build,
    pending_builds,
    read_rebuild,
    record_begin,
)
from tocsin.views.spark.view_plan import FUNCTION, OBSERVATION, WRITTEN, make_rows, read_plan

log = structlog.get_logger()


class Computation(KeyedQuery[QueryPlan]):
    """The job `compute:<view>`.

    A build is one computation of the view from the earliest event that Kafka keeps, or from where what was computed
    from history ends: each change of the file that may change its rows, and each request for a rebuild, begins a new
    one. Its checkpoint has its name.

    A build without windows whose older events come from history reads them from a topic of its own, beside the stream
    (ADR 0041). It empties that once a batch with all of them is committed; the next build removes it.
    """

    _following: Run  # from the first start on

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        self.spec = catalog.view(name)
        self._rebuild = self._build = ""
        self._history: HistoryPart | None = None
        self._past: Position = {}  # the ends of the events of history that are still on their topic
        self._missing: Position | None = None
        super().__init__(settings, compute_job(name), self.spec.computed, catalog)

    def _load(self) -> QueryFunction:
        return DeclaredFunction(self.spec.path, FUNCTION, self._text)

    def _read_plan(self, rows: DataFrame) -> QueryPlan:
        return read_plan(rows, self.spec, self.sources)

    def _feeder_lag(self) -> timedelta:
        return max(super()._feeder_lag(), self._past_age())

    def _topics_of(self, source: Source) -> list[str]:
        # The topic of the stream, and that of the events of history if the build has one.
        past = self._past_topic
        return [*super()._topics_of(source), *([past] if past else [])]

    @property
    def _past_topic(self) -> str:
        """The name of the topic of the events of history; empty if this build has none."""
        if self._history is None or self._history.events_from is None:
            return ""
        return self._settings.names.rebuild(self.spec.name, self._history.build)

    def begin_build(self, plan: QueryPlan) -> str:
        """Name the build that is to run by now."""
        request = read_rebuild(self._settings.state, self.spec.name)
        name = next_build(self.folders.stored, self.spec.computed.version, plan.fingerprint, request)
        self._rebuild, self._history = ("", None) if request is None else (request.id, request.history)
        if self._history is not None and self._history.build != name:
            log.warning("computed by Kafka alone; to have sealed days again, rebuild it", request=self._rebuild)
            self._history = None
        return name

    def open(self, run: Run, name: str) -> Checkpoint:
        """Open the checkpoint of the build, and report which it is before its first row is written."""
        stored = self.folders.stored
        if self._history is not None:
            begin_at(stored, name, self._history.offsets, self._history.since)
            record_begin(stored, name)
        checkpoint = open_checkpoint(self.folders, name, run.topics, Retention(None, self.plan.reach), lambda: None)
        remove_other_checkpoints(self._settings, self.folders, {name})
        # Behind removed records its totals begin anew, and must not be mixed with those of before. Windows are whole.
        begun_anew = self.spec.computed.window is None and checkpoint.query.name != "query"
        self._build = f"{name}-{checkpoint.query.name}" if begun_anew else name
        first, self._missing = run.topics.bounds()
        self._past = {place: end for place, end in self._missing.items()
                      if partition_of(place)[0] == self._past_topic and first[place] < end}  # fmt: skip
        self._following = run
        self._remove_other_topics()
        run.reporter.update(build=self._build, is_build_complete=False)
        return checkpoint

    def _remove_other_topics(self) -> None:
        """Remove the topics of builds that were replaced; those of a rebuild that still runs stay."""
        names, view = self._settings.names, self.spec.name
        builds = pending_builds(self._settings.state, self.folders.stored, view)
        keep = {self._past_topic, *(names.rebuild(view, build) for build in builds)}
        with log_refusal():
            remove_topics(self._settings, names.rebuild(view, ""), keep)

    def _past_age(self) -> timedelta:
        """Return the age of the oldest event of history, while some of them are in no committed batch; 0 else."""
        since = None if self._history is None else self._history.events_from
        position = self._following.position if self._past else {}
        if since is None or all(position.get(place, 0) >= end for place, end in self._past.items()):
            return timedelta(0)
        return datetime.now(UTC) - since

    def select(self, events: DataFrame) -> DataFrame:
        """Leave the events to history that it has: the latest of them must not take the place of a later one."""
        if self._history is None or not self.spec.shows_latest:
            return events
        return events.where(F.col("event_time") >= F.lit(self._history.since))

    def _records(self, rows: DataFrame, mode: str, checkpoint: Checkpoint | None) -> DataFrame:
        # The latest value is the latest, however much of its period was read.
        publish_from = None if checkpoint is None or self.spec.shows_latest else checkpoint.publish_from
        incomplete = () if self.spec.shows_latest else self.incomplete
        return make_rows(rows, self.spec, self._build, publish_from, incomplete)

    def restart_reason(self, run: Run) -> str | None:
        """Report once that the build is complete, and start another when that is asked for."""
        if self._request_id() != self._rebuild:
            return "rebuilding on request"
        if self._past and not self._past_age():
            ends = {partition_of(place)[1]: end for place, end in self._past.items()}
            with contextlib.suppress(TransientError):
                with log_refusal():
                    empty_topic(self._settings, self._past_topic, ends)
                self._past = {}
        if self._missing is not None:
            # In the middle of a batch, too: its end may be minutes away.
            written = run.read_positions.offsets() or run.position
            if all(written.get(place, 0) >= end for place, end in self._missing.items()):
                self._missing = None
                run.reporter.update(is_build_complete=True)
        return super().restart_reason(run)

    def appended_at(self, message: Message) -> datetime | None:
        """Read the append time of the raw record behind an event; of an event of history, when it was put there."""
        return appended_at(message) if message.topic() == self._past_topic else came_in_at(message)

    def _request_id(self) -> str:
        rebuild = read_rebuild(self._settings.state, self.spec.name)
        return "" if rebuild is None else rebuild.id


def computation(settings: Settings, name: str) -> StreamJob:
    """Make the job `compute:<view>`: events in, upserts of rows out."""
    view = Computation(settings, name)
    declared, topic = view.spec.computed, settings.names.view(name)
    return StreamJob(settings, StreamSpec(
        pool=settings.pool(declared), latency=declared.latency,
        job=view.job, version=declared.version, query=declared.name, path=declared.path, function=FUNCTION,
        folders=view.folders, poison=view.poison, tables=view.tables, exchanges=EXCHANGES,
        resources=settings.spark.resources.with_declared(declared.resources), topics=view.topics, writes=(topic,),
        sink=kafka_sink(settings, topic, VIEW_BYTES), batch_seconds=view.batch_seconds,
        plan=view.read_plan, owner=view.begin_build, open=view.open, choose=view.choose, rows=view.rows,
        set_aside=view.set_aside, begin=lambda *_: None, restart_reason=view.restart_reason,
        observations=(OBSERVATION, WRITTEN), appended_at=view.appended_at,
    ))  # fmt: skip


def run(job: Job) -> None:
    """Run the job of one view; errors as of `run_query`."""
    run_query(job, computation)
