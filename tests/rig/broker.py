"""A real broker for tests, started as `tocsin dev up` starts it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # as in tocsin.platform.kafka.topics

from tests.rig.waiting import await_that, awaited, patient
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.dev.servers.kafka_server import NAME, Kafka
from tocsin.dev.servers.ports import free_ports
from tocsin.setup.java import find_java
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Process

START_SECONDS = 60.0
STOP_SECONDS = 20.0


class Broker:
    """One broker with a folder of its own; it ends with the test process, however that one ends (Linux)."""

    def __init__(self, folder: Path, kafka: Kafka | None = None) -> None:
        """`kafka` says how it is set up, if not as `tocsin dev up` does it."""
        port, controller_port = free_ports(2)
        self._kafka = kafka or Kafka(folder, folder / "kafka.log", port, controller_port, find_java())
        self._instance = f"test-broker-{self._kafka.port}"
        self._runner = LocalRunner(self._instance, lambda _: self.log, tethered=True)
        self.log = folder / "kafka.log"

    @property
    def kafka(self) -> KafkaSettings:
        """How to reach it: the same before and after a restart."""
        return self._kafka.client

    @property
    def process(self) -> Process:
        (only,) = self._runner.list()
        return only

    def start(self) -> None:
        """Start it and wait until it serves clients."""
        self.launch()
        await_that(lambda: self._kafka.waiting_for() is None or self._runner.exit_code(NAME) is not None, START_SECONDS)
        assert self._runner.exit_code(NAME) is None, "\n".join(self._runner.logs(NAME, 30))

    def launch(self) -> None:
        """Start it, without waiting for it."""
        self._runner.start(self._kafka.launch(self._instance))

    def stop(self) -> None:
        """Stop it in order, by force if it does not."""
        for process in self._runner.list():
            self._runner.stop(process)
        if not awaited(lambda: not self._runner.list(), STOP_SECONDS):
            self.kill()

    def kill(self) -> None:
        for process in self._runner.list():
            self._runner.stop(process, force=True)
        await_that(lambda: not self._runner.list(), STOP_SECONDS)


def recreate(kafka: KafkaSettings, topic: str, partitions: int) -> None:
    """Delete `topic`, with all that it holds, and create it again."""
    admin = AdminClient(kafka.for_librdkafka())  # it must live until it has answered
    admin.delete_topics([topic])[topic].result(patient(10))
    await_that(lambda: topic not in admin.list_topics(timeout=60).topics, 20)
    config = {"message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(patient(10))
    await_that(lambda: len(admin.list_topics(topic, timeout=60).topics[topic].partitions) == partitions, 20)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests of a run. Take topics of your own: `KafkaSettings.topic_prefix`."""
    one = Broker(tmp_path_factory.mktemp("bröker 1"))
    try:
        one.start()
        yield one
    finally:
        one.stop()
