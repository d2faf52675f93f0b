"""Run a user's query over the events of one source, with state under a watermark: what detectors and views share.

It drains a backlog with a widened delay, begins again behind removed records, leaves out records that end the query,
and takes real-time mode where the plan allows it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import structlog
from confluent_kafka import Message
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.kafka.reader import came_in_at
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.job_report import JobState
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.runtime.lock import Lock
from tocsin.sparkjob.declared_function import DeclaredFunction, first_line
from tocsin.sparkjob.events import Prepared, count_ticks, parse_events, prepare_events, used_columns
from tocsin.sparkjob.query import gaps
from tocsin.sparkjob.query.checkpoint import Checkpoint
from tocsin.sparkjob.query.drain import FEW_RECORDS, WatermarkDelay
from tocsin.sparkjob.query.leadership import await_own
from tocsin.sparkjob.query.poison import Poison, SetAside
from tocsin.sparkjob.query.progress import BatchProgress
from tocsin.sparkjob.query.stream_tables import StreamTables
from tocsin.sparkjob.query.work import MICRO_BATCH, REAL_TIME, Run, Started
from tocsin.sparkjob.query_plan import QueryPlan, choose_mode, set_trigger
from tocsin.sparkjob.session import consumer_group, kafka_options

log = structlog.get_logger()

_EXCHANGES = 4
_LOOK_SECONDS = 1.0
_Plan = TypeVar("_Plan", bound=QueryPlan)


class Declared(Prepared, Protocol):
    """The declaration of the query; see `tocsin.model.detector.DetectorSpec`."""

    @property
    def name(self) -> str: ...  # noqa: D102 - as in the specs
    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def tables(self) -> tuple[str, ...]: ...  # noqa: D102


class KeyedQuery(ABC, Generic[_Plan]):
    """Implements `tocsin.sparkjob.query.work.Work`, but for the plan, the records that are written, and their sink.

    Attributes:
        function: name of the function in the file of the declaration.
        observations: of the figures that count what was left out.
        plan: of the query; from the first start on.
        used: the columns of events that the query uses; None for all.
        left_out: count of what was left out, by reason.
    """

    function: str
    observations: tuple[str, ...]
    plan: _Plan
    _checkpoint: Checkpoint  # from the first start on

    def __init__(
        self, settings: Settings, job: str, declared: Declared, source: Source, feeder_lag: Callable[[], timedelta]
    ) -> None:
        """Prepare the query; `feeder_lag` asks how far behind the job is that writes the events."""
        self.job, self.version, self.source = job, declared.version, source
        self.reads = settings.names.events(source.name)
        self.writes: tuple[str, ...] = ()
        self.used: frozenset[str] | None = None
        self.left_out = {"removed_unread": 0, "skipped": 0}
        self._settings, self._declared = settings, declared
        self._text = declared.path.read_bytes()
        self._call = DeclaredFunction(declared.path, self.function)
        self._folder = settings.checkpoint(job)
        few = min(FEW_RECORDS, settings.spark.drain_offsets_per_trigger)
        self._delay = WatermarkDelay(source.lateness, feeder_lag, few)
        self._poison = Poison(self._folder, self.reads)
        self._owned: tuple[Path, Lock] | None = None
        self._refusal = ""
        self._tables = StreamTables(settings, declared, source, settings.spark.trigger_seconds)
        self._looked_at = 0.0

    # --- what a kind of query decides ---------------------------------------------------------------------------------

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
        if not hasattr(self, "plan"):
            self.plan = self._read_plan(run.spark)
        name = self._checkpoint_name()
        if not self._own(run, self._folder / name):
            return None
        checkpoint = self._checkpoint = self._open(run, name)
        if checkpoint.gap is not None:
            self._count_gap(checkpoint.gap, run)
        run.position = checkpoint.position(self.reads, run.partitions)
        self._poison.search(run, run.position, self._try, functools.partial(self._set_aside, run))
        if self._declared.keeps_state:
            self._delay.choose(run.topic, run.position)
        decision, needed = (
            self._delay.decision,
            self.plan.slots(run.partitions, self._settings.spark.shuffle_partitions),
        )
        mode, reason = choose_mode(self.plan, decision, self._refusal, needed, self.slots(run.partitions))
        query = self._start_query(run, checkpoint, mode)
        self._began(run, mode)
        return Started(
            query=query,
            mode=mode,
            reason=self._poison.sentence + self._version_sentence() + checkpoint.gap_sentence + reason,
            state=JobState.DRAINING if decision.is_draining and mode != REAL_TIME else JobState.RUNNING,
            batch_seconds=self._settings.spark.trigger_seconds if mode == REAL_TIME else 0.0,
            delay_seconds=decision.delay.total_seconds() if self._declared.keeps_state else None,
        )

    def _read_plan(self, spark: SparkSession) -> _Plan:
        rows = self._apply(self._read(spark, {}))
        plan = self._plan_of(rows)
        self.used = used_columns(self._records(rows, MICRO_BATCH, None), self.source)
        needed = plan.slots(1, self._settings.spark.shuffle_partitions)
        log.info("plan read", mode=plan.mode, reason=plan.reason, output=plan.output, exchanges=plan.exchanges,
                 slots_besides_source=needed - 1, fingerprint=plan.fingerprint)  # fmt: skip
        return plan

    def _own(self, run: Run, folder: Path) -> bool:
        """Become the one that writes the checkpoint in `folder`; False when asked to stop before that."""
        if self._owned is not None and self._owned[0] == folder:
            return True
        if self._owned is not None:
            self._owned[1].release()
        lock = await_own(run, folder)
        self._owned = None if lock is None else (folder, lock)
        return lock is not None

    def _count_gap(self, gap: gaps.Gap, run: Run) -> None:
        """Count and log a gap, which is written down already."""
        is_skipped = gap.cause is gaps.Cause.SKIPPED
        self.left_out["skipped" if is_skipped else "removed_unread"] += gap.records
        self._delay.forget_backlog()
        write = log.warning if is_skipped else log.error
        write("gap", reason=gap.sentence, since=gap.since, until=gap.until, offsets=gap.offsets)
        run.reporter.update(**self._counts())

    def _version_sentence(self) -> str:
        is_in_file = self._declared.path.parent.parent == self._settings.project
        return "" if is_in_file else f"rolled back to version {self.version}; "

    # --- query --------------------------------------------------------------------------------------------------------

    def _start_query(self, run: Run, checkpoint: Checkpoint, mode: str) -> StreamingQuery:
        options = {"startingOffsets": checkpoint.start(self.reads, run.partitions)}
        if mode == MICRO_BATCH:
            options["maxOffsetsPerTrigger"] = str(self._settings.spark.drain_offsets_per_trigger)
        rows = self._apply(self._poison.without(count_ticks(self._read(run.spark, options))))
        writer = self._records(rows, mode, checkpoint).writeStream.format("kafka").options(**self._sink())
        writer = writer.option("kafka.linger.ms", "0").outputMode(self.plan.output)
        writer = writer.option("checkpointLocation", str(checkpoint.query)).queryName(self._declared.name)
        try:
            query: StreamingQuery = set_trigger(writer, self.plan, mode, self._settings.spark.trigger_seconds).start()
            return query
        except AnalysisException as error:
            what = f"Spark refuses its plan: {first_line(error)}"
            raise ConfigError.one(self._declared.path, what, key=self.function) from error

    def _read(self, spark: SparkSession, options: dict[str, str]) -> DataFrame:
        kafka = kafka_options(self._settings)
        group = {"groupIdPrefix": consumer_group(self._settings, self.job)}
        return spark.readStream.format("kafka").options(**kafka, **group, **options, subscribe=self.reads).load()

    def _apply(self, records: DataFrame) -> DataFrame:
        """Make the rows that the user's function gives for `records` of the events topic."""
        events = parse_events(records, self.source, self.used)
        prepared = prepare_events(events, self._declared, self._delay.decision.delay)
        return self._call(prepared, self._tables.newest())

    def _try(self, records: DataFrame) -> None:
        """Do with records, as a batch, what the query does."""
        self._apply(records).write.format("noop").mode("overwrite").save()

    def _set_aside(self, run: Run, record: SetAside) -> None:
        for message in run.topic.records(record.partition, record.offset, record.offset + 1):
            gaps.record(self._folder, gaps.make_gap(self.reads, message))

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
        self._tables.refresh()
        if gaps.is_asked_to_skip(self._folder):
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
        position = self._checkpoint.position(self.reads, run.partitions)
        return self._checkpoint.is_overtaken(run.topic) or self._poison.count_failure(error, position)

    def appended_at(self, message: Message) -> datetime | None:
        """Read the append time of the raw record behind an event; of a tick, its time."""
        return came_in_at(message)
