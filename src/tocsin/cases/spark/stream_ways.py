"""Run a detector on streams of micro-batches: its checkpoint and its watermark work as in its job."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.cases.spark.case_query import CaseQuery, LatestFindings
from tocsin.cases.spark.prepared_case import Lanes
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.model.source import tick_value
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.failures import cause
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import ensure_event_topic, remove_topics
from tocsin.spark.query.work import REAL_TIME
from tocsin.spark.query_plan import set_trigger
from tocsin.spark.session import findings_sink, kafka_options

SINGLE_EVENTS = 6
"""So many of a case come one by one; of more, the first ones come at once. A batch costs 0.3 CPU-seconds."""

SPLIT_CASES = 2
"""When cases are shuffled, a micro-batch ends in the middle of each of so many, and of every fourth further one."""

Document = dict[str, Any]
Batch = Sequence[Document]


class Feed:
    """An events topic as a folder: each batch is a file."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._files = spark, folder, 0
        folder.mkdir(parents=True)

    def records(self) -> DataFrame:
        """Read it as a stream, one batch at a time."""
        reader = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        return reader.schema("value string").load(str(self._folder))

    def add(self, batch: Batch) -> None:
        """Add a batch."""
        self._files += 1
        draft = self._folder / f".{self._files:05d}"
        draft.write_text("".join(f"{json.dumps(event)}\n" for event in batch), encoding="utf-8")
        os.utime(draft, (self._files, self._files))  # Spark reads the oldest first
        draft.replace(self._folder / f"{self._files:05d}.json")


class StreamWays:
    """Runs the cases of one detector as streams.

    Each case is a list of records of the events topic in the order of their times, in a lane of its own.
    """

    def __init__(self, spark: SparkSession, query: CaseQuery, lanes: Lanes, folder: Path) -> None:
        self._spark, self._query, self._lanes, self._folder = spark, query, lanes, folder
        self._written: list[str] = []

    def one_batch(self, cases: Sequence[Batch]) -> LatestFindings:
        """Run all events as one micro-batch."""
        return self._run("one-batch", [[event for case in cases for event in case]], self._query.source.lateness)

    def each_event(self, cases: Sequence[Batch]) -> LatestFindings:
        """Run one event of each case in a micro-batch, the cases side by side."""
        parts = [[case[: len(case) - SINGLE_EVENTS + 1], *([event] for event in case[len(case) - SINGLE_EVENTS + 1 :])]
                 if len(case) > SINGLE_EVENTS else [[event] for event in case] for case in cases]  # fmt: skip
        batches = [[event for part in row for event in part] for row in zip_longest(*parts, fillvalue=[])]
        return self._run("each-event", batches, self._wide)

    def shuffled(self, cases: Sequence[Batch]) -> LatestFindings:
        """Run each event up to the lateness later than it happened, in some micro-batches, case after case."""
        batches: list[list[Document]] = [[]]
        for number, case in enumerate(cases):
            chance = random.Random(number)
            late = self._query.source.lateness.total_seconds()
            # A tick says that all has come which is older than the lateness, so it is not late itself.
            arrivals = {id(event): _seconds(event) + chance.random() * late * ("tick" not in event) for event in case}
            arrived = sorted(case, key=lambda event: arrivals[id(event)])
            if number >= SPLIT_CASES and number % 4:
                batches[-1] += arrived
                continue
            # The watermark moves between two batches, so one ends in the middle of each case.
            middle = (len(arrived) + 1) // 2
            batches[-1] += arrived[:middle]
            batches.append(arrived[middle:])
        return self._run("shuffled", batches, self._query.source.lateness)

    def restarted(self, cases: Sequence[Batch]) -> LatestFindings:
        """Stop in the middle of each case, then go on from the checkpoint, with one event that comes a second time."""
        halves = [(case[: (len(case) + 1) // 2], case[(len(case) + 1) // 2 :]) for case in cases]
        feed = Feed(self._spark, self._folder / "restarted")
        feed.add([event for first, _ in halves for event in first])
        self._until_read(feed, "restarted", self._wide)
        self._add_last(feed, [event for first, rest in halves for event in [*first[-1:], *rest]], self._wide)
        self._until_read(feed, "restarted", self._wide)
        return self._taken()

    @property
    def _wide(self) -> timedelta:
        return self._query.source.lateness + (self._lanes.end - self._lanes.begin)

    def _run(self, name: str, batches: Sequence[Batch], delay: timedelta) -> LatestFindings:
        feed = Feed(self._spark, self._folder / name)
        *before, last = batches or [[]]
        for batch in before:
            feed.add(batch)
        self._add_last(feed, last, delay)
        self._until_read(feed, name, delay)
        return self._taken()

    def _add_last(self, feed: Feed, batch: Batch, delay: timedelta) -> None:
        tick = json.loads(tick_value(self._lanes.end + delay))
        feed.add([*batch, tick])
        if self._query.plan.output == "append":  # else nothing is written for a window that closes
            feed.add([tick])  # a batch has the watermark of the one before

    def _until_read(self, feed: Feed, name: str, delay: timedelta) -> None:
        rows = self._query.stream(feed.records(), delay)
        checkpoint = self._folder / f"{name}.checkpoint"

        def take(rows: DataFrame, batch: int) -> None:
            self._written += self._query.written(rows, batch, checkpoint)

        writer = rows.writeStream.foreachBatch(take).outputMode(self._query.plan.output)
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _taken(self) -> LatestFindings:
        written, self._written = self._written, []
        return LatestFindings.of(written)


def _seconds(document: Document) -> float:
    return datetime.fromisoformat(document["event_time"]).timestamp()


BATCH_SECONDS = 1
_SECONDS = 120  # the other ways run beside it


class RealTimeWay:
    """Runs cases in real-time mode, each time on topics of its own."""

    def __init__(self, spark: SparkSession, settings: Settings, kafka: KafkaSettings, folder: Path) -> None:
        """Use the broker of `kafka` instead of that of `settings`, and keep checkpoints below `folder`."""
        self._spark, self._base, self._kafka, self._folder = spark, settings, kafka, folder

    def run(self, query: CaseQuery, cases: Sequence[Sequence[dict[str, Any]]]) -> LatestFindings:
        """Run the events of `cases` one case after the other; TransientError if broker or query make no progress."""
        name = uuid.uuid4().hex[:12]  # other processes may use the broker, too
        settings = self.settings_of(name)
        topic = settings.names.events(query.source.name)
        values = [json.dumps(event).encode() for case in cases for event in case]
        self._fill(settings, topic, values)
        records = self._spark.readStream.format("kafka").options(
            **kafka_options(settings), subscribe=topic, startingOffsets="earliest"
        )
        ladder = query.plan.score.counts
        rows = query.stream(records.load(), query.source.lateness, ladder=ladder)
        writer = rows.writeStream.format("kafka").options(**findings_sink(settings)).outputMode(query.plan.output)
        writer = writer.option("checkpointLocation", str(self._folder / f"real-time.{name}"))
        running = set_trigger(writer, query.plan, REAL_TIME, BATCH_SECONDS).start()
        try:
            _await_end(running, topic, len(values))
            running.stop()
            return LatestFindings.of(self._findings(settings))
        finally:
            running.stop()
            remove_topics(settings, settings.kafka.topic_prefix)

    def settings_of(self, name: str) -> Settings:
        """Give the settings of one run: its broker, and topics of its own."""
        # A copy, since new settings would be read from the environment, and lead to the broker of the installation.
        kafka = self._kafka.model_copy(update={"topic_prefix": f"cases-{name}."})
        return self._base.model_copy(update={"state": self._folder, "kafka": kafka})

    def _fill(self, settings: Settings, topic: str, values: list[bytes]) -> None:
        for name in (topic, settings.names.findings):
            ensure_event_topic(settings, name, 1, timeout_seconds=_SECONDS)
        with RecordWriter(settings, EVENT_BYTES, timeout_seconds=_SECONDS) as writer:
            for value in values:
                writer.write(topic, value, partition=0)

    def _findings(self, settings: Settings) -> list[str]:
        with TopicReader(settings, "cases", settings.names.findings) as topic:
            return [(message.value() or b"").decode() for message in topic.read(*topic.bounds())]


def _await_end(running: StreamingQuery, topic: str, count: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        progress = running.lastProgress
        if progress is not None and _read(progress, topic) >= count:
            return
        if not running.isActive:
            raise TransientError(f"the query in real-time mode has ended: {cause(running)[:500]}")
        if time.monotonic() > deadline:
            raise TransientError(f"the query in real-time mode has not read {count} events in {_SECONDS} s")
        time.sleep(0.05)


def _read(progress: Any, topic: str) -> int:
    end = progress["sources"][0]["endOffset"]
    offsets = json.loads(end) if isinstance(end, str) else end
    return int((offsets or {}).get(topic, {}).get("0", 0))
