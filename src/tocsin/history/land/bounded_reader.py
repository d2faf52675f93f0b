"""A topic from the offsets where the last run ended up to its ends as of now, in chunks of bounded size."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tocsin.history.places import end
from tocsin.model.errors import TocsinError, TransientError
from tocsin.project.settings import Settings
from tocsin.quality.day_facts import Hole

_TIMEOUT = 10.0
_PATIENCE = 30.0
_AT_ONCE = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TopicAnew(TocsinError):
    """A topic ends before the offsets that were read of it; a retry does not help."""


@dataclass
class Stretch:
    """What is to be read of one partition, and how far it is.

    Attributes:
        start, end: the first offset to read, and the first not to read.
        position: the next offset.
        holes: that it met so far.
        newest_append: append time of the last record read, UTC; at first that of the run before.
    """

    start: int
    end: int
    position: int
    newest_append: datetime | None = None
    holes: list[Hole] = field(default_factory=list)

    def skip(self, to: int, *, removed: bool, before: datetime | None) -> None:
        """There is nothing from here up to `to`."""
        hole = Hole(from_offset=self.position, to_offset=to, removed=removed, after=self.newest_append, before=before)
        self.holes.append(hole)
        self.position = to


@dataclass
class Chunk:
    """Values of records, and the partition of each."""

    values: list[bytes | None] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    bytes: int = 0


class BoundedReader:
    """Reads one topic once. Use it in a `with` statement.

    Attributes:
        stretches: by partition; `position` and `holes` grow while `chunks` is read.

    Raises from every method:
        TransientError: Kafka cannot be reached, or retention removed records while they were read; a retry helps.
    """

    def __init__(self, settings: Settings, topic: str, group: str) -> None:
        self.topic = topic
        self.stretches: dict[int, Stretch] = {}
        limits = {"queued.max.messages.kbytes": 16_384, "log_level": 0, "fetch.wait.max.ms": 100}
        config = {"enable.auto.commit": False, "auto.offset.reset": "error", "check.crcs": True}
        config |= {"group.id": settings.names.group(group), "socket.timeout.ms": 10_000}
        self._consumer = Consumer(settings.kafka.for_librdkafka() | config | limits)

    def __enter__(self) -> BoundedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def begin(self, positions: dict[int, int], appended: dict[int, datetime]) -> None:
        """Look where the topic begins and ends now.

        It is read from `positions`; a partition without one from its begin.

        Args:
            positions: the next offset of each known partition.
            appended: when the last record before it was appended, UTC.

        Raises:
            TopicAnew: a partition ends before its position.
        """
        for partition in self._partitions():
            with self._reaching():
                place = TopicPartition(self.topic, partition)
                first, end = self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT)
            start = positions.get(partition, first)
            if end < start:
                what = f"{self.topic}[{partition}] ends at offset {end}, but landing has read it up to {start} before"
                raise TopicAnew(f"{what}: it was made anew; `tocsin history land --anew` begins at what it holds now")
            stretch = Stretch(start, end, start, appended.get(partition))
            if start < first:
                stretch.skip(first, removed=True, before=None)
            self.stretches[partition] = stretch

    def chunks(self, *, records: int, size: int) -> Iterator[Chunk]:
        """All that is to be read, in chunks that end behind `records` records or `size` bytes."""
        left = {partition for partition, stretch in self.stretches.items() if stretch.position < stretch.end}
        with self._reaching():
            self._consumer.assign([TopicPartition(self.topic, p, self.stretches[p].position) for p in sorted(left)])
        chunk, deadline = Chunk(), time.monotonic() + _PATIENCE
        while left:
            with self._reaching():
                messages = self._consumer.consume(_AT_ONCE, timeout=0.2)
            for message in messages:
                self._take(message, chunk)
            if messages:
                deadline = time.monotonic() + _PATIENCE
            elif time.monotonic() > deadline:
                raise TransientError(f"Kafka gives no more of {self.topic}, although it has not ended")
            left -= self._finished(left, idle=not messages)
            if len(chunk.values) >= records or chunk.bytes >= size:
                yield chunk
                chunk = Chunk()
        if chunk.values:
            yield chunk

    def by_day(self, since: date, until: date) -> dict[date, int]:
        """How many of the records that are to be read were appended on which UTC day, without reading them.

        What is older than `since` counts as of that day, what is newer than `until` as of that one.
        """
        counts: dict[date, int] = {}
        for partition, stretch in self.stretches.items():
            position, day = stretch.position, since
            while position < stretch.end:
                after = stretch.end if day >= until else min(self._first_from(partition, end(day)), stretch.end)
                if after > position:
                    counts[day] = counts.get(day, 0) + after - position
                position, day = max(position, after), day + timedelta(days=1)
        return counts

    def _first_from(self, partition: int, moment: datetime) -> int:
        """The offset of the first record that was appended at `moment` or later; that of the end without any."""
        with self._reaching():
            asked = TopicPartition(self.topic, partition, int(moment.timestamp() * 1000))
            (found,) = self._consumer.offsets_for_times([asked], timeout=_TIMEOUT)
        return found.offset if found.offset >= 0 else self.stretches[partition].end

    def _take(self, message: Message, chunk: Chunk) -> None:
        error = message.error()
        if error is not None:
            raise TransientError(f"cannot read {self.topic}: {error.str()}")
        partition, offset, value = message.partition() or 0, message.offset() or 0, message.value()
        stretch = self.stretches[partition]
        if offset >= stretch.end or offset < stretch.position:
            return
        moment = _EPOCH + timedelta(milliseconds=message.timestamp()[1])
        if offset > stretch.position:
            stretch.skip(offset, removed=False, before=moment)
        elif stretch.holes and stretch.holes[-1].before is None:
            stretch.holes[-1] = stretch.holes[-1].model_copy(update={"before": moment})
        stretch.position, stretch.newest_append = offset + 1, moment
        chunk.values.append(value)
        chunk.partitions.append(partition)
        chunk.bytes += len(value or b"")

    def _finished(self, left: set[int], *, idle: bool) -> set[int]:
        """Partitions that are read to their end; what stands there may be nothing that a consumer is given."""
        done = {partition for partition in left if self.stretches[partition].position >= self.stretches[partition].end}
        for partition in left - done if idle else ():
            with self._reaching():
                (place,) = self._consumer.position([TopicPartition(self.topic, partition)])
            stretch = self.stretches[partition]
            if place.offset >= stretch.end:
                stretch.skip(stretch.end, removed=False, before=None)
                done.add(partition)
        if done:
            with self._reaching():
                self._consumer.pause([TopicPartition(self.topic, partition) for partition in sorted(done)])
        return done

    def _partitions(self) -> list[int]:
        with self._reaching():
            found = self._consumer.list_topics(self.topic, timeout=_TIMEOUT).topics[self.topic]
        if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TransientError(f"cannot read the partitions of {self.topic}: {found.error.str()}")
        if not found.partitions:
            raise TransientError(f"{self.topic} does not exist (yet)")
        return sorted(found.partitions)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise TransientError(f"cannot reach Kafka for {self.topic}: {error.args[0].str()}") from error
