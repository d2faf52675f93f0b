"""Read a topic from its end backwards, or one record of it, without a consumer group of consequence."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tocsin.model.errors import TransientError
from tocsin.project.settings import Settings

_CHUNK = 500
_TIMEOUT = 10.0


def newest_first(settings: Settings, topic: str) -> Iterator[Message]:
    """The records of `topic`, all partitions together, from the newest append time to the oldest; read as far as asked.

    Nothing if the topic does not exist. TransientError: Kafka cannot be reached; a retry helps.
    """
    with _consumer(settings) as consumer:
        partitions = consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions
        backwards = [_backwards(consumer, topic, partition) for partition in partitions]
        yield from heapq.merge(*backwards, key=lambda message: -message.timestamp()[1])


def read_one(settings: Settings, topic: str, partition: int, offset: int) -> Message | None:
    """The record at `offset`; None if the topic does not have it (any more).

    TransientError: Kafka cannot be reached; a retry helps.
    """
    with _consumer(settings) as consumer:
        if partition not in consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions:
            return None
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT)
        if not low <= offset < high:
            return None
        found = _span(consumer, topic, partition, offset, offset + 1)
        return found[0] if found else None


def _backwards(consumer: Consumer, topic: str, partition: int) -> Iterator[Message]:
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT)
    while high > low:
        start = max(low, high - _CHUNK)
        yield from reversed(_span(consumer, topic, partition, start, high))
        high = start


def _span(consumer: Consumer, topic: str, partition: int, start: int, end: int) -> list[Message]:
    """The records with offsets from `start` up to, not including, `end`."""
    place = TopicPartition(topic, partition, start)
    consumer.assign([place])
    found: list[Message] = []
    position, deadline = start, time.monotonic() + _TIMEOUT
    while position < end:
        for message in consumer.consume(_CHUNK, timeout=0.2):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            position = (message.offset() or 0) + 1
            if position <= end:
                found.append(message)
        position = max(position, consumer.position([place])[0].offset)
        if time.monotonic() > deadline:
            raise TransientError(f"cannot read {topic}[{partition}] up to offset {end}")
    return found


@contextlib.contextmanager
def _consumer(settings: Settings) -> Iterator[Consumer]:
    config = {"group.id": settings.names.group("reader"), "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(
        settings.kafka.for_librdkafka() | config | {"socket.timeout.ms": 10_000, "fetch.wait.max.ms": 20}
    )
    try:
        yield consumer
    except KafkaException as error:
        raise TransientError(f"cannot read Kafka: {error.args[0].str()}") from error
    finally:
        consumer.close()
