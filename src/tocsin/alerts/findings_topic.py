"""One topic, followed from the committed offsets by one reader, with its lag.

Partitions are assigned by hand: a restart after a crash reads on at once, without waiting for a group to notice that
the old member is gone. That there is one reader is the business of the job's lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tocsin.alerts.intake import Record
from tocsin.model.errors import TransientError
from tocsin.project.setting_blocks import KafkaSettings

_MEASURE_SECONDS = 0.5
_PARTITIONS_SECONDS = 10.0
_TIMEOUT = 3.0
_log = structlog.get_logger()


class FollowedTopic:
    """A topic and the places where a consumer group stands in it. For one thread.

    Attributes:
        lag_records: appended and not yet committed, at the last `measure`.
        complete_until: everything appended before this time (of this machine's clock, UTC) is committed; None at first.
    """

    def __init__(self, kafka: KafkaSettings, topic: str, group: str) -> None:
        """Follow `topic` for `group`; nothing is read yet, and Kafka may be away."""
        config = {
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 16_384,
            "reconnect.backoff.max.ms": 2_000,
            "log_level": 0,
        }
        self._where = kafka.bootstrap_servers
        self._consumer = Consumer(kafka.for_librdkafka() | config)
        # Reads nothing: on the connection of one that does, each question waits 0.5 s behind a fetch of an idle topic.
        self._ends = Consumer(kafka.for_librdkafka() | config)
        self._topic = topic
        self._next: dict[int, int] = {}
        self._mark: tuple[datetime, dict[int, int]] | None = None
        self._measured = self._counted = 0.0
        self._last_append: datetime | None = None
        self.lag_records = 0
        self.complete_until: datetime | None = None

    def read(self, count: int, wait_seconds: float) -> list[Record]:
        """Up to `count` records, in order per partition; empty when none came within `wait_seconds`.

        Raises:
            TransientError: Kafka cannot be reached, or the topic is not there yet.
        """
        with _translated(self._where):
            if not self._next:
                self._assign()
            first = self._consumer.poll(wait_seconds)
            if first is None:
                return []
            messages = [first, *self._consumer.consume(count - 1, timeout=0)]
        failed = next((error for message in messages if (error := message.error()) is not None), None)
        if failed is not None:
            self._next = {}
            raise TransientError(f"topic {self._topic}: {failed.str()}")
        return [_record(message) for message in messages]

    def commit(self, records: list[Record]) -> None:
        """`records` are done with: a restart reads on behind them. A lost commit is made good by the next."""
        for record in records:
            self._next[record.partition] = record.offset + 1
        self._last_append = records[-1].appended_at
        places = [TopicPartition(self._topic, p, self._next[p]) for p in {r.partition for r in records}]
        try:
            self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            _log.warning("offsets not committed; the next batch commits them", error=str(error))

    def measure(self) -> bool:
        """Twice a second, compare with the end of the topic; True when it did.

        Raises:
            TransientError: Kafka cannot be reached.
        """
        if time.monotonic() - self._measured < _MEASURE_SECONDS:
            return False
        with _translated(self._where):
            if time.monotonic() - self._counted > _PARTITIONS_SECONDS and len(self._partitions()) != len(self._next):
                _log.info("partitions were added", topic=self._topic)
                self._assign()
            asked = datetime.now(UTC)
            ends = {}
            for partition in self._next:
                place = TopicPartition(self._topic, partition)
                low, high = self._ends.get_watermark_offsets(place, timeout=_TIMEOUT)
                self._next[partition] = max(self._next[partition], low)
                ends[partition] = high
        self._measured = time.monotonic()
        self.lag_records = sum(max(0, end - self._next[partition]) for partition, end in ends.items())
        self._advance(asked, ends)
        return True

    def _advance(self, asked: datetime, ends: dict[int, int]) -> None:
        """Move `complete_until` to the last time at which the ends were asked for that are reached by now."""
        if self._mark is not None and self._has_reached(self._mark[1]):
            self.complete_until, self._mark = self._mark[0], None
        if self._has_reached(ends):
            self.complete_until = asked
        elif self._mark is None:
            self._mark = (asked, ends)

    def _has_reached(self, ends: dict[int, int]) -> bool:
        return all(self._next.get(partition, 0) >= end for partition, end in ends.items())

    def lag_seconds(self, now: datetime) -> float:
        """How long ago what is read next was appended, at most; 0 when all is read."""
        known = [moment for moment in (self._last_append, self.complete_until) if moment is not None]
        if self.lag_records == 0 or not known:
            return 0.0
        return max(0.0, (now - max(known)).total_seconds())

    def close(self) -> None:
        """Leave Kafka; offsets on their way are committed first."""
        self._consumer.close()
        self._ends.close()

    def _partitions(self) -> list[int]:
        self._counted = time.monotonic()
        metadata = self._consumer.list_topics(self._topic, timeout=_TIMEOUT).topics[self._topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        return sorted(metadata.partitions)

    def _assign(self) -> None:
        """Read on from the committed offsets; from the start where there are none, or where they are out of range."""
        places = [TopicPartition(self._topic, partition) for partition in self._partitions()]
        positions = {}
        for place in self._consumer.committed(places, timeout=_TIMEOUT):
            low, high = self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT)
            offset = self._next.get(place.partition, place.offset)
            if offset > high:
                _log.warning("the topic was made anew: reading it from its start", topic=self._topic, offset=offset)
            positions[place.partition] = offset if low <= offset <= high else low
        self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in positions.items()])
        self._next = positions


@contextmanager
def _translated(where: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        text = cause.str() if isinstance(cause, KafkaError) else str(cause)
        raise TransientError(f"Kafka at {where}: {text}") from error


def _record(message: Message) -> Record:
    kind, millis = message.timestamp()
    appended = datetime.now(UTC) if kind == TIMESTAMP_NOT_AVAILABLE else datetime.fromtimestamp(millis / 1000, UTC)
    return Record(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        appended_at=appended,
        value=message.value(),
    )
