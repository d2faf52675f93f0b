"""Run the job of one detector: events in, findings out."""

from __future__ import annotations

import contextlib
import functools
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from confluent_kafka import Message
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.detect.drain import FEW_RECORDS, SLACK, WatermarkDelay, ingested_at
from tocsin.detect.drain_request import RequestedDrain
from tocsin.detect.spark.closed_windows import ClosedWindows
from tocsin.detect.spark.exact_scores import ExactScores
from tocsin.detect.spark.findings import OBSERVATION, WRITTEN, Emission, make_findings
from tocsin.detect.spark.plan import DetectorPlan, choose_mode, read_plan, set_trigger
from tocsin.ingest.backlog import IngestLag
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.job_report import JobState
from tocsin.model.names import detector_job
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import catalog_in_force, keep_version
from tocsin.runtime.lock import Lock
from tocsin.sparkjob.declared_function import DeclaredFunction, first_line
from tocsin.sparkjob.events import count_ticks, parse_events, prepare_events, used_columns
from tocsin.sparkjob.query import gaps
from tocsin.sparkjob.query.checkpoint import Checkpoint, open_checkpoint, remove_other_checkpoints, unread_raw
from tocsin.sparkjob.query.leadership import await_own
from tocsin.sparkjob.query.poison import Poison, SetAside
from tocsin.sparkjob.query.progress import BatchProgress
from tocsin.sparkjob.query.work import MICRO_BATCH, REAL_TIME, Run, Started
from tocsin.sparkjob.session import consumer_group, findings_sink, kafka_options

log = structlog.get_logger()

_EXCHANGES = 4
_LOOK_SECONDS = 1.0


class Detection:
    """Runs `detector:<name>`; see `tocsin.sparkjob.query.work.Work`."""

    _checkpoint: Checkpoint  # from the first start on

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = catalog_in_force(settings)
        self.spec = catalog.detector(name)
        self._text = self.spec.path.read_bytes()
        self.source: Source = catalog.source(self.spec.source)
        self.job, self.version = detector_job(name), self.spec.version
        self.reads = settings.names.events(self.source.name)
        self.writes: tuple[str, ...] = (settings.names.findings,)
        self._settings, self._detect = settings, DeclaredFunction(self.spec.path, "detect")
        self._folder = settings.checkpoint(self.job)
        self._ingest_lag = IngestLag(settings, self.source.name)
        few = min(FEW_RECORDS, settings.spark.drain_offsets_per_trigger)
        self._delay = WatermarkDelay(self.source.lateness, self._ingest_lag, few)
        self._closed = ClosedWindows(self._ingest_lag, self.spec.window or timedelta(0), self.source.lateness)
        self._requested_drain = RequestedDrain(settings.state, self.job)
        self._poison = Poison(self._folder, self.reads)
        self._exact = ExactScores(settings, self.spec, self.source, self._folder)
        self._plan: DetectorPlan | None = None
        self._lock: Lock | None = None
        self._refusal = ""
        self._looked_at = 0.0
        self._left_out = {"null_entity": 0, "null_score": 0, "too_long": 0, "removed_unread": 0, "skipped": 0}

    # --- start --------------------------------------------------------------------------------------------------------

    def slots(self, partitions: int) -> int:
        """Count slots for as many exchanges as real-time mode takes: a slot is a thread, and an idle one is free."""
        return partitions + self._settings.spark.shuffle_partitions * _EXCHANGES

    def start(self, run: Run) -> Started | None:
        """Start or resume, draining a backlog first, behind records that are not read any more."""
        plan = self._plan = self._plan or self._read_plan(run.spark)
        self._lock = self._lock or await_own(run, self._folder / plan.fingerprint)
        if self._lock is None:
            return None
        checkpoint = self._checkpoint = self._open_checkpoint(run, plan)
        run.position = checkpoint.position(self.reads, run.partitions)
        self._poison.search(run, run.position, self._try, functools.partial(self._set_aside, run))
        if self.spec.window is not None:
            self._delay.choose(run.topic, run.position)
        decision, needed = self._delay.decision, plan.slots(run.partitions, self._settings.spark.shuffle_partitions)
        mode, reason = choose_mode(plan, decision, self._refusal, needed, self.slots(run.partitions))
        query = self._start_query(run, plan, checkpoint, mode)
        self._closed.begin(run, mode, plan.score.kind, is_draining=decision.is_draining)
        return Started(
            query=query,
            mode=mode,
            reason=self._poison.sentence + self._version_sentence() + checkpoint.gap_sentence + reason,
            state=JobState.DRAINING if decision.is_draining and mode != REAL_TIME else JobState.RUNNING,
            batch_seconds=self._settings.spark.trigger_seconds if mode == REAL_TIME else 0.0,
            delay_seconds=decision.delay.total_seconds() if self.spec.window is not None else None,
        )

    def _read_plan(self, spark: SparkSession) -> DetectorPlan:
        rows = self._apply_detect(self._read(spark, {}))
        plan = read_plan(rows, self.spec, self.source)
        self._exact.used = used_columns(make_findings(rows, self.spec, Emission()), self.source)
        needed = plan.slots(1, self._settings.spark.shuffle_partitions)
        log.info("plan read", mode=plan.mode, reason=plan.reason, score=str(plan.score.kind), why=plan.score.why,
                 exchanges=plan.exchanges, slots_besides_source=needed - 1, fingerprint=plan.fingerprint)  # fmt: skip
        return plan

    def _open_checkpoint(self, run: Run, plan: DetectorPlan) -> Checkpoint:
        """Open the checkpoint of `plan`, and note that this version runs on it; count what it leaves unread."""
        memory = (self.spec.window or timedelta(0)) + self.source.lateness + SLACK
        unread = functools.partial(unread_raw, self._settings, self.source.name)
        checkpoint = open_checkpoint(self._folder, plan.fingerprint, run.topic, memory, unread)
        versions = keep_version(self._settings, self.spec, self._text, plan.fingerprint)
        if run.reporter.leads:  # it alone removes what no kept version can go back to
            remove_other_checkpoints(self._folder, {version.fingerprint for version in versions})
        if checkpoint.gap is not None:
            self._count_gap(checkpoint.gap, run)
        return checkpoint

    def _count_gap(self, gap: gaps.Gap, run: Run) -> None:
        """Count and log a gap, which is written down already."""
        is_skipped = gap.cause is gaps.Cause.SKIPPED
        self._left_out["skipped" if is_skipped else "removed_unread"] += gap.records
        self._delay.forget_backlog()
        write = log.warning if is_skipped else log.error
        write("gap", reason=gap.sentence, since=gap.since, until=gap.until, offsets=gap.offsets)
        run.reporter.update(**self._counts())

    def _version_sentence(self) -> str:
        is_in_file = self.spec.path.parent == self._settings.project / "detectors"
        return "" if is_in_file else f"rolled back to version {self.version}; "

    # --- query --------------------------------------------------------------------------------------------------------

    def _start_query(self, run: Run, plan: DetectorPlan, checkpoint: Checkpoint, mode: str) -> StreamingQuery:
        emission = Emission(ladder=plan.score.counts and mode == REAL_TIME, publish_from=checkpoint.publish_from)
        options = {"startingOffsets": checkpoint.start(self.reads, run.partitions)}
        if mode == MICRO_BATCH:
            options["maxOffsetsPerTrigger"] = str(self._settings.spark.drain_offsets_per_trigger)
        records = self._poison.without(count_ticks(self._read(run.spark, options)))
        rows = make_findings(self._apply_detect(records), self.spec, emission)
        writer = rows.writeStream.format("kafka").options(**findings_sink(self._settings))
        writer = writer.option("kafka.linger.ms", "0").outputMode(plan.output)
        writer = writer.option("checkpointLocation", str(checkpoint.query)).queryName(self.spec.name)
        try:
            query: StreamingQuery = set_trigger(writer, plan, mode, self._settings.spark.trigger_seconds).start()
            return query
        except AnalysisException as error:
            what = f"Spark refuses its plan: {first_line(error)}"
            raise ConfigError.one(self.spec.path, what, key="detect") from error

    def _read(self, spark: SparkSession, options: dict[str, str]) -> DataFrame:
        kafka = kafka_options(self._settings)
        group = {"groupIdPrefix": consumer_group(self._settings, self.job)}
        return spark.readStream.format("kafka").options(**kafka, **group, **options, subscribe=self.reads).load()

    def _apply_detect(self, records: DataFrame) -> DataFrame:
        """Make the rows that `detect` gives for `records` of the events topic."""
        events = parse_events(records, self.source, self._exact.used)
        return self._detect(prepare_events(events, self.spec, self._delay.decision.delay))

    def _try(self, records: DataFrame) -> None:
        """Do with records, as a batch, what `detect` does."""
        self._apply_detect(records).write.format("noop").mode("overwrite").save()

    def _set_aside(self, run: Run, record: SetAside) -> None:
        for message in run.topic.records(record.partition, record.offset, record.offset + 1):
            gaps.record(self._folder, gaps.make_gap(self.reads, message))

    # --- while the query runs -----------------------------------------------------------------------------------------

    def count_batch(self, progress: BatchProgress) -> dict[str, Any]:
        """Count what was left out: it had no entity or no score, or was too long for the topic of findings."""
        figures = progress.observed.get(OBSERVATION, {}) | progress.observed.get(WRITTEN, {})
        self._exact.note_batch(figures, progress.next_watermark(self._delay.decision.delay.total_seconds()))
        for name, count in figures.items():
            self._left_out[name] += int(count or 0)
        return self._counts()

    def _counts(self) -> dict[str, Any]:
        left_out = self._left_out | {"set_aside": self._poison.count}
        return {"counts": {name: count for name, count in left_out.items() if count}}

    def poll(self, run: Run) -> str | None:
        """Look each second whether to begin or to end a drain, and what an operator has asked for."""
        self._closed.look(run)
        self._exact.look(run)
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return None
        self._looked_at = time.monotonic()
        if gaps.is_asked_to_skip(self._folder):
            return "skipping its backlog on request"
        if run.reporter.leads:
            self._requested_drain.look(run.topic.bounds, self._ingest_lag, run.position)
        if self.spec.window is not None:
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
        moment = ingested_at(message.value() or b"")
        return None if moment is None else datetime.fromisoformat(moment).astimezone(UTC)
