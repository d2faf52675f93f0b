"""Run a detector in real-time mode, on a broker: what its job writes when it is not behind."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.cases.spark.case_query import CaseQuery, LatestFindings
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.failures import cause
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import ensure_event_topic, remove_topics
from tocsin.spark.query.work import REAL_TIME
from tocsin.spark.query_plan import set_trigger
from tocsin.spark.session import findings_sink, kafka_options

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
    """Return when a batch has ended that has read all records."""
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
