"""`python -m tocsin.dev.training_broker FILE`: write the AppCDS archive of Spark's classes. Set-up calls it.

A broker of its own runs meanwhile, so that the archive holds what Spark and the clients of Kafka load when they work.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # as in tocsin.kafka.topics

from tocsin.dev.servers.kafka_server import Kafka
from tocsin.dev.servers.ports import free_ports
from tocsin.model.errors import TocsinError, TransientError
from tocsin.project.setting_blocks import KafkaSettings, SparkSettings
from tocsin.project.settings import Settings
from tocsin.provision.java import find_java
from tocsin.sparkjob.class_training import make_archive
from tocsin.supervision.runners.local import LocalRunner

_START_SECONDS = 120
_INSTANCE = "class-archive"
_EVENT = b'{"at": "2026-01-01T00:00:00Z", "user": "mallory", "n": 1, "tags": ["a"]}'
_TOPICS = ("events", "findings")


def main(archive: Path) -> int:
    """Write `archive`, which must not exist; returns the exit code."""
    try:
        with tempfile.TemporaryDirectory() as folder, _broker(Path(folder) / "kafka") as kafka:
            _fill(kafka)
            os.environ["JAVA_HOME"] = str(find_java().home)
            spark = SparkSettings(archive=False)  # else the JVMs would use, and write, one that is there
            make_archive(archive, Settings(state=Path(folder) / "state", kafka=kafka, spark=spark), _TOPICS)
    except TocsinError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _broker(folder: Path) -> Iterator[KafkaSettings]:
    port, controller_port = free_ports(2)
    server = Kafka(folder, folder / "kafka.log", port, controller_port, find_java())
    runner = LocalRunner(_INSTANCE, lambda _: server.log, tethered=True)
    runner.start(server.launch(_INSTANCE))
    try:
        deadline = time.monotonic() + _START_SECONDS
        while (missing := server.waiting_for()) is not None:
            if time.monotonic() > deadline or not runner.list():
                raise TransientError(
                    f"the broker lacks {missing}: " + "\n".join(server.log.read_text().splitlines()[-20:])
                )
            time.sleep(0.1)
        yield server.client
    finally:
        for process in runner.list():
            runner.stop(process, force=True)


def _fill(kafka: KafkaSettings) -> None:
    """Make the topics, and write a few records into the one that is read."""
    admin = AdminClient(kafka.for_librdkafka())  # it must live until it has answered
    for made in admin.create_topics([NewTopic(name, num_partitions=2) for name in _TOPICS]).values():
        made.result(_START_SECONDS)
    producer = Producer(kafka.for_librdkafka())
    for partition in (0, 0, 1):
        producer.produce(_TOPICS[0], _EVENT, partition=partition)
    if producer.flush(_START_SECONDS):
        raise TransientError("the broker took no records")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
