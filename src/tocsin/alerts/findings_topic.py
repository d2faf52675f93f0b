"""One topic, followed from the committed offsets by one reader, with its lag."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import structlog
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from tocsin.alerts.intake import FindingRecord
from tocsin.kafka.reader import Offsets, TopicReader, appended_at
from tocsin.kafka.topic_identity import is_recreated
from tocsin.model.errors import TransientError
from tocsin.project.settings import Settings

_MEASURE_SECONDS = 0.5
_PARTITIONS_SECONDS = 10.0
_TIMEOUT = 3.0
_log = structlog.get_logger()


class FollowedTopic:
    """A topic and a consumer group's positions in it. For one thread.

    Attributes:
        lag_records: appended and not yet taken, at the last `measure`.
        recreated: how often the topic was deleted and created again.
        complete_until: everything appended before this time (of this machine's clock, UTC) is taken; None at first.
    """

    def __init__(self, settings: Settings, topic: str, group: str) -> None:
        """Follow `topic` for `group`; nothing is read yet, and Kafka may be away."""
        self._reader = TopicReader(settings, group, topic, timeout_seconds=_TIMEOUT, config={"fetch.wait.max.ms": 500})
        # Reads nothing: on the connection of one that does, each question waits 0.5 s behind a fetch of an idle topic.
        self._ends = TopicReader(settings, group, topic, timeout_seconds=_TIMEOUT)
        self._next: Offsets = {}
        self._uncommitted: set[int] = set()
        self._mark: tuple[datetime, Offsets] | None = None
        self._measured = self._counted = 0.0
        self._last_append: datetime | None = None
        self._topic_id = ""
        self.lag_records = self.recreated = 0
        self.complete_until: datetime | None = None

    def read(self, count: int, wait_seconds: float) -> list[FindingRecord]:
        """Up to `count` records, in order per partition; empty when none came within `wait_seconds`.

        Raises:
            TransientError: Kafka cannot be reached, or the topic is not there yet.
        """
        if not self._next:
            self._assign()
        try:
            return [_record(message) for message in self._reader.poll(count, wait_seconds)]
        except TransientError:
            self._next, self._uncommitted = {}, set()  # what was given with the error comes again
            raise

    def take(self, records: list[FindingRecord]) -> None:
        """Count `records` as read, one at least; a restart reads them again until `commit`."""
        for record in records:
            self._next[record.partition] = record.offset + 1
            self._uncommitted.add(record.partition)
        self._last_append = records[-1].appended_at

    def commit(self) -> None:
        """Let a restart read on behind all that was taken. A lost commit is made good by the next."""
        if self._uncommitted:
            offsets = {partition: self._next[partition] for partition in self._uncommitted}
            self._reader.commit(offsets, self._topic_id)
        self._uncommitted.clear()

    def measure(self) -> bool:
        """Twice a second, compare with the end of the topic; True when it did.

        Raises:
            TransientError: Kafka cannot be reached.
        """
        if time.monotonic() - self._measured < _MEASURE_SECONDS:
            return False
        if time.monotonic() - self._counted > _PARTITIONS_SECONDS and self._is_changed():
            self._assign()
        asked_at = datetime.now(UTC)
        first, ends = self._ends.bounds(self._next)
        self._next = {partition: max(offset, first[partition]) for partition, offset in self._next.items()}
        self._measured = time.monotonic()
        self.lag_records = sum(max(0, end - self._next[partition]) for partition, end in ends.items())
        self._advance(asked_at, ends)
        return True

    def _advance(self, asked_at: datetime, ends: Offsets) -> None:
        """Move `complete_until` to the last time at which the ends were asked for that are reached by now."""
        if self._mark is not None and self._has_reached(self._mark[1]):
            self.complete_until, self._mark = self._mark[0], None
        if self._has_reached(ends):
            self.complete_until = asked_at
        elif self._mark is None:
            self._mark = (asked_at, ends)

    def _has_reached(self, ends: Offsets) -> bool:
        return all(self._next.get(partition, 0) >= end for partition, end in ends.items())

    def lag_seconds(self, now: datetime) -> float:
        """Measure how long ago the next record to be read was appended, at most; 0 when all is read."""
        moments = [moment for moment in (self._last_append, self.complete_until) if moment is not None]
        if self.lag_records == 0 or not moments:
            return 0.0
        return max(0.0, (now - max(moments)).total_seconds())

    def close(self) -> None:
        """Leave Kafka; offsets on their way are committed first."""
        self._reader.close()
        self._ends.close()

    def _partitions(self) -> list[int]:
        self._counted = time.monotonic()
        return self._reader.partitions()

    def _is_changed(self) -> bool:
        """Return whether partitions were added, or the topic was deleted and created again."""
        if is_recreated(self._topic_id, self._ends.topic_id(), {}, {}):
            return True
        if is_grown := len(self._partitions()) != len(self._next):
            _log.info("partitions added", topic=self._reader.name)
        return is_grown

    def _assign(self) -> None:
        """Read on from the committed offsets; from the start where there are none, or where they are of another topic.

        Kafka removes the offsets of a topic with it. A reader that does not know yet may commit them again, so the id
        of the topic is committed with them.
        """
        topic_id, partitions = self._ends.topic_id(), self._partitions()
        if not partitions:
            raise TransientError(f"topic {self._reader.name} does not exist yet")
        (committed, ids), (first, ends) = self._reader.committed_with_ids(partitions), self._reader.bounds(partitions)
        positions, is_another = {}, False
        for partition, low in first.items():
            offset = self._next.get(partition, committed[partition])
            known = self._topic_id if partition in self._next else ids[partition]
            if is_recreated(known, topic_id, {partition: offset}, ends):
                _log.warning("topic recreated, reading it from its start", topic=self._reader.name, offset=offset)
                offset, is_another = low, True
            positions[partition] = max(low, offset)
        self._reader.follow(positions)
        self._topic_id, self._next = topic_id, positions
        if is_another:
            self.recreated += 1
            self._uncommitted, self._mark = set(positions), None


def _record(message: Message) -> FindingRecord:
    is_dated = message.timestamp()[0] != TIMESTAMP_NOT_AVAILABLE
    return FindingRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        appended_at=appended_at(message) if is_dated else datetime.now(UTC),
        value=message.value(),
    )
