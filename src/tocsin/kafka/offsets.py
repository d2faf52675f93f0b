"""A topic as a Spark job sees it from beside Spark: partitions, ends, unread records, and the shadow group."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tocsin.model.errors import TransientError
from tocsin.project.settings import Settings

Offsets = dict[int, int]
"""Partition to the offset of the next record."""

_TIMEOUT = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(Protocol):
    """The part of a Kafka message that readers of a backlog need."""

    def value(self) -> bytes | None:
        """Its value; None for a tombstone."""

    def offset(self) -> int | None:
        """Its offset; None only in a message that was never sent."""


class Records(Protocol):
    """The part of a topic that readers of a backlog need."""

    def bounds(self) -> tuple[Offsets, Offsets]:
        """See `Topic.bounds`."""

    def records(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """See `Topic.records`."""


class Kept(Protocol):
    """The part of a topic that tells what is kept of it."""

    name: str

    def bounds(self) -> tuple[Offsets, Offsets]:
        """See `Topic.bounds`."""

    def appended_at(self, partition: int, start: int, end: int) -> datetime | None:
        """See `Topic.appended_at`."""

    def since(self, moment: datetime) -> Offsets:
        """See `Topic.since`."""


class Topic:
    """One topic as a job sees it from beside Spark. For one thread.

    Every method raises TransientError when Kafka cannot be reached; a retry helps.
    """

    def __init__(self, settings: Settings, job: str, name: str) -> None:
        self.name = name
        config = {"group.id": settings.names.group(job), "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        limits = {"socket.timeout.ms": 10_000, "reconnect.backoff.max.ms": 2_000, "log_level": 0}
        self._consumer = Consumer(settings.kafka.for_librdkafka() | config | limits)

    def partitions(self) -> int:
        """How many partitions the topic has; 0 while it does not exist."""
        with _reaching(self.name):
            found = self._consumer.list_topics(self.name, timeout=_TIMEOUT).topics[self.name]
        if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TransientError(f"cannot read the partitions of {self.name}: {found.error.str()}")
        return len(found.partitions)

    def bounds(self) -> tuple[Offsets, Offsets]:
        """The first offset that is still there, and the end, of each partition."""
        first: Offsets = {}
        end: Offsets = {}
        for partition in range(self.partitions()):
            with _reaching(self.name):
                place = TopicPartition(self.name, partition)
                first[partition], end[partition] = self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT)
        return first, end

    def records(self, partition: int, start: int, end: int) -> Iterator[Message]:
        """The records of `partition` with offsets from `start` up to, not including, `end`."""
        place = TopicPartition(self.name, partition, start)
        self._consumer.assign([place])
        position, deadline = start, time.monotonic() + _TIMEOUT
        while position < end:
            with _reaching(self.name):
                messages = self._consumer.consume(5_000, timeout=0.1)
            for message in messages:
                if (error := message.error()) is not None:
                    raise TransientError(f"cannot read {self.name}: {error.str()}")
                position = (message.offset() or 0) + 1
                if position <= end:
                    yield message
            if messages:
                deadline = time.monotonic() + _TIMEOUT
            else:
                position = max(position, self._consumer.position([place])[0].offset)
                if time.monotonic() > deadline:
                    raise TransientError(f"cannot read {self.name}[{partition}] up to offset {end}")

    def appended_at(self, partition: int, start: int, end: int) -> datetime | None:
        """When the first record from `start` up to, not including, `end` was appended, UTC; None without one."""
        if start >= end:
            return None
        for message in self.records(partition, start, end):
            return _EPOCH + timedelta(milliseconds=message.timestamp()[1])
        return None

    def since(self, moment: datetime) -> Offsets:
        """The first offset of each partition appended at or after `moment`; the end if there is none."""
        _, ends = self.bounds()
        millis = max(0, (moment - _EPOCH) // timedelta(milliseconds=1))
        places = [TopicPartition(self.name, partition, millis) for partition in ends]
        with _reaching(self.name):
            found = self._consumer.offsets_for_times(places, timeout=_TIMEOUT)
        return {place.partition: place.offset if place.offset >= 0 else ends[place.partition] for place in found}

    def commit(self, offsets: Offsets) -> None:
        """Commit `offsets` for the job's shadow group, without waiting; Spark never reads them back."""
        with contextlib.suppress(KafkaException):
            places = [TopicPartition(self.name, partition, offset) for partition, offset in offsets.items()]
            self._consumer.commit(offsets=places, asynchronous=True)

    def close(self) -> None:
        """Leave Kafka."""
        self._consumer.close()


def oldest(topic: Kept, position: Offsets) -> datetime | None:
    """When the oldest record from `position` on was appended, UTC, as the first of each partition tells; None without.

    Raises:
        TransientError: Kafka cannot be reached; a retry helps.
    """
    first, ends = topic.bounds()
    unread = {partition: max(offset, position.get(partition, 0)) for partition, offset in first.items()}
    moments = (topic.appended_at(partition, offset, ends[partition]) for partition, offset in unread.items())
    return min((moment for moment in moments if moment is not None), default=None)


@contextlib.contextmanager
def _reaching(topic: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise TransientError(f"cannot reach Kafka for {topic}: {error.args[0].str()}") from error


@dataclass(frozen=True)
class Lag:
    """How far a job is behind.

    Attributes:
        records: unread ones.
        seconds: since the oldest of them came in, as far as the first of each partition tells; 0 when there are none.
    """

    records: int
    seconds: float


def lag_of(topic: Topic, position: Offsets, ends: Offsets, appended_at: Callable[[Message], datetime | None]) -> Lag:
    """The lag of a job at `position`, when its topic ends at `ends` and `appended_at` says when a record came in.

    While Kafka does not answer, `seconds` is 0.
    """
    behind = {p: (position[p], end) for p, end in ends.items() if position.get(p, end) < end}
    moments: list[datetime] = []
    for partition, (start, end) in behind.items():
        with contextlib.suppress(TransientError):
            came = (appended_at(message) for message in topic.records(partition, start, end))
            moments += itertools.islice((moment for moment in came if moment is not None), 1)
    seconds = (datetime.now(UTC) - min(moments)).total_seconds() if moments else 0.0
    return Lag(sum(end - start for start, end in behind.values()), round(max(0.0, seconds), 3))
