"""A Kafka that librdkafka plays within this process: no JVM, topics that are there once they are written to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient

from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.client import TopicIds
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.reporter import Reporter


class RunnableJob(Protocol):
    """A job that runs until the event is set that it was made with."""

    def run(self) -> None: ...


@contextmanager
def played_kafka(*topics: str) -> Iterator[KafkaSettings]:
    """How to reach it; it lives as long as the client that plays it. It has `topics`, of four partitions each.

    It has no controller, which librdkafka asks for the ids of topics; so they have none, as on an old broker.
    """
    player = AdminClient({"test.mock.num.brokers": 1})
    for topic in topics:
        player.list_topics(topic, timeout=10)
    (broker,) = player.list_topics(timeout=10).brokers.values()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicIds, "of", lambda *_: {})
        yield KafkaSettings(bootstrap_servers=f"{broker.host}:{broker.port}")
    del player


def written(settings: Settings, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of each record."""
    with TopicReader(settings, "test", topic) as reader:
        first, end = (bound[partition] for bound in reader.bounds([partition]))
        return [(message.key(), message.value()) for message in reader.records(partition, first, end)]


@contextmanager
def running_job(
    settings: Settings, name: str, make: Callable[[Reporter, threading.Event], RunnableJob]
) -> Iterator[Reporter]:
    """Run the job called `name` in a thread until the end of the block; gives what it reports to."""
    stop, reporter = threading.Event(), Reporter(settings, name)
    job = threading.Thread(target=make(reporter, stop).run)
    job.start()
    try:
        yield reporter
    finally:
        stop.set()
        job.join()
        reporter.close()
