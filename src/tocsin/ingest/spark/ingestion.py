"""Run the job of one source: raw records in, events and quarantined records out, in one stateless real-time query.

Delivery is at least once: after a crash the records since the last commit are written again, with the same identity.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.ingest.backlog import LONGEST_WAIT, not_ready
from tocsin.ingest.quarantined_record import QuarantineRatio, write_record
from tocsin.ingest.spark.envelope import OBSERVATION, add_event, observe, route
from tocsin.ingest.spark.parse import parsed
from tocsin.ingest.spark.patterns import check_source
from tocsin.ingest.ticks import Ticker, Watched
from tocsin.kafka.job_reports import ReportReader
from tocsin.kafka.reader import Offsets, TopicReader, oldest
from tocsin.model.errors import TransientError
from tocsin.model.job_report import JobState
from tocsin.model.names import detector_job, ingest_job
from tocsin.model.sizes import EVENT_BYTES
from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.quality.suites.suite_catalog import read_row_rules
from tocsin.runtime.heartbeat import read_besides
from tocsin.sparkjob.query.checkpoint import read_committed
from tocsin.sparkjob.query.poison import Poison, SetAside
from tocsin.sparkjob.query.progress import BatchProgress
from tocsin.sparkjob.query.work import MICRO_BATCH, REAL_TIME, Run, Started
from tocsin.sparkjob.session import consumer_group, kafka_options

# Two milliseconds of waiting make batches of what a backlog brings, and save a fifth of the CPU.
_PRODUCER = {"kafka.max.request.size": str(EVENT_BYTES), "kafka.linger.ms": "2"}

log = structlog.get_logger()


class Ingest:
    """The work of `ingest:<source>`; see `tocsin.sparkjob.query.work.Work`."""

    def __init__(self, settings: Settings, name: str) -> None:
        catalog = read_catalog(settings.project)
        self.source = catalog.source(name)
        self._rules = read_row_rules(settings.project, self.source)
        self.job, self.version = ingest_job(name), ""
        self.reads = settings.names.raw(name)
        self.writes: tuple[str, ...] = (settings.names.events(name), settings.names.quarantine(name))
        self._settings = settings
        self._detectors = [detector_job(spec.name) for spec in catalog.detectors_of(name)]
        self._ticker: Ticker | None = None
        self._counts: dict[str, float] = {}
        self._ratio = QuarantineRatio()
        self._poison = Poison(settings.checkpoint(self.job), self.reads)
        self._began_at: Offsets = {}
        self._skipping = False
        self._finished_batch = False
        self._patterns_tried = False

    # --- what the job's life asks for ---------------------------------------------------------------------------------

    def slots(self, partitions: int) -> int:
        """Count one for each partition: with fewer, a stateless real-time query silently leaves partitions unread."""
        return partitions

    def start(self, run: Run) -> Started:
        """Start or resume; announce a backlog to the detectors first."""
        if not self._patterns_tried:
            check_source(run.spark, self.source, self._rules)
            self._patterns_tried = True
        run.position, removed = self._position(run)
        self._poison.search(run, run.position, self._write, self._quarantine)
        self._counts["set_aside"] = self._poison.count
        self._began_at = run.position
        lag = self._lag(run)
        # What is read first grows older until the query reads it: half of the lateness is left for that.
        draining = lag > self.source.lateness.total_seconds() / 2
        if draining:
            self._await_detectors(run, lag)
        # Real-time mode cannot step over records that retention has removed; one micro-batch can.
        self._skipping, self._finished_batch = removed > 0, False
        query = self._query(run.spark)
        self._ticker = self._ticker or self._new_ticker(run)
        self._ticker.note_committed(run.position)
        reason = self._reason(lag if draining else None)
        return Started(
            query=query,
            mode=MICRO_BATCH if removed else REAL_TIME,
            reason=f"{removed} records were removed before they were read; continuing after them"
            if removed
            else reason,
            state=JobState.DRAINING if draining else JobState.RUNNING,
            batch_seconds=0.0 if removed else self._settings.spark.ingest_trigger_seconds,
        )

    def count_batch(self, progress: BatchProgress) -> dict[str, Any]:
        """Count what was read, and let ticks follow what was committed."""
        self._finished_batch = True
        figures = progress.observed.get(OBSERVATION, {})
        latest = figures.pop("latest_event_time", None)
        for name, count in figures.items():
            self._counts[name] = self._counts.get(name, 0) + (count or 0)
        if latest is not None:
            self._counts["latest_event_time"] = datetime.fromisoformat(latest).timestamp()
        self._ratio.add(figures.get("records") or 0, figures.get("quarantined") or 0)
        self._counts["bad_ratio"] = self._ratio.value
        if self._ticker is not None:
            self._ticker.note_committed(progress.end_offsets.get(self.reads, {}))
        return {"counts": dict(self._counts)}

    def poll(self, run: Run) -> str | None:
        """Keep the reported state true: a backlog makes it draining, the end of the backlog running again."""
        self._report_complete(run)
        if not self._finished_batch:
            return None
        if self._skipping:
            return "past the removed records"
        draining = run.lag_seconds > self.source.lateness.total_seconds()
        state = JobState.DRAINING if draining else JobState.RUNNING
        run.restate(state, self._reason(run.lag_seconds if draining else None))
        return None

    def _report_complete(self, run: Run) -> None:
        """Report up to when all that came in is in the events topic, if that is news."""
        if self._ticker is None or not self._ticker.asks:
            return
        moment = self._ticker.read(run.position)  # enough while nothing comes in, and costs nothing
        if self._ticker.asks:
            moment = self._ticker.read(run.read_positions.offsets()) or moment
        if moment is not None:
            run.reporter.update(complete_through=moment)

    def accept_failure(self, _: Run, error: str) -> bool:
        """Try again; when it fails at the same place once more, `start` looks for the record that ends it."""
        committed = read_committed(self._checkpoint(), self.reads) or {}
        # Before the first commit since removed records were passed over, what is committed lies before them.
        return self._poison.count_failure(error, _furthest(self._began_at, committed))

    def appended_at(self, message: Message) -> datetime | None:
        """Read the append time of the record."""
        return datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)

    # --- backlog ------------------------------------------------------------------------------------------------------

    def _position(self, run: Run) -> tuple[Offsets, int]:
        """Find the next offset of each partition, and how many records there were removed before they were read."""
        first, _ = run.topic.bounds()
        committed = read_committed(self._checkpoint(), self.reads)
        if committed is None:
            # What a broken-off first batch left behind says nothing, and Spark refuses to begin over it.
            shutil.rmtree(self._checkpoint(), ignore_errors=True)
            return first, 0
        removed = _between(committed, first)
        # Until a batch is committed, each start finds the same again.
        if new := _between(_furthest(committed, self._began_at), first):
            self._counts["removed_unread"] = self._counts.get("removed_unread", 0) + new
            log.error("records lost: retention is shorter than the outage", count=new)
        return _furthest(first, committed), removed

    def _lag(self, run: Run) -> float:
        """Return the seconds since the oldest unread record was appended; 0 when all is read."""
        since = oldest(run.topic, run.position)
        return 0.0 if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds())

    def _await_detectors(self, run: Run, lag: float) -> None:
        """Announce the backlog and wait until the running detectors have widened their delay for it."""
        reader = ReportReader(self._settings)
        reported: list[str] = []
        # The backlog grows older while it waits and until it is read, so the normal delay is never enough.
        needed = lag + self.source.lateness.total_seconds() + LONGEST_WAIT.total_seconds()
        try:
            end = datetime.now(UTC) + LONGEST_WAIT
            while not run.is_stopping and datetime.now(UTC) < end:
                # Those that are to take over from a detector report to this machine alone.
                beats = read_besides(self._settings.state, self._detectors)
                beside = {f"the next {job}": beat.report for job, beat in beats.items()}
                detectors = [*self._detectors, *beside]
                waiting = not_ready(reader.latest() | beside, detectors, needed, datetime.now(UTC))
                if waiting != reported or not reported:
                    reported = waiting
                    what = f"; waiting until {', '.join(waiting)} are ready" if waiting else ""
                    log.info("backlog", lag_seconds=round(lag, 1), waiting_for=",".join(waiting) or None)
                    run.reporter.update(state=JobState.DRAINING, lag_seconds=lag, reason=_drains(lag) + what)
                if not waiting:
                    return
                run.wait(0.25)
            log.warning("starting without the detectors", waited_for=",".join(reported))
        except TransientError as error:
            log.warning("detectors not reachable", reason=str(error))
        finally:
            reader.close()

    def _new_ticker(self, run: Run) -> Ticker:
        # Clients of its own: the ticker has its own thread.
        raw, events = (TopicReader(self._settings, self.job, name) for name in (self.reads, self.writes[0]))
        watched = Watched(
            raw_ends=lambda: raw.bounds()[1],
            events_partitions=events.partitions,
            is_stopping=lambda: run.is_stopping,
        )
        return Ticker(self._settings, self.source.name, run.reporter, watched)

    def _reason(self, behind_seconds: float | None = None) -> str:
        """Say what there is to say while it runs, or drains a backlog that is so old."""
        removed = int(self._counts.get("removed_unread", 0))
        lost = f"{removed} records were removed before they were read, their events are lost; " if removed else ""
        work = self._ratio.sentence() or "reads one record at a time, keeps no state"
        return lost + self._poison.sentence + (work if behind_seconds is None else _drains(behind_seconds))

    # --- query --------------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> Path:
        return self._settings.checkpoint(self.job) / "query"

    def _query(self, spark: SparkSession) -> StreamingQuery:
        kafka = kafka_options(self._settings)
        reader = spark.readStream.format("kafka").options(**kafka).option("subscribe", self.reads)
        reader = reader.options(startingOffsets="earliest", includeHeaders="true", failOnDataLoss=not self._skipping)
        reader = reader.option("groupIdPrefix", consumer_group(self._settings, self.job))
        rows = self._rows(self._poison.without(reader.load()))
        writer = rows.writeStream.format("kafka").options(**kafka, **_PRODUCER).outputMode("update")
        writer = writer.option("checkpointLocation", str(self._checkpoint())).queryName(self.source.name)
        if self._skipping:
            return writer.trigger(processingTime="0 seconds").start()
        cadence = f"{self._settings.spark.ingest_trigger_seconds} seconds"
        return writer.trigger(realTime=cadence).start()  # type: ignore[call-overload,no-any-return]  # not in its overloads

    def _rows(self, records: DataFrame) -> DataFrame:
        """Make what is written for `records`."""
        read = add_event(parsed(records, self.source, self._rules), self.source)
        return route(observe(read, self._rules), self.source, self._settings.names, self._rules)

    def _write(self, records: DataFrame) -> None:
        self._rows(records).write.format("kafka").options(**kafka_options(self._settings), **_PRODUCER).save()

    def _quarantine(self, record: SetAside) -> None:
        write_record(self._settings, self.source, record.partition, record.offset, record.error)


def _furthest(one: Offsets, other: Offsets) -> Offsets:
    """Take the later of two positions, for each partition of `one`."""
    return {partition: max(offset, other.get(partition, 0)) for partition, offset in one.items()}


def _between(position: Offsets, first: Offsets) -> int:
    """Count the records that lie between `position` and the first that are kept."""
    return sum(max(0, first[partition] - offset) for partition, offset in position.items() if partition in first)


def _drains(lag_seconds: float) -> str:
    return f"drains a backlog up to {timedelta(seconds=round(lag_seconds))} old"
