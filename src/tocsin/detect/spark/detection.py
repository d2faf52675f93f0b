"""The job of one detector: events in, findings out."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from confluent_kafka import Message
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.detect.drain import FEW_RECORDS, SLACK, Backlog, Decision, Unread, decide, ingested_at, too_narrow
from tocsin.detect.drain_request import RequestedDrain
from tocsin.detect.spark.closed_windows import ClosedWindows
from tocsin.detect.spark.exact_scores import ExactScores
from tocsin.detect.spark.findings import OBSERVATION, WRITTEN, Emission, findings
from tocsin.detect.spark.function import first_line, load_detect, scored
from tocsin.detect.spark.plan import Plan, read_plan, triggered
from tocsin.ingest.backlog import IngestLag
from tocsin.kafka.offsets import Offsets
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.job_report import JobState
from tocsin.model.names import detector_job
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import catalog_in_force, keep_version
from tocsin.runtime.lock import Lock, LockHeld
from tocsin.sparkjob import jvm
from tocsin.sparkjob.events import count_ticks, parse_events, prepared, used_columns
from tocsin.sparkjob.query import gaps
from tocsin.sparkjob.query.checkpoint import Checkpoint, forget, open_checkpoint, unread_raw
from tocsin.sparkjob.query.leadership import own
from tocsin.sparkjob.query.poison import Poison, SetAside
from tocsin.sparkjob.query.progress import Progress
from tocsin.sparkjob.query.work import MICRO_BATCH, REAL_TIME, Run, Started
from tocsin.sparkjob.session import consumer_group, findings_sink, kafka_options

log = structlog.get_logger()

_EXCHANGES = 4
_LOOK_SECONDS = 1.0
_OWN_SECONDS = 0.1


@dataclass(frozen=True)
class _Situation:
    """What decides how to read on, at one moment."""

    backlog: Backlog
    ingest_lag: timedelta


class Detection:
    """The work of `detector:<name>`; see `tocsin.sparkjob.query.work.Work`."""

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = catalog_in_force(settings)
        self.spec = catalog.detector(name)
        self._text = self.spec.path.read_bytes()
        self.source: Source = catalog.source(self.spec.source)
        self.job, self.version = detector_job(name), self.spec.version
        self.reads = settings.names.events(self.source.name)
        self.writes: tuple[str, ...] = (settings.names.findings,)
        self._settings, self._detect = settings, load_detect(self.spec)
        self._ingest_lag = IngestLag(settings, self.source.name)
        self._closed = ClosedWindows(self._ingest_lag, self.spec.window or timedelta(0), self.source.lateness)
        self._unread: Unread | None = None
        self._plan: Plan | None = None
        self._used: frozenset[str] | None = None
        self._lock: Lock | None = None
        self._is_overtaken: Callable[[], bool] = lambda: False
        self._position: Callable[[], Offsets] = dict
        self._folder = settings.checkpoint(self.job)
        self._poison = Poison(self._folder, self.reads)
        self._exact = ExactScores(settings, self.spec, self.source, self._folder)
        self._requested_drain = RequestedDrain(settings.state, self.job)
        in_file = self.spec.path.parent == settings.project / "detectors"
        self._rolled_back = "" if in_file else f"rolled back to version {self.spec.version}; "
        self._decision = Decision(False, self.source.lateness + SLACK, "")
        self._began_at: dict[int, int] = {}
        self._refused = ""
        self._looked = 0.0
        self._left_out = {"null_entity": 0, "null_score": 0, "too_long": 0, "removed_unread": 0, "skipped": 0}

    # --- what the job's life asks for ---------------------------------------------------------------------------------

    def slots(self, partitions: int) -> int:
        """For as many exchanges as a plan has that real-time mode takes: a slot is a thread, and an idle one free."""
        return partitions + self._settings.spark.shuffle_partitions * _EXCHANGES

    def start(self, run: Run) -> Started | None:
        """Start or go on, draining first if there is a backlog, behind records that are not read any more."""
        plan = self._plan = self._plan or self._read_plan(run.spark)
        if not self._owns(run, self._folder / plan.fingerprint):
            return None
        unread = functools.partial(unread_raw, self._settings, self.source.name)
        checkpoint = open_checkpoint(self._folder, plan.fingerprint, run.topic, self._memory(), unread)
        self._keep_version(plan.fingerprint, run)
        self._is_overtaken = functools.partial(checkpoint.is_overtaken, run.topic)
        if checkpoint.gap is not None:
            self._leave_out(checkpoint.gap, run)
        position = checkpoint.position(self.reads, run.partitions)
        self._position = functools.partial(checkpoint.position, self.reads, run.partitions)
        self._poison.search(run, position, self._try, functools.partial(self._set_aside, run))
        situation = self._situation(run, position)
        self._decision = self._decide(situation)
        mode, reason = self._mode(plan, run.partitions)
        query = self._query(run, plan, checkpoint, mode)
        self._closed.begin(run, mode, plan.score.kind, draining=self._decision.draining)
        run.position, self._began_at = position, dict(position)
        gap = "" if checkpoint.gap is None else f"{checkpoint.gap.sentence}; "
        return Started(
            query=query,
            mode=mode,
            reason=f"{self._poison.sentence}{self._rolled_back}{gap}{reason}",
            state=JobState.DRAINING if self._decision.draining and mode != REAL_TIME else JobState.RUNNING,
            batch_seconds=self._settings.spark.trigger_seconds if mode == REAL_TIME else 0.0,
            delay_seconds=self._decision.delay.total_seconds() if self.spec.window is not None else None,
        )

    def count_batch(self, progress: Progress) -> dict[str, Any]:
        """Counts what was left out: it had no entity or no score, or was too long for the topic of findings."""
        figures = progress.observed.get(OBSERVATION, {}) | progress.observed.get(WRITTEN, {})
        self._exact.saw(figures, progress.next_watermark(self._decision.delay.total_seconds()))
        for name, count in figures.items():
            self._left_out[name] += int(count or 0)
        return self._counts()

    def _counts(self) -> dict[str, Any]:
        left_out = self._left_out | {"set_aside": self._poison.count}
        return {"counts": {name: count for name, count in left_out.items() if count}}

    def _try(self, records: DataFrame) -> None:
        """Do with records, as a batch, what `detect` does."""
        self._scored(records).write.format("noop").mode("overwrite").save()

    def _set_aside(self, run: Run, record: SetAside) -> None:
        for message in run.topic.records(record.partition, record.offset, record.offset + 1):
            gaps.record(self._folder, gaps.gap_of(self.reads, message))

    def _leave_out(self, gap: gaps.Gap, run: Run) -> None:
        """Count and tell a gap, which is written down already."""
        count, say = ("skipped", log.warning) if gap.cause is gaps.Cause.SKIPPED else ("removed_unread", log.error)
        self._left_out[count] += gap.records
        self._unread = None  # it begins elsewhere
        say("gap", reason=gap.sentence, since=gap.since, until=gap.until, offsets=gap.offsets)
        run.reporter.update(**self._counts())

    def poll(self, run: Run) -> str | None:
        """Looks each second whether to begin or to end a drain, and what an operator has asked for."""
        self._closed.look(run)
        self._exact.look(run)
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return None
        self._looked = time.monotonic()
        if gaps.is_asked_to_skip(self._folder):
            return "was asked to skip its backlog"
        if run.reporter.leads:
            self._requested_drain.look(run.topic.bounds, self._ingest_lag, run.position)
        if self.spec.window is None:
            return None
        try:
            return self._turn(run)
        except TransientError:
            return None

    def accept_failure(self, error: str) -> bool:
        """Real-time mode refuses a plan when it starts: take micro-batch then. Records that are gone are left out."""
        refused = "REAL_TIME_MODE" in error and not self._refused
        if refused:
            self._refused = first_line(error)
        return refused or self._is_overtaken() or self._poison.count_failure(error, self._position())

    def appended_at(self, message: Message) -> datetime | None:
        """The append time of the raw record behind an event; of a tick, its time."""
        moment = ingested_at(message.value() or b"")
        return None if moment is None else datetime.fromisoformat(moment).astimezone(UTC)

    # --- beside another version -------------------------------------------------------------------------------------

    def _owns(self, run: Run, checkpoint: Path) -> bool:
        """Become the one that writes `checkpoint`; False when asked to stop while another process still does."""
        told = None
        while self._lock is None and not run.is_stopping:
            try:
                self._lock = own(checkpoint, jvm.process_id())
            except LockHeld:
                state = JobState.WAITING if run.reporter.leads else JobState.READY
                if state is not told:  # each update is a sign of life, and this loop does not need the JVM
                    run.reporter.update(state=state, reason="goes on from the checkpoint of the version that runs")
                    told = state
                run.wait(_OWN_SECONDS)
        return self._lock is not None

    def _keep_version(self, fingerprint: str, run: Run) -> None:
        """Note that this version runs; who leads removes the checkpoints that no kept version can go back to."""
        kept = keep_version(self._settings, self.spec, self._text, fingerprint)
        if run.reporter.leads:
            forget(self._folder, {one.fingerprint for one in kept})

    # --- plan and mode ------------------------------------------------------------------------------------------------

    def _read_plan(self, spark: SparkSession) -> Plan:
        scored = self._scored(self._records(spark, {}))
        plan = read_plan(scored, self.spec, self.source)
        self._used = used_columns(findings(scored, self.spec, Emission()), self.source)
        needed = plan.slots(1, self._settings.spark.shuffle_partitions)
        log.info("plan read", mode=plan.mode, reason=plan.reason, score=str(plan.score.kind), why=plan.score.why,
                 exchanges=plan.exchanges, slots_besides_source=needed - 1, fingerprint=plan.fingerprint)  # fmt: skip
        return plan

    def _mode(self, plan: Plan, partitions: int) -> tuple[str, str]:
        """The mode for now, and why."""
        if self._decision.draining and not self._decision.short:
            return MICRO_BATCH, f"drains a backlog: {self._decision.reason}"
        if plan.mode != REAL_TIME:
            return plan.mode, plan.reason
        if self._refused:
            return MICRO_BATCH, f"Spark refuses real-time mode for this plan: {self._refused}"
        # Spark checks the slots of stateful plans alone; a stateless one would read part of the topic in silence.
        needed, there = plan.slots(partitions, self._settings.spark.shuffle_partitions), self.slots(partitions)
        if needed > there:
            return MICRO_BATCH, f"real-time mode needs {needed} task slots at once for this plan; there are {there}"
        return REAL_TIME, f"catches up: {self._decision.reason}" if self._decision.draining else plan.reason

    def _memory(self) -> timedelta:
        """How far back an event can still change a window that is open."""
        return (self.spec.window or timedelta(0)) + self.source.lateness + SLACK

    # --- drain --------------------------------------------------------------------------------------------------------

    def _situation(self, run: Run, position: dict[int, int]) -> _Situation:
        if self.spec.window is None:
            return _Situation(Backlog(), timedelta(0))
        unread = self._unread = self._unread or Unread(run.topic)
        return _Situation(unread.look(position), self._ingest_lag())

    def _decide(self, situation: _Situation) -> Decision:
        few = min(FEW_RECORDS, self._settings.spark.drain_offsets_per_trigger)
        return decide(self.source.lateness, situation.backlog, situation.ingest_lag, datetime.now(UTC), few)

    def _turn(self, run: Run) -> str | None:
        """A reason to start again, draining or no longer draining; None while things are as they should be."""
        lateness = self.source.lateness
        if self._decision.draining:
            return self._turn_of_drain(run, lateness)
        lag = self._ingest_lag()
        if lag:
            return f"the ingest drains a backlog of {lag.total_seconds():.0f} s"
        if run.lag_seconds > lateness.total_seconds():
            return f"behind by {run.lag_seconds:.0f} s"
        return None

    def _turn_of_drain(self, run: Run, lateness: timedelta) -> str | None:
        situation = self._situation(run, run.position)
        if situation.ingest_lag + lateness > self._decision.delay:
            return "the ingest has a backlog that is older than the watermark delay allows"
        if self._decision.short and run.position == self._began_at:
            return None  # in its first batch, which reads them all: no watermark moves before it ends
        if too_narrow(self._decision, lateness, situation.backlog, datetime.now(UTC)):
            return "the backlog has become older than the watermark delay allows"
        return None if self._decide(situation).draining else "the backlog is drained"

    # --- query --------------------------------------------------------------------------------------------------------

    def _records(self, spark: SparkSession, options: dict[str, str]) -> DataFrame:
        kafka = kafka_options(self._settings)
        group = {"groupIdPrefix": consumer_group(self._settings, self.job)}
        return spark.readStream.format("kafka").options(**kafka, **group, **options, subscribe=self.reads).load()

    def _scored(self, records: DataFrame) -> DataFrame:
        """The rows that `detect` gives for `records` of the events topic."""
        events = prepared(parse_events(records, self.source, self._used), self.spec, self._decision.delay)
        return scored(self._detect, self.spec, events)

    def _query(self, run: Run, plan: Plan, checkpoint: Checkpoint, mode: str) -> StreamingQuery:
        emission = Emission(ladder=plan.score.counts and mode == REAL_TIME, publish_from=checkpoint.publish_from)
        options = {"startingOffsets": checkpoint.start(self.reads, run.partitions)}
        if mode == MICRO_BATCH:
            options["maxOffsetsPerTrigger"] = str(self._settings.spark.drain_offsets_per_trigger)
        records = self._poison.without(count_ticks(self._records(run.spark, options)))
        rows = findings(self._scored(records), self.spec, emission)
        writer = rows.writeStream.format("kafka").options(**findings_sink(self._settings))
        writer = writer.option("kafka.linger.ms", "0").outputMode(plan.output)
        writer = writer.option("checkpointLocation", str(checkpoint.query)).queryName(self.spec.name)
        try:
            query: StreamingQuery = triggered(writer, plan, mode, self._settings.spark.trigger_seconds).start()
            return query
        except AnalysisException as error:
            raise ConfigError.one(
                self.spec.path, f"Spark refuses its plan: {first_line(error)}", key="detect"
            ) from error
