"""Read topics beside Spark: their bounds, the records between two offsets, the newest, and those yet to come."""

from __future__ import annotations

import contextlib
import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.source import ingested_at
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.client import TopicIds, reaching

Offsets = dict[int, int]
"""Partition to the offset of the next record."""

CameAt = Callable[[Message], datetime | None]
"""Dates a record: when it came into the platform, UTC; None if it does not tell."""

_AT_ONCE = 10_000
_BACKWARDS = 500
SHARING: dict[str, Any] = {
    "partition.assignment.strategy": "cooperative-sticky",  # who keeps a partition reads on meanwhile
    "session.timeout.ms": 6_000,  # after a crash; brokers take no less by default
    "heartbeat.interval.ms": 500,  # a heartbeat tells a member that it must share
    "topic.metadata.refresh.interval.ms": 10_000,  # for partitions that are added
}
"""The configuration of a member of a group that shares partitions."""

_CONFIG: dict[str, Any] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "queued.max.messages.kbytes": 16_384,
    "fetch.wait.max.ms": 20,  # a question waits behind a fetch that finds nothing
}


_Key = TypeVar("_Key", bound=Hashable)


class Reader(ABC, Generic[_Key]):
    """Reads topics, whose partitions have keys of type `_Key`. For one thread, and one reading at a time.

    Partitions are assigned by hand: a restart after a crash reads on at once, without waiting for a group to notice
    that the old member is gone. That there is one reader is the business of the job's lock.

    Raises from every method:
        TransientError: Kafka cannot be reached, or does not give what a topic holds; a retry helps.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        names: Iterable[str],
        *,
        timeout_seconds: float = 5.0,
        config: dict[str, Any] | None = None,
    ) -> None:
        """Ask nothing yet; Kafka may be away.

        Offsets are committed for `group`, named without the prefix of the installation. Kafka must answer a question,
        or give the next record, in `timeout_seconds`. `config` is what the consumer should do differently, in
        librdkafka's words.
        """
        self.names = tuple(names)
        self._kafka, self._timeout = settings.kafka, timeout_seconds
        own = {"group.id": settings.names.group(group)} | (config or {})
        self._consumer = Consumer(settings.kafka.for_librdkafka() | _CONFIG | own)
        self._ids = TopicIds(settings.kafka, timeout_seconds)

    @abstractmethod
    def _key(self, topic: str, partition: int) -> _Key: ...

    @abstractmethod
    def _place(self, key: _Key) -> tuple[str, int]:
        """Return topic and partition of `key`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave Kafka; offsets on their way are committed first."""
        self._consumer.close()

    def partitions(self) -> list[_Key]:
        """List the partitions of all topics; none of a topic that does not exist."""
        keys: list[_Key] = []
        with self._reaching():
            for name in self.names:
                topic = self._consumer.list_topics(name, timeout=self._timeout).topics[name]
                if topic.error is not None and topic.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise KafkaException(topic.error)
                keys += [self._key(name, partition) for partition in sorted(topic.partitions)]
        return keys

    def ids(self) -> dict[str, str]:
        """Return the id of each topic, which a later one of its name does not have; see `TopicIds.of`."""
        return self._ids.of(self.names)

    def bounds(self, partitions: Iterable[_Key] | None = None) -> tuple[dict[_Key, int], dict[_Key, int]]:
        """Return the first offset that is still there, and the end, of each of `partitions`; of all if None."""
        first: dict[_Key, int] = {}
        end: dict[_Key, int] = {}
        for key in self.partitions() if partitions is None else partitions:
            with self._reaching():
                place = TopicPartition(*self._place(key))
                first[key], end[key] = self._consumer.get_watermark_offsets(place, timeout=self._timeout)
        return first, end

    def since(self, moment: datetime) -> dict[_Key, int]:
        """Return the first offset of each partition appended at or after `moment`; the end if there is none."""
        _, ends = self.bounds()
        millis = max(0, (moment - EPOCH) // timedelta(milliseconds=1))
        with self._reaching():
            found = self._consumer.offsets_for_times(self._places(dict.fromkeys(ends, millis)), timeout=self._timeout)
        offsets = self._offsets(found)
        return {key: offset if offset >= 0 else ends[key] for key, offset in offsets.items()}

    def read(self, starts: dict[_Key, int], ends: dict[_Key, int]) -> Iterator[Message]:
        """Read the records with offsets from `starts` up to, not including, `ends`, in order per partition.

        There may be fewer than offsets: compaction and retention remove records, and some offsets are Kafka's own.
        """
        left = {key: start for key, start in starts.items() if start < ends[key]}
        if not left:
            return
        self._consumer.assign(self._places(left))
        deadline = time.monotonic() + self._timeout
        try:
            while left:
                messages = self.poll(_AT_ONCE, 0.1)
                for message in messages:
                    key, offset = self._key(message.topic() or "", message.partition() or 0), message.offset() or 0
                    if key in left and offset < ends[key]:
                        yield message
                    if key in left:
                        left[key] = offset + 1
                if messages:
                    deadline = time.monotonic() + self._timeout
                else:  # what stands there may be nothing that a consumer is given: its own position knows
                    left |= self.passed(left)
                    if time.monotonic() > deadline:
                        names = ", ".join(sorted({self._place(key)[0] for key in left}))
                        raise TransientError(f"Kafka returns no more records of {names} before its end")
                self._leave(left, [key for key, offset in left.items() if offset >= ends[key]])
        finally:
            # Or the client would go on asking for more: 50 times a second, at 0.3 % of a core, and 9 % for the broker.
            self._consumer.unassign()

    def records(self, partition: _Key, start: int, end: int) -> Iterator[Message]:
        """Read the records of `partition` with offsets from `start` up to, not including, `end`; see `read`."""
        return self.read({partition: start}, {partition: end})

    def record(self, partition: _Key, offset: int) -> Message | None:
        """Read the record at `offset`; None if the topic does not have it (any more)."""
        if partition not in self.partitions():
            return None
        first, end = self.bounds([partition])
        if not first[partition] <= offset < end[partition]:
            return None
        return next(self.records(partition, offset, offset + 1), None)

    def newest_first(self) -> Iterator[Message]:
        """Read all partitions together, from the newest append time to the oldest; as far as asked."""
        first, end = self.bounds()
        backwards = [self._backwards(partition, first[partition], end[partition]) for partition in end]
        yield from heapq.merge(*backwards, key=lambda message: -message.timestamp()[1])

    def appended_at(self, partition: _Key, start: int, end: int) -> datetime | None:
        """Read when the first record from `start` up to, not including, `end` was appended, UTC; None without one."""
        return self.first_at(partition, start, end, appended_at)

    def first_at(self, partition: _Key, start: int, end: int, came_at: CameAt) -> datetime | None:
        """Date the first of these records that `came_at` can date; None without one."""
        moments = (came_at(message) for message in self.records(partition, start, end))
        return next((moment for moment in moments if moment is not None), None)

    def commit(self, offsets: dict[_Key, int], topic_id: str = "") -> None:
        """Commit `offsets`, with the id of the topic, without waiting. A lost commit is made good by the next."""
        places = [TopicPartition(*self._place(key), offset, metadata=topic_id) for key, offset in offsets.items()]
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=places, asynchronous=True)

    def poll(self, count: int, wait_seconds: float) -> list[Message]:
        """Return up to `count` records, as many as are there; wait up to `wait_seconds` for the first."""
        with self._reaching():
            first = self._consumer.poll(wait_seconds)
            messages = [] if first is None else [first, *self._consumer.consume(count - 1, timeout=0)]
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
        return messages

    def passed(self, offsets: dict[_Key, int]) -> dict[_Key, int]:
        """Return how far a reading has come, at least `offsets`: some places hold nothing that is given."""
        with self._reaching():
            positions = self._offsets(self._consumer.position(self._places(offsets)))
        return {key: max(offset, positions[key]) for key, offset in offsets.items()}

    def _places(self, offsets: dict[_Key, int]) -> list[TopicPartition]:
        return [TopicPartition(*self._place(key), offset) for key, offset in offsets.items()]

    def _offsets(self, places: Iterable[TopicPartition]) -> dict[_Key, int]:
        return {self._key(place.topic, place.partition): place.offset for place in places}

    def _leave(self, left: dict[_Key, int], done: list[_Key]) -> None:
        for key in done:
            self._consumer.incremental_unassign([TopicPartition(*self._place(key))])
            del left[key]

    def _backwards(self, partition: _Key, first: int, end: int) -> Iterator[Message]:
        while end > first:
            start = max(first, end - _BACKWARDS)
            yield from reversed(list(self.records(partition, start, end)))
            end = start

    def _reaching(self) -> contextlib.AbstractContextManager[None]:
        return reaching(self._kafka, ", ".join(self.names))


class TopicReader(Reader[int]):
    """Reads one topic: the number of a partition is its key. `follow` and `share` let `poll` give what comes."""

    def __init__(self, settings: Settings, group: str, name: str, **options: Any) -> None:
        """See `Reader`."""
        super().__init__(settings, group, [name], **options)
        self.name = name

    def topic_id(self) -> str:
        """Return the id of the topic, which a later one of this name does not have; "" without topic or id."""
        return self.ids().get(self.name, "")

    def committed(self, partitions: Iterable[int]) -> tuple[Offsets, dict[int, str]]:
        """Return the committed offset of each partition, negative without one, and its topic's id then, or ""."""
        places = self._places(dict.fromkeys(partitions, 0))
        with self._reaching():
            found = self._consumer.committed(places, timeout=self._timeout)
        return self._offsets(found), {place.partition: place.metadata or "" for place in found}

    def follow(self, starts: Offsets) -> None:
        """Let `poll` give what comes from `starts` on."""
        self._consumer.assign(self._places(starts))

    def share(self, take: Callable[[list[int]], Offsets], give_up: Callable[[list[int]], None]) -> None:
        """Let `poll` give what comes from the partitions that Kafka assigns to this member of the group.

        `take` is told the partitions that this member gets, and says from where on it reads them. `give_up` is told the
        partitions that it had; another member may have read from them already.
        """

        def assigned(consumer: Consumer, places: list[TopicPartition]) -> None:
            consumer.incremental_assign(self._places(take([place.partition for place in places])))

        def revoked(consumer: Consumer, places: list[TopicPartition]) -> None:
            give_up([place.partition for place in places])
            consumer.incremental_unassign(places)

        self._consumer.unsubscribe()
        self._consumer.subscribe([self.name], on_assign=assigned, on_revoke=revoked, on_lost=revoked)

    def seek(self, offsets: Offsets) -> None:
        """Let `poll` go on from `offsets`; a partition that was given up meanwhile is left out."""
        for place in self._places(offsets):
            with contextlib.suppress(KafkaException):
                self._consumer.seek(place)

    def _key(self, topic: str, partition: int) -> int:
        del topic
        return partition

    def _place(self, key: int) -> tuple[str, int]:
        return self.name, key


def appended_at(message: Message) -> datetime:
    """Return when `message` was appended, UTC, by the broker's clock where the topic says so."""
    return EPOCH + timedelta(milliseconds=message.timestamp()[1])


def came_in_at(message: Message) -> datetime | None:
    """Return when an event's raw record was appended, UTC, or a tick's own time; None where it does not say."""
    moment = ingested_at(message.value() or b"")
    return None if moment is None else datetime.fromisoformat(moment).astimezone(UTC)
