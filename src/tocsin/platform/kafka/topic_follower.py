"""Follow a topic, and know how far behind its end the follower is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar

import structlog
from confluent_kafka import Message

from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.client import is_recreated
from tocsin.platform.kafka.reader import Offsets, TopicReader, appended_at

_TIMEOUT = 3.0
_LOOK_SECONDS, _PARTITIONS_SECONDS = 0.5, 10.0
_log = structlog.get_logger()


class TopicFollower:
    """Follows one topic, from offsets that the caller stores or that the group has committed. For one thread.

    Attributes:
        lag_records: appended and not yet done, at the last `look`.
        lag_seconds: since the next record to be done was appended, at most; 0 if all is done.
        complete_at: all that was appended by then is done, UTC, by this machine's clock; None at first.

    Raises from every method:
        TransientError: Kafka cannot be reached, or the topic is not there yet; a retry helps.
    """

    _CONFIG: ClassVar[dict[str, Any]] = {"fetch.wait.max.ms": 500}

    def __init__(self, settings: Settings, group: str, topic: str) -> None:
        """Follow `topic`, committing for `group`; nothing is read yet, and Kafka may be away."""
        self._reader = TopicReader(settings, group, topic, timeout_seconds=_TIMEOUT, config=self._CONFIG)
        # Asks for the ends: on the connection of the other a question would wait behind a fetch.
        self._ends = TopicReader(settings, group, topic, timeout_seconds=_TIMEOUT)
        self.is_following = False
        self._next: Offsets = {}
        self._committed: Offsets = {}
        self._reached: Offsets = {}
        self._mark: tuple[datetime, Offsets] | None = None
        self._looked = self._counted = float("-inf")
        self._last_append: datetime | None = None
        self.complete_at: datetime | None = None
        self.lag_records, self.lag_seconds = 0, 0.0
        self.topic_id, self.recreated = "", 0

    def follow(self, done: Offsets, topic_id: str = "") -> bool:
        """Read on from `done` in the topic with this id; False, and nothing is read, if the topic is another one.

        New partitions are read from their start. Without an id, any topic will do that does not end before `done`.
        """
        current, first, ends = self._look_up()
        if is_recreated(topic_id, current, done, ends):
            self._note_recreated()
            return False
        self._begin(current, {partition: max(low, done.get(partition, 0)) for partition, low in first.items()})
        return True

    def follow_committed(self) -> None:
        """Read on from the committed offsets; from the start where there are none, or where they are of another topic.

        Kafka removes the offsets of a topic with it. A reader that does not know yet may commit them again, so the id
        of the topic is committed with them.
        """
        current, first, ends = self._look_up()
        committed, ids = self._ends.committed(first)
        others = {p for p, offset in committed.items() if is_recreated(ids[p], current, {p: offset}, ends)}
        if others or is_recreated(self.topic_id, current, {}, {}):
            self._note_recreated()
        self._begin(current, {p: low if p in others else max(low, committed[p]) for p, low in first.items()})

    def poll(self, count: int, wait_seconds: float) -> list[Message]:
        """Up to `count` records, in order per partition; empty when none came within `wait_seconds`."""
        try:
            return self._reader.poll(count, wait_seconds)
        except TransientError:
            self.again()  # what was given with the error comes again
            raise

    def done(self, messages: Iterable[Message]) -> None:
        """Note that nothing of `messages` is needed any more, except after a restart, until `commit`."""
        for message in messages:
            if (partition := message.partition() or 0) in self._next:  # another process may have it by now
                self._next[partition] = (message.offset() or 0) + 1
            self._last_append = max(self._last_append or appended_at(message), appended_at(message))

    def commit(self) -> None:
        """Commit what is done, with the id of the topic. A lost commit is made good by the next."""
        if self.is_following and self._next != self._committed:
            self._reader.commit(self._next, self.topic_id)
            self._committed = dict(self._next)

    def again(self) -> None:
        """Note that what was read last was not used: it must be read again."""
        self._next, self.is_following = {}, False

    def measure(self) -> Offsets | None:
        """Look twice a second; None in between."""
        return self.look() if time.monotonic() - self._looked > _LOOK_SECONDS else None

    def look(self) -> Offsets:
        """Compare with the ends of the topic, and return them."""
        self._looked = time.monotonic()
        if self._looked - self._counted > _PARTITIONS_SECONDS:
            self._counted = self._looked
            if is_recreated(self.topic_id, self._ends.topic_id(), {}, {}):
                self.again()
                raise TransientError(f"topic {self._reader.name} was deleted and created again")
            self._expect_partitions(self._ends.partitions(), self._next)
        asked_at = datetime.now(UTC)
        self._reached = self._others() | self._next
        first, ends = self._ends.bounds(self._reached)
        passed = self._reader.passed(self._next)
        self._next = {partition: max(offset, first[partition]) for partition, offset in passed.items()}
        self._reached |= self._next
        self._measure_lag(asked_at, ends)
        return ends

    def has_reached(self, ends: Offsets) -> bool:
        """Return whether all before `ends` was done at the last `look`."""
        return self.is_following and all(self._reached.get(partition, 0) >= end for partition, end in ends.items())

    def close(self) -> None:
        """Leave Kafka; offsets on their way are committed first."""
        self._reader.close()
        self._ends.close()

    def _look_up(self) -> tuple[str, Offsets, Offsets]:
        topic_id, partitions = self._ends.topic_id(), self._ends.partitions()
        if not partitions:
            raise TransientError(f"topic {self._reader.name} does not exist yet")
        return topic_id, *self._ends.bounds(partitions)

    def _note_recreated(self) -> None:
        _log.warning("topic recreated, reading it from its start", topic=self._reader.name)
        self.recreated += 1

    def _begin(self, topic_id: str, offsets: Offsets) -> None:
        self.topic_id, self._committed, self._mark, self.is_following = topic_id, {}, None, True
        self._counted = time.monotonic()
        self._start(offsets)

    def _measure_lag(self, asked_at: datetime, ends: Offsets) -> None:
        """Set the lag, and move `complete_at` to the last time at which the ends were asked for that are reached."""
        if self._mark is not None and self.has_reached(self._mark[1]):
            self.complete_at, self._mark = self._mark[0], None
        if self.has_reached(ends):
            self.complete_at = asked_at
        elif self._mark is None:
            self._mark = (asked_at, ends)
        self.lag_records = sum(max(0, end - self._reached[partition]) for partition, end in ends.items())
        since = [moment for moment in (self._last_append, self.complete_at) if moment is not None]
        is_behind = self.lag_records > 0 and since
        self.lag_seconds = round(max(0.0, (asked_at - max(since)).total_seconds()), 3) if is_behind else 0.0

    def _start(self, offsets: Offsets) -> None:
        self._next = offsets
        self._reader.follow(offsets)

    def _expect_partitions(self, there: list[int], position: Offsets) -> None:
        if len(there) != len(position):
            _log.info("partitions added", topic=self._reader.name)
            self.follow(position, self.topic_id)

    def _others(self) -> Offsets:
        """Return up to where the partitions are done that other processes read."""
        return {}
