"""Run the query of one job, whatever its kind: an ingest, a flow, a detector or the computation of a view."""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Message
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tocsin.declare.blocks.spark_settings import LATENCIES, ResourceSettings
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.settings import Settings
from tocsin.platform.failures import first_line
from tocsin.platform.kafka.reader import came_in_at
from tocsin.platform.kafka.topic_set import partition_of
from tocsin.platform.storage.job_folders import JobFolders
from tocsin.spark.query import gaps
from tocsin.spark.query.checkpoint import Checkpoint
from tocsin.spark.query.leadership import Ownership
from tocsin.spark.query.poison import Poison, Read, SetAside
from tocsin.spark.query.progress import BatchProgress
from tocsin.spark.query.stream_tables import StreamTables
from tocsin.spark.query.work import MICRO_BATCH, REAL_TIME, Choice, Run, Started
from tocsin.spark.query_plan import QueryPlan, set_trigger, shortage_of
from tocsin.spark.session import LONG_POLLS, read_topics

_LOOK_SECONDS = 1.0
_LEAST_SECONDS = 5
"""Spark refuses shorter real-time batches."""
_REFUSED = "Spark refuses real-time mode for this plan"


def write_to_kafka(records: DataFrame, _: Checkpoint, sink: Mapping[str, str]) -> DataStreamWriter:
    """Write a stream of records to Kafka by the options of `sink`."""
    return records.writeStream.format("kafka").options(**sink)


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """What one kind of job does with its streams. Its functions are called on the job's main thread.

    Attributes:
        pool: of the engines that it attaches to; empty for a JVM of its own.
        latency: of `LATENCIES`; empty for that of the settings.
        version: for reports; empty where a user has written nothing.
        path, function: of the declaration, for errors; no function where it has none.
        writes: topics that must exist as well before the query starts.
        batch_seconds: length of a real-time batch.
        exchanges: for so many shuffles the session has task slots. A slot is a thread, and an idle one is free.
        resources: what it gets on a cluster; None for a job that always runs on its own machine.
        is_repeatable: what it writes of a part of its records is no mistake, so a search for poison records may.
        plan: loads and checks what a session needs; returns the plan, or raises a ConfigError.
        owner: names the folder, below that of the job, whose lock lets one process write.
        open: finds where the query begins or goes on, for the name that `owner` has given.
        choose: decides how to read on. Its third argument is why real-time mode cannot be; empty if it can.
        rows: makes what is written of the records that are read, for a mode. Without a checkpoint nothing is written.
        set_aside: stores a record that is not read any more; perhaps twice.
        look: is called about four times a second.
        describe: returns the state and the reason to report by now.
        restart_reason: returns why the query must start again, or None; called once a second.
        take: takes what is no count out of the figures of a batch; returns further fields of the report.
        appended_at: reads when a record came into the platform, UTC. The lag is counted from it.
    """

    job: str
    query: str
    path: Path
    folders: JobFolders
    poison: Poison
    topics: Callable[[], tuple[str, ...]]
    writes: tuple[str, ...]
    sink: dict[str, str]
    batch_seconds: int
    plan: Callable[[SparkSession], QueryPlan]
    open: Callable[[Run, str], Checkpoint]
    choose: Callable[[Run, Checkpoint, str], Choice]
    rows: Callable[[Read, str, Checkpoint | None], DataFrame]
    set_aside: Callable[[Run, SetAside], None]
    begin: Callable[[Run, Choice], None]
    restart_reason: Callable[[Run], str | None]
    owner: Callable[[QueryPlan], str] = lambda plan: plan.fingerprint
    pool: str = ""
    latency: str = ""
    version: str = ""
    function: str = ""
    source: dict[str, str] = field(default_factory=dict)
    exchanges: int = 0
    resources: ResourceSettings | None = None
    is_repeatable: bool = False
    tables: StreamTables | None = None
    observations: tuple[str, ...] = ()
    write: Callable[[DataFrame, Checkpoint, Mapping[str, str]], DataStreamWriter] = write_to_kafka
    look: Callable[[Run], None] = lambda _: None
    describe: Callable[[Run, Choice], tuple[JobState, str]] = lambda _, choice: (choice.state, choice.reason)
    take: Callable[[Run, dict[str, Any], BatchProgress], dict[str, Any]] = lambda *_: {}
    appended_at: Callable[[Message], datetime | None] = came_in_at


class StreamJob:
    """The query of one job, for `QueryLoop`."""

    _checkpoint: Checkpoint  # from the first start on
    _choice: Choice

    def __init__(self, settings: Settings, spec: StreamSpec) -> None:
        self.spec = spec
        self._settings, self._poison, self._ownership = settings, spec.poison, Ownership()
        self._waits = LATENCIES[spec.latency or settings.spark.latency]
        # The end of a batch takes a core for some 100 ms, so those of an engine's jobs lie apart.
        spread = zlib.crc32(spec.job.encode()) % (spec.batch_seconds // 5) if spec.pool else 0
        self._batch_seconds = max(_LEAST_SECONDS, spec.batch_seconds - spread)
        self._refusal = ""
        self._looked_at = 0.0

    def start(self, run: Run) -> Started | None:
        """Start or resume the query, behind records that are not read any more.

        Returns None when the job was asked to stop before it could, or the session must fit other topics first. Raises
        a ConfigError if something must be fixed first, and a TransientError if Kafka went away.
        """
        spec = self.spec
        if spec.tables is not None and not spec.tables.await_rows(run):
            return None
        plan = spec.plan(run.spark)
        owner, needed = spec.owner(plan), plan.slots(len(run.places), run.settings.spark.shuffle_partitions)
        if not run.follow(spec.topics()):
            return None
        slots = run.await_slots(needed if plan.mode == REAL_TIME else 1)
        if not slots or not self._ownership.take(run, spec.folders.local / owner):
            return None
        checkpoint = self._checkpoint = spec.open(run, owner)
        run.topic_ids, run.position = checkpoint.topic_ids, checkpoint.position(run.places)
        self._poison.fit(run.topic_ids)
        run.counts |= gaps.counts(spec.folders.stored)
        run.reporter.update(counts=dict(run.counts))
        self._poison.search(run, run.position, self._try, functools.partial(spec.set_aside, run))
        run.counts["set_aside"] = self._poison.count
        choice = self._choice = spec.choose(run, checkpoint, self._refusal or shortage_of(needed, slots))
        query = self._start_query(run, plan, checkpoint, choice)
        self._poison.begin(run.position)
        spec.begin(run, choice)
        return Started(
            query=query,
            mode=choice.mode,
            reason=self._poison.sentence + choice.reason,
            state=choice.state,
            batch_seconds=self._batch_seconds if choice.mode == REAL_TIME else 0.0,
            delay_seconds=choice.delay_seconds,
        )

    def _start_query(self, run: Run, plan: QueryPlan, checkpoint: Checkpoint, choice: Choice) -> StreamingQuery:
        spec, seconds = self.spec, self._batch_seconds
        gathered = LATENCIES[self._settings.spark.latency].fetch
        options = spec.source | {"failOnDataLoss": str(not choice.skips_removed).lower()}
        if choice.mode == MICRO_BATCH:
            options |= LONG_POLLS | {"maxOffsetsPerTrigger": str(self._settings.spark.drain_offsets_per_trigger)}

        def read(topics: Sequence[str]) -> DataFrame:
            start = checkpoint.start(place for place in run.places if partition_of(place)[0] in topics)
            reader = run.spark.readStream
            own = options | self._waits.consumer(gathered if self._are_events(topics) else 0)
            records = read_topics(reader, self._settings, spec.job, topics, **own, startingOffsets=start)
            return self._poison.without(records)

        sink = spec.sink | self._waits.producer(are_events=self._are_events(spec.writes))
        writer = spec.write(spec.rows(read, choice.mode, checkpoint), checkpoint, sink)
        writer = writer.option("checkpointLocation", str(checkpoint.query)).queryName(spec.query)
        writer = set_trigger(writer, plan, choice.mode, seconds).outputMode(plan.output)
        try:
            return writer.start()  # type: ignore[no-any-return]  # as set_trigger
        except AnalysisException as error:
            if "REAL_TIME_MODE" in (refusal := first_line(error)):  # the next start takes micro-batches
                self._refusal = f"{_REFUSED}: {refusal}"
                raise TransientError(refusal) from error
            raise ConfigError.one(spec.path, f"Spark refuses its plan: {refusal}", key=spec.function) from error

    def _are_events(self, topics: Sequence[str]) -> bool:
        return any(topic.startswith(self._settings.names.events("")) for topic in topics)

    def _try(self, read: Read) -> None:
        """Do with records, as a batch, what the query does."""
        writer = self.spec.rows(read, MICRO_BATCH, None).write
        if self.spec.is_repeatable:
            writer.format("kafka").options(**self.spec.sink).save()
        else:
            writer.format("noop").mode("overwrite").save()

    def count_batch(self, run: Run, progress: BatchProgress) -> dict[str, Any]:
        """Count what a finished batch has read and left out; returns further fields of the report."""
        found = (progress.observed.get(name, {}) for name in self.spec.observations)
        figures = {name: figure for observed in found for name, figure in observed.items()}
        further = self.spec.take(run, figures, progress)
        for name, count in figures.items():
            run.counts[name] = run.counts.get(name, 0) + (count or 0)
        run.counts["set_aside"] = self._poison.count
        return further

    def poll(self, run: Run) -> str | None:
        """Return a reason to stop the query and start it again, or None; called about four times a second."""
        self.spec.look(run)
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return None
        self._looked_at = time.monotonic()
        state, reason = self.spec.describe(run, self._choice)
        run.restate(state, self._poison.sentence + reason)
        if self.spec.tables is not None:
            self.spec.tables.refresh()
        return self.spec.restart_reason(run)

    def accept_failure(self, run: Run, error: str) -> bool:
        """Return whether starting again, after the query has failed with `error`, will go another way.

        Where real-time mode refuses the plan it takes micro-batches, records that are gone are left out, and at the
        second failure of the same place the next start looks for the record that ends the query.
        """
        if "REAL_TIME_MODE" in error and not self._refusal:
            self._refusal = f"{_REFUSED}: {first_line(error)}"
            return True
        position = self._checkpoint.position(run.places)
        return self._checkpoint.is_overtaken(run.topics) or self._poison.count_failure(error, position)
