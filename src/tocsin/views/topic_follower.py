"""Follow the topic of a view from the offsets that its read model remembers, and write what it should have instead."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import structlog
from confluent_kafka import Message

from tocsin.kafka.reader import Offsets, TopicReader, appended_at
from tocsin.kafka.record_writer import RecordWriter
from tocsin.model.errors import TransientError
from tocsin.model.names import view_job
from tocsin.model.sizes import EVENT_BYTES
from tocsin.project.settings import Settings
from tocsin.views.applier import Amends, RowRecord

_TIMEOUT = 3.0
_PARTITIONS_SECONDS = 10.0
_REMOVES = "removes"
_log = structlog.get_logger()


class ViewTopic:
    """The topic of one view. For one thread.

    Attributes:
        lag_records: appended and not yet applied, at the last `look`.
        lag_seconds: since the last record that was applied was appended, or since all was applied; 0 when all is.

    Raises from every method:
        TransientError: Kafka cannot be reached, or the topic is not there yet; a retry helps.
    """

    def __init__(self, settings: Settings, view: str) -> None:
        """Follow the topic of `view`; nothing is read yet, and Kafka may be away."""
        topic, group = settings.names.view(view), view_job(view)
        self._reader = TopicReader(settings, group, topic, timeout_seconds=_TIMEOUT, config={"fetch.wait.max.ms": 500})
        # Asks for the ends: on the connection of the other a question would wait behind a fetch.
        self._ends = TopicReader(settings, group, topic, timeout_seconds=_TIMEOUT)
        self._writer = RecordWriter(settings, EVENT_BYTES, timeout_seconds=10.0)
        self._next: Offsets | None = None
        self._counted = 0.0
        self._last_append = self._complete_at = datetime.fromtimestamp(0, UTC)
        self.lag_records, self.lag_seconds = 0, 0.0

    @property
    def is_following(self) -> bool:
        """Return whether `follow` was called since the last error."""
        return self._next is not None

    def follow(self, applied: Offsets) -> bool:
        """Read on from `applied`; False, without effect, if the topic ends before them: it is another one.

        New partitions are read from their start.
        """
        partitions = self._ends.partitions()
        if not partitions:
            raise TransientError(f"topic {self._reader.name} does not exist yet")
        first, ends = self._ends.bounds(partitions)
        if any(offset > ends.get(partition, 0) for partition, offset in applied.items()):
            return False
        self._next = {partition: max(low, applied.get(partition, 0)) for partition, low in first.items()}
        self._reader.follow(self._next)
        self._counted = time.monotonic()
        return True

    def read(self, count: int, wait_seconds: float) -> list[RowRecord]:
        """Up to `count` records, in order per partition; empty when none came within `wait_seconds`."""
        try:
            return [_record(message) for message in self._reader.poll(count, wait_seconds)]
        except TransientError:
            self._next = None  # what was given with the error comes again
            raise

    def done(self, records: Iterable[RowRecord]) -> None:
        """Note that `records` are applied."""
        assert self._next is not None
        for record in records:
            self._next[record.partition] = record.offset + 1
            self._last_append = max(self._last_append, record.appended_at)
        self._reader.commit(self._next)

    def again(self) -> None:
        """Note that what was read last was not applied: it must be read again."""
        self._next = None

    def look(self) -> Offsets:
        """Compare with the ends of the topic, and return them."""
        assert self._next is not None
        if time.monotonic() - self._counted > _PARTITIONS_SECONDS:
            self._counted = time.monotonic()
            if len(self._ends.partitions()) != len(self._next):
                _log.info("partitions added", topic=self._reader.name)
                self.follow(self._next)
        asked_at = datetime.now(UTC)
        _, ends = self._ends.bounds(self._next)
        self._next = self._reader.passed(self._next)
        self.lag_records = sum(max(0, end - self._next[partition]) for partition, end in ends.items())
        if self.lag_records == 0:
            self._complete_at = asked_at
        since = max(self._last_append, self._complete_at)
        self.lag_seconds = 0.0 if self.lag_records == 0 else round((asked_at - since).total_seconds(), 3)
        return ends

    def has_reached(self, ends: Offsets) -> bool:
        """Return whether all before `ends` is applied."""
        return self._next is not None and all(self._next.get(partition, 0) >= end for partition, end in ends.items())

    def amend(self, amends: Iterable[Amends]) -> None:
        """Write what the topic should have; returns when Kafka has it."""
        for one in amends:
            value = None if one.row is None else one.row.to_record()
            headers = {} if one.row is not None else {"headers": {_REMOVES: str(one.offset).encode()}}
            self._writer.write(self._reader.name, value, one.identity, partition=one.partition, **headers)
        self._writer.flush()

    def close(self) -> None:
        """Leave Kafka."""
        self._reader.close()
        self._ends.close()


def _record(message: Message) -> RowRecord:
    removes: Any = dict(message.headers() or []).get(_REMOVES)
    key: Any = message.key() or b""
    return RowRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        appended_at=appended_at(message),
        key=key.decode(errors="replace"),
        value=message.value(),
        removes=int(removes) if removes is not None and removes.isdigit() else None,
    )
