"""The query of a detector or a view, with state under a watermark: its plan, its backlog, and its gaps.

It drains a backlog with a widened delay, begins again behind removed records, and takes real-time mode where the plan
allows it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Generic, TypeVar

import structlog
from pyspark.sql import DataFrame, SparkSession

from tocsin.declare.catalog import Catalog
from tocsin.declare.code.own_modules import code_of
from tocsin.declare.model.detector import Span
from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.topic_set import TopicSet
from tocsin.platform.storage.job_folders import JobFolders
from tocsin.platform.time_limit import time_limit
from tocsin.spark.declared_function import Declared, QueryFunction
from tocsin.spark.events import (
    by_source,
    count_ticks,
    filter_early,
    first_filter,
    optimize,
    parse_events,
    prepare_events,
    used_columns,
)
from tocsin.spark.query import gaps
from tocsin.spark.query.checkpoint import Checkpoint
from tocsin.spark.query.drain import FEW_A_SECOND, FEW_RECORDS, Decision, FeederLag, WatermarkDelay
from tocsin.spark.query.poison import Poison, Read, SetAside
from tocsin.spark.query.stream_tables import StreamTables
from tocsin.spark.query.work import MICRO_BATCH, REAL_TIME, Choice, Run
from tocsin.spark.query_plan import QueryPlan, choose_mode
from tocsin.spark.session import read_topics

log = structlog.get_logger()

EXCHANGES = 4
"""As many as real-time mode takes."""

_Plan = TypeVar("_Plan", bound=QueryPlan)


class KeyedQuery(ABC, Generic[_Plan]):
    """What detectors and the computations of views have in common.

    Attributes:
        plan: of the query; from the first start on.
        used: the columns of events that the query uses, by source; empty until the plan is known.
        incomplete: spans of which events never came: they were removed before an ingest or a flow had read them.
    """

    plan: _Plan
    _call: QueryFunction  # of the session that runs

    def __init__(self, settings: Settings, job: str, declared: Declared, catalog: Catalog) -> None:
        self.job, self._settings, self._declared = job, settings, declared
        self.folders = JobFolders.of(settings, job)
        self.sources = [catalog.source(name) for name in declared.sources]
        self.poison = Poison(self.folders)
        self._text = code_of(declared.path)
        self._feeders = catalog.feeders_of(declared.sources)
        self._lag = FeederLag(settings, *(catalog.upstream(source) for source in declared.sources))
        self.used: dict[str, frozenset[str]] = {}
        self.incomplete: tuple[Span, ...] = ()
        self.batch_seconds = settings.spark.batch_seconds(joins_tables=bool(declared.tables))
        self.tables = StreamTables(settings, declared, self.sources, self.batch_seconds)
        self._shortest = min(source.lateness for source in self.sources)
        few = min(max(FEW_RECORDS, FEW_A_SECOND * self.batch_seconds), settings.spark.drain_offsets_per_trigger)
        self._delay = WatermarkDelay(self._shortest, self._feeder_lag, few)
        self._fed = self.topics()  # how far behind others are does not count
        self._session: SparkSession | None = None
        self._early: str | None = None
        self._topics: TopicSet | None = None

    @abstractmethod
    def _load(self) -> QueryFunction:
        """Load the user's function, or raise a ConfigError."""

    @abstractmethod
    def _read_plan(self, rows: DataFrame) -> _Plan:
        """Read the plan behind the rows that this function has returned, or raise a ConfigError."""

    @abstractmethod
    def _records(self, rows: DataFrame, mode: str, checkpoint: Checkpoint | None) -> DataFrame:
        """Make records of these rows, as `rows` of `StreamSpec` does."""

    def _feeder_lag(self) -> timedelta:
        """Ask how far behind the topics are that it begins with."""
        return self._lag()

    def _topics_of(self, source: Source) -> Sequence[str]:
        """Name the topics that hold the events of `source`; one Kafka source of the query reads them."""
        return [self._settings.names.events(source.name)]

    def select(self, events: DataFrame) -> DataFrame:
        """Leave out events that the function is not to see."""
        return events

    @property
    def decision(self) -> Decision:
        """The watermark delay in force, and whether it is widened to drain."""
        return self._delay.decision

    def topics(self) -> tuple[str, ...]:
        """Name the topics that it reads now."""
        return tuple(topic for source in self.sources for topic in self._topics_of(source))

    def read_plan(self, spark: SparkSession) -> _Plan:
        """Load the function in each session, and read its plan in the first."""
        if self._session is not spark:  # a UDF at the top of the file belongs to the session that was active
            self._call, self._session = self._load(), spark
        if hasattr(self, "plan"):
            return self.plan
        rows = self._apply(lambda topics: read_topics(spark.readStream, self._settings, self.job, topics))
        with time_limit(self._declared.path):
            self.plan = plan = self._read_plan(rows)
        optimized = optimize(self._records(rows, MICRO_BATCH, None))
        self.used = used_columns(optimized, self.sources)
        if not self._declared.tables:  # a function may ask for what the newest rows of a table say
            self._early = first_filter(optimized)
        needed = plan.slots(1, self._settings.spark.shuffle_partitions)
        log.info("plan read", mode=plan.mode, reason=plan.reason, output=plan.output, exchanges=plan.exchanges,
                 slots_besides_source=needed - 1, fingerprint=plan.fingerprint)  # fmt: skip
        return plan

    def rows(self, read: Read, mode: str, checkpoint: Checkpoint | None) -> DataFrame:
        """Make what is written of the records that are read; see `StreamSpec`."""
        if checkpoint is None:
            return self._apply(read)
        is_only = len(self.sources) == 1

        def count(topics: Sequence[str]) -> DataFrame:
            return count_ticks(read(topics), "" if is_only else topics[0])

        return self._records(filter_early(lambda early: self._apply(count, early), self._early), mode, checkpoint)

    def _apply(self, read: Read, early: str | None = None) -> DataFrame:
        declared, is_only = self._declared, len(self.sources) == 1

        def events_of(source: Source) -> DataFrame:
            events = parse_events(read(self._topics_of(source)), source, self.used.get(source.name), is_only=is_only)
            delay = self.decision.delay + source.lateness - self._shortest  # it was chosen for the shortest
            return self.select(prepare_events(events, declared, delay, is_only=is_only, early=early))

        events = by_source(self.sources, declared.path, declared, events_of)
        return self._call(events, self.tables.newest())

    def choose(self, run: Run, checkpoint: Checkpoint, obstacle: str) -> Choice:
        """Choose the watermark delay that the backlog needs, and the mode."""
        self._note_gaps(run, checkpoint)
        if checkpoint.gaps or run.topics is not self._topics:
            self._topics = run.topics
            self._delay.forget_backlog()
        keeps_state = self._declared.keeps_state
        if keeps_state:
            self._delay.choose(run.topics.only(self._fed), run.position)
        mode, reason = choose_mode(self.plan, self.decision, obstacle)
        return Choice(
            mode=mode,
            reason=checkpoint.gap_sentence + reason,
            state=JobState.DRAINING if self.decision.is_draining and mode != REAL_TIME else JobState.RUNNING,
            delay_seconds=self.decision.delay.total_seconds() if keeps_state else None,
        )

    def _note_gaps(self, run: Run, checkpoint: Checkpoint) -> None:
        for gap in checkpoint.gaps:
            is_skipped = gap.cause is gaps.Cause.SKIPPED
            run.counts["skipped"] = run.counts.get("skipped", 0) + (gap.records if is_skipped else 0)
            write = log.warning if is_skipped else log.error
            write("gap", reason=gap.sentence, since=gap.since, until=gap.until, offsets=gap.offsets)
        found = gaps.removed_upstream(self._settings, self._feeders)
        incomplete = tuple((gap.since or EPOCH, gap.until) for _, gap in found)
        if found and incomplete != self.incomplete:
            job, gap = found[-1]
            log.warning("gap upstream", feeder=job, reason=gap.sentence, since=gap.since, until=gap.until)
        self.incomplete = incomplete

    def set_aside(self, run: Run, record: SetAside) -> None:
        """Write down the gap that leaving out one event leaves."""
        for message in run.topics.records(record.place, record.offset, record.offset + 1):
            gaps.record(self.folders.stored, gaps.make_gap(record.topic, message))

    def restart_reason(self, run: Run) -> str | None:
        """Look whether to begin or to end a drain, and whether an operator has asked to skip the backlog."""
        if gaps.is_asked_to_skip(self.folders.local):
            return "skipping its backlog on request"
        if self._declared.keeps_state:
            with contextlib.suppress(TransientError):
                return self._delay.restart_reason(run.position, run.lag_seconds)
        return None
