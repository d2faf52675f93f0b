"""A compute job as a real process on a real broker, fed with events that the test itself writes."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.rig.broker import Broker
from tests.rig.detect_job import DetectJob, text
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.names import compute_job
from tocsin.declare.model.source import Source, tick_value
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.setup.paths import here
from tocsin.views.stored_row import ViewRow


class ComputeJob(DetectJob):
    """A project of one example, and processes of `spark_jobs/compute.py` for one view of it."""

    program = "compute.py"

    def __init__(self, folder: Path, broker: Broker, example: str, view: str) -> None:
        super().__init__(folder, broker)
        shutil.rmtree(self.settings.project)
        shutil.copytree(here().root / "examples" / example, self.settings.project)
        self.view, self.job = view, compute_job(view)
        catalog = read_catalog(self.settings.project)
        assert not catalog.broken
        ensure_topics(self.settings, catalog)
        self.events = Events(self.settings, self.source.name)

    @property
    def source(self) -> Source:
        catalog = read_catalog(self.settings.project)
        return catalog.source(catalog.view(self.view).sources[0])

    def begin(self) -> subprocess.Popen[bytes]:
        return self.start(self.view)

    def run(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(here().root / "spark_jobs" / program), *words]
        process = subprocess.Popen(command, env=self.environment, stdout=self._log, stderr=self._log)
        self._processes.append(process)
        return process

    def rows(self) -> dict[str, ViewRow]:
        """The last version of each row on the topic of the view, by its key."""
        found: dict[str, ViewRow] = {}
        with TopicReader(self.settings, "test", self.settings.names.view(self.view)) as topic:
            for message in topic.read(*topic.bounds()):
                row = ViewRow.from_record(message.value() or b"", "t", message.partition() or 0, message.offset() or 0)
                key = (message.key() or b"").decode()
                assert key == row.identity
                found[key] = row
        return found


class Events:
    """Writes events of one source as ingest does, every third of them twice."""

    def __init__(self, settings: Settings, source: str) -> None:
        self._topic = settings.names.events(source)
        self._producer = Producer(settings.kafka.for_librdkafka() | {"linger.ms": 5})
        self._offsets: Counter[int] = Counter()

    def write(self, partition: int, moment: datetime, **columns: Any) -> None:
        place = {"raw_topic": "raw.x", "raw_partition": partition, "raw_offset": self._offsets[partition]}
        self._offsets[partition] += 1
        times = {"event_time": text(moment), "ingested_at": text(datetime.now(UTC))}
        record = json.dumps(place | times | {"source": "x", "schema_version": 1} | columns).encode()
        for _ in range(1 + (self._offsets[partition] % 3 == 0)):
            self._producer.produce(self._topic, record, partition=partition)
        self._producer.poll(0)

    def tick(self, moment: datetime, partitions: int) -> None:
        for partition in range(partitions):
            self._producer.produce(self._topic, tick_value(moment), partition=partition)
        self.flush()

    def flush(self) -> None:
        assert self._producer.flush(30) == 0
