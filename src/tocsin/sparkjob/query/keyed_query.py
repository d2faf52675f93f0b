"""Run a user's query over the events of sources, with state under a watermark: what detectors and views share.

It drains a backlog with a widened delay, begins again behind removed records, leaves out records that end the query,
and takes real-time mode where the plan allows it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import structlog
from confluent_kafka import Message
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tocsin.kafka.reader import came_in_at
from tocsin.kafka.topic_set import partition_of
from tocsin.model.detector import Span
from tocsin.model.durations import EPOCH
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.job_report import TOPICS_RECREATED, JobState
from tocsin.model.source import Source
from tocsin.project.feeding import Feeder
from tocsin.project.settings import Settings
from tocsin.runtime.failures import first_line
from tocsin.runtime.time_limit import time_limit
from tocsin.sparkjob.declared_function import Declared, DeclaredFunction, QueryFunction
from tocsin.sparkjob.events import by_source, count_ticks, parse_events, prepare_events, used_columns
from tocsin.sparkjob.query import gaps
from tocsin.sparkjob.query.checkpoint import Checkpoint
from tocsin.sparkjob.query.drain import FEW_RECORDS, WatermarkDelay
from tocsin.sparkjob.query.leadership import Ownership
from tocsin.sparkjob.query.poison import Poison, Read, SetAside
from tocsin.sparkjob.query.progress import BatchProgress
from tocsin.sparkjob.query.stream_tables import StreamTables
from tocsin.sparkjob.query.work import MICRO_BATCH, REAL_TIME, Run, Started
from tocsin.sparkjob.query_plan import QueryPlan, choose_mode, set_trigger
from tocsin.sparkjob.session import read_topics
from tocsin.storage.job_folders import JobFolders

log = structlog.get_logger()

_EXCHANGES = 4
_LOOK_SECONDS = 1.0
_Plan = TypeVar("_Plan", bound=QueryPlan)


class KeyedQuery(ABC, Generic[_Plan]):
    """Implements `tocsin.sparkjob.query.work.Work`, but for the plan, the records that are written, and their sink.

    Attributes:
        function: name of the function in the file of the declaration.
        observations: of the figures that count what was left out.
        plan: of the query; from the first start on.
        sources: whose events it reads.
        used: the columns of events that the query uses, by source; empty until the plan is known.
        left_out: count of what was left out, by reason.
    """

    function: str
    observations: tuple[str, ...]
    plan: _Plan
    _checkpoint: Checkpoint  # from the first start on
    _feeders: Sequence[Feeder]  # through which the events come
    _call: QueryFunction  # of the session that runs

    def __init__(
        self, settings: Settings, job: str, declared: Declared, sources: Sequence[Source],
        feeder_lag: Callable[[], timedelta],
    ) -> None:  # fmt: skip
        """Prepare the query; `feeder_lag` asks how far behind the topics are that it begins with."""
        self._incomplete: tuple[Span, ...] = ()
        self.job, self.version, self.sources = job, declared.version, tuple(sources)
        self._settings, self._declared = settings, declared
        self.resources = settings.spark.resources.with_declared(declared.resources)
        self.reads = self._fed = self._topics()
        self.writes: tuple[str, ...] = ()
        self.used: dict[str, frozenset[str]] = {}
        self._folders = JobFolders.of(settings, job)
        self.left_out = {"skipped": 0} | self._counted_gaps()
        self._text, self._shortest = declared.path.read_bytes(), min(source.lateness for source in sources)
        few = min(FEW_RECORDS, settings.spark.drain_offsets_per_trigger)
        self._delay = WatermarkDelay(self._shortest, feeder_lag, few)
        self._poison, self._ownership = Poison(self._folders), Ownership()
        self._session: SparkSession | None = None
        self._refusal = self._reason = self._remark = ""
        self._tables = StreamTables(settings, declared, sources, settings.spark.trigger_seconds)
        self._looked_at = 0.0

    # --- what a kind of query decides ---------------------------------------------------------------------------------

    def topics_of(self, source: Source) -> Sequence[str]:
        """Name the topics that hold the events of `source`; one Kafka source of the query reads them."""
        return [self._settings.names.events(source.name)]

    @abstractmethod
    def _plan_of(self, rows: DataFrame) -> _Plan:
        """Read the plan behind the `rows` that the user's function has returned.

        Raises:
            ConfigError: something is wrong with it.
        """

    @abstractmethod
    def _checkpoint_name(self) -> str:
        """Name the folder of the checkpoint that fits `plan`, below that of the job."""

    @abstractmethod
    def _open(self, run: Run, name: str) -> Checkpoint:
        """Open that checkpoint."""

    @abstractmethod
    def _records(self, rows: DataFrame, mode: str, checkpoint: Checkpoint | None) -> DataFrame:
        """Make records to write of what the user's function has returned; no checkpoint is there yet for the plan."""

    @abstractmethod
    def _sink(self) -> dict[str, str]:
        """Give the options of the Kafka sink."""

    def _choose(self, events: DataFrame) -> DataFrame:
        """Leave out events that the user's function is not to see, by their event time."""
        return events

    def _load(self) -> QueryFunction:
        """Load the user's function, or raise a ConfigError."""
        return DeclaredFunction(self._declared.path, self.function, self._text)

    def _writer(self, records: DataFrame, _: Checkpoint) -> DataStreamWriter:
        """Write the stream of `records` to Kafka."""
        return records.writeStream.format("kafka").options(**self._sink()).option("kafka.linger.ms", "0")

    def _began(self, run: Run, mode: str) -> None:
        """Take note that the query has started."""

    def _take_figures(self, figures: dict[str, Any], progress: BatchProgress) -> None:
        """Take what is no count of left out rows out of the figures of a finished batch."""

    def _restart_reason(self, run: Run) -> str | None:
        """Return a reason of this kind to start the query again, or None; called once a second."""
        return None

    # --- start --------------------------------------------------------------------------------------------------------

    def slots(self, partitions: int) -> int:
        """Count slots for as many exchanges as real-time mode takes: a slot is a thread, and an idle one is free."""
        return partitions + self._settings.spark.shuffle_partitions * _EXCHANGES

    def start(self, run: Run) -> Started | None:
        """Start or resume, draining a backlog first, behind records that are not read any more."""
        if not self._tables.opened(run):
            return None
        if self._session is not run.spark:  # a UDF at the top of the file belongs to the session that was active
            self._call = self._load()
            self._session = run.spark
        if not hasattr(self, "plan"):
            self.plan = self._read_plan(run.spark)
        name, needed = self._checkpoint_name(), self.plan.slots(len(run.places), run.settings.spark.shuffle_partitions)
        if not (self._reads_its_topics(run) and (slots := run.await_slots(needed if self.plan.mode == REAL_TIME else 1))
                and self._ownership.take(run, self._folders.local / name)):  # fmt: skip
            return None
        checkpoint = self._checkpoint = self._open(run, name)
        for gap in checkpoint.gaps:
            self._count_gap(gap, run)
        self._read_gaps_upstream()
        run.topic_ids = checkpoint.topic_ids
        self._poison.fit(run.topic_ids)
        run.position = checkpoint.position(run.places)
        self._poison.search(run, run.position, self._try, functools.partial(self._set_aside, run))
        if self._declared.keeps_state:
            self._delay.choose(run.topics.only(self._fed), run.position)
        decision = self._delay.decision
        mode, reason = choose_mode(self.plan, decision, self._refusal, needed, slots)
        self._reason = checkpoint.gap_sentence + reason
        query = self._start_query(run, checkpoint, mode)
        self._poison.begin(run.position)
        self._began(run, mode)
        return Started(
            query=query,
            mode=mode,
            reason=self._poison.sentence + self._reason,
            state=JobState.DRAINING if decision.is_draining and mode != REAL_TIME else JobState.RUNNING,
            batch_seconds=self._settings.spark.trigger_seconds if mode == REAL_TIME else 0.0,
            delay_seconds=decision.delay.total_seconds() if self._declared.keeps_state else None,
        )

    def _topics(self) -> tuple[str, ...]:
        return tuple(topic for source in self.sources for topic in self.topics_of(source))

    def _reads_its_topics(self, run: Run) -> bool:
        """Return whether `run` follows the topics of this checkpoint; else it does from its next start on."""
        self.reads = self._topics()
        if run.topics.names == self.reads:
            return True
        self._delay.forget_backlog()
        run.follow(self.reads)
        return False

    def _read_plan(self, spark: SparkSession) -> _Plan:
        rows = self._apply(lambda topics: read_topics(spark.readStream, self._settings, self.job, topics))
        with time_limit(self._declared.path):
            plan = self._plan_of(rows)
        self.used = used_columns(self._records(rows, MICRO_BATCH, None), self.sources)
        needed = plan.slots(1, self._settings.spark.shuffle_partitions)
        log.info("plan read", mode=plan.mode, reason=plan.reason, output=plan.output, exchanges=plan.exchanges,
                 slots_besides_source=needed - 1, fingerprint=plan.fingerprint)  # fmt: skip
        return plan

    def _counted_gaps(self) -> dict[str, int]:
        folder = self._folders.stored
        return {"removed_unread": gaps.count_removed(folder), TOPICS_RECREATED: gaps.count_recreated(folder)}

    def _count_gap(self, gap: gaps.Gap, run: Run) -> None:
        """Count and log a gap, which is written down already."""
        is_skipped = gap.cause is gaps.Cause.SKIPPED
        self.left_out["skipped"] += gap.records if is_skipped else 0
        self.left_out |= self._counted_gaps()
        self._delay.forget_backlog()
        write = log.warning if is_skipped else log.error
        write("gap", reason=gap.sentence, since=gap.since, until=gap.until, offsets=gap.offsets)
        run.reporter.update(**self._counts())

    def _read_gaps_upstream(self) -> None:
        """Find the windows of which events never came, since they were removed before an ingest or a flow read them."""
        found = gaps.removed_upstream(self._settings, self._feeders)
        incomplete = tuple((gap.since or EPOCH, gap.until) for _, gap in found)
        if found and incomplete != self._incomplete:
            job, gap = found[-1]
            log.warning("gap upstream", feeder=job, reason=gap.sentence, since=gap.since, until=gap.until)
        self._incomplete = incomplete

    def _start_query(self, run: Run, checkpoint: Checkpoint, mode: str) -> StreamingQuery:
        most = {"maxOffsetsPerTrigger": str(self._settings.spark.drain_offsets_per_trigger)}

        def read(topics: Sequence[str]) -> DataFrame:
            start = checkpoint.start(place for place in run.places if partition_of(place)[0] in topics)
            own = {"startingOffsets": start} | (most if mode == MICRO_BATCH else {})
            records = read_topics(run.spark.readStream, self._settings, self.job, topics, **own)
            return self._poison.without(count_ticks(records, "" if len(self.sources) == 1 else topics[0]))

        writer = self._writer(self._records(self._apply(read), mode, checkpoint), checkpoint)
        writer = writer.option("checkpointLocation", str(checkpoint.query)).queryName(self._declared.name)
        writer = set_trigger(writer, self.plan, mode, self._settings.spark.trigger_seconds)
        try:
            return writer.outputMode(self.plan.output).start()  # type: ignore[no-any-return]  # as set_trigger
        except AnalysisException as error:
            if "REAL_TIME_MODE" in (told := first_line(error)):  # the next start takes micro-batches
                self._refusal = told
                raise TransientError(told) from error
            raise ConfigError.one(self._declared.path, f"Spark refuses its plan: {told}", key=self.function) from error

    def _apply(self, read: Read) -> DataFrame:
        """Make the rows that the user's function gives for the records that `read` gives of the events topics."""

        def events_of(source: Source) -> DataFrame:
            records, is_only = read(self.topics_of(source)), len(self.sources) == 1
            events = parse_events(records, source, self.used.get(source.name), is_only=is_only)
            delay = self._delay.decision.delay + source.lateness - self._shortest  # it was chosen for the shortest
            return self._choose(prepare_events(events, self._declared, delay, is_only=is_only))

        return self._call(
            by_source(self.sources, self._declared.path, self._declared, events_of), self._tables.newest()
        )

    def _try(self, read: Read) -> None:
        """Do with records, as a batch, what the query does."""
        self._apply(read).write.format("noop").mode("overwrite").save()

    def _set_aside(self, run: Run, record: SetAside) -> None:
        for message in run.topics.records(record.place, record.offset, record.offset + 1):
            gaps.record(self._folders.stored, gaps.make_gap(record.topic, message))

    def note_end(self) -> None:
        """Note that the query has ended, and its process has not."""
        self._poison.end()

    # --- while the query runs -----------------------------------------------------------------------------------------

    def count_batch(self, progress: BatchProgress) -> dict[str, Any]:
        """Count what was left out."""
        figures = {name: one for key in self.observations for name, one in progress.observed.get(key, {}).items()}
        self._take_figures(figures, progress)
        for name, count in figures.items():
            self.left_out[name] = self.left_out.get(name, 0) + int(count or 0)
        return self._counts()

    def _counts(self) -> dict[str, Any]:
        left_out = self.left_out | {"set_aside": self._poison.count}
        return {"counts": {name: count for name, count in left_out.items() if count}}

    def poll(self, run: Run) -> str | None:
        """Look each second whether to begin or to end a drain, and what an operator has asked for."""
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return None
        self._looked_at = time.monotonic()
        if run.started is not None:
            run.restate(run.started.state, self._remark + self._poison.sentence + self._reason)
        self._tables.refresh()
        if gaps.is_asked_to_skip(self._folders.local):
            return "skipping its backlog on request"
        if (reason := self._restart_reason(run)) is not None:
            return reason
        if self._declared.keeps_state:
            with contextlib.suppress(TransientError):
                return self._delay.restart_reason(run.position, run.lag_seconds)
        return None

    def accept_failure(self, run: Run, error: str) -> bool:
        """Take micro-batch where real-time mode refuses the plan when it starts; leave out records that are gone."""
        if "REAL_TIME_MODE" in error and not self._refusal:
            self._refusal = first_line(error)
            return True
        position = self._checkpoint.position(run.places)
        return self._checkpoint.is_overtaken(run.topics) or self._poison.count_failure(error, position)

    def appended_at(self, message: Message) -> datetime | None:
        """Read the append time of the raw record behind an event; of a tick, its time."""
        return came_in_at(message)
