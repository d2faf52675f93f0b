"""Follow a topic from offsets that somebody else remembers, and know how far behind its end that is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar

import structlog
from confluent_kafka import Message

from tocsin.kafka.reader import Offsets, TopicReader, appended_at
from tocsin.kafka.topic_identity import is_recreated
from tocsin.model.errors import TransientError
from tocsin.project.settings import Settings

_TIMEOUT = 3.0
_PARTITIONS_SECONDS = 10.0
_log = structlog.get_logger()


class TopicFollower:
    """Follows one topic. For one thread.

    Attributes:
        topic_id: of the topic that it follows; "" before, and where Kafka gives none.
        recreated: how often the topic was deleted and created again.
        lag_records: appended and not yet done, at the last `look`.
        lag_seconds: since the last record that is done was appended, or since all was done; 0 when all is.
        complete_at: all that was appended by then is done, UTC; before the first `look` that found so, 1970.

    Raises from every method:
        TransientError: Kafka cannot be reached, or the topic is not there yet; a retry helps.
    """

    _CONFIG: ClassVar[dict[str, Any]] = {"fetch.wait.max.ms": 500}

    def __init__(self, settings: Settings, group: str, topic: str) -> None:
        """Follow `topic`, committing for `group`; nothing is read yet, and Kafka may be away."""
        self._reader = TopicReader(settings, group, topic, timeout_seconds=_TIMEOUT, config=self._CONFIG)
        # Asks for the ends: on the connection of the other a question would wait behind a fetch.
        self._ends = TopicReader(settings, group, topic, timeout_seconds=_TIMEOUT)
        self._next: Offsets | None = None
        self._reached: Offsets = {}
        self._counted = 0.0
        self._last_append = self.complete_at = datetime.fromtimestamp(0, UTC)
        self.lag_records, self.lag_seconds = 0, 0.0
        self.topic_id, self.recreated = "", 0

    @property
    def is_following(self) -> bool:
        """Return whether `follow` was called since the last error."""
        return self._next is not None

    def follow(self, done: Offsets, topic_id: str = "") -> bool:
        """Read on from `done` in the topic with this id; False, and nothing is read, if the topic is another one.

        New partitions are read from their start. Without an id, any topic will do that does not end before `done`.
        """
        current, partitions = self._ends.topic_id(), self._ends.partitions()
        if not partitions:
            raise TransientError(f"topic {self._reader.name} does not exist yet")
        first, ends = self._ends.bounds(partitions)
        if is_recreated(topic_id, current, done, ends):
            _log.warning("topic recreated, reading it from its start", topic=self._reader.name)
            self.recreated += 1
            return False
        self.topic_id = current
        self._start({partition: max(low, done.get(partition, 0)) for partition, low in first.items()})
        self._counted = time.monotonic()
        return True

    def poll(self, count: int, wait_seconds: float) -> list[Message]:
        """Up to `count` records, in order per partition; empty when none came within `wait_seconds`."""
        try:
            return self._reader.poll(count, wait_seconds)
        except TransientError:
            self._next = None  # what was given with the error comes again
            raise

    def done(self, messages: Iterable[Message]) -> None:
        """Note that nothing of `messages` is needed any more."""
        assert self._next is not None
        for message in messages:
            if (partition := message.partition() or 0) in self._next:  # another process may have it by now
                self._next[partition] = (message.offset() or 0) + 1
            self._last_append = max(self._last_append, appended_at(message))
        self._reader.commit(self._next)

    def again(self) -> None:
        """Note that what was read last was not used: it must be read again."""
        self._next = None

    def look(self) -> Offsets:
        """Compare with the ends of the topic, and return them."""
        assert self._next is not None
        if time.monotonic() - self._counted > _PARTITIONS_SECONDS:
            self._counted = time.monotonic()
            if is_recreated(self.topic_id, self._ends.topic_id(), {}, {}):
                self._next = None
                raise TransientError(f"topic {self._reader.name} was deleted and created again")
            self._expect_partitions(self._ends.partitions(), self._next)
        asked_at = datetime.now(UTC)
        self._reached = self._others() | self._next
        _, ends = self._ends.bounds(self._reached)
        self._next = self._reader.passed(self._next)
        self._reached |= self._next
        self.lag_records = sum(max(0, end - self._reached[partition]) for partition, end in ends.items())
        if self.lag_records == 0:
            self.complete_at = asked_at
        since = max(self._last_append, self.complete_at)
        self.lag_seconds = 0.0 if self.lag_records == 0 else round((asked_at - since).total_seconds(), 3)
        return ends

    def has_reached(self, ends: Offsets) -> bool:
        """Return whether all before `ends` was done at the last `look`."""
        return self._next is not None and all(self._reached.get(partition, 0) >= end for partition, end in ends.items())

    def close(self) -> None:
        """Leave Kafka."""
        self._reader.close()
        self._ends.close()

    def _start(self, offsets: Offsets) -> None:
        """Read on from `offsets`."""
        self._next = offsets
        self._reader.follow(offsets)

    def _expect_partitions(self, there: list[int], position: Offsets) -> None:
        """Read new partitions too."""
        if len(there) != len(position):
            _log.info("partitions added", topic=self._reader.name)
            self.follow(position, self.topic_id)

    def _others(self) -> Offsets:
        """Return up to where the partitions are done that other processes read."""
        return {}
