"""The events of a range of time as their topic holds them, in the order of their times, each once."""

from __future__ import annotations

import heapq
import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import Message
from pydantic import BaseModel

from tocsin.declare.model.source import Source, is_tick
from tocsin.platform.kafka.reader import Offsets, TopicReader

LATEST = timedelta(hours=1)
"""An event that was written so much later than its time is not found in a range that ends before."""

_BLOCK = 500
# A block has 1 kB at most, and that of a small batch a few bytes.
_BITS, _BLOCKS = 8_192, 100_000


class ReplayRange(BaseModel, frozen=True):
    """A range of time, and where in the topic its events lie: offsets by partition.

    Attributes:
        start, end: event times from `start` up to, not including, `end`; UTC.
        position: up to where all is settled, in partitions where that is beyond `starts`.
    """

    start: datetime
    end: datetime
    starts: Offsets
    ends: Offsets
    position: Offsets = {}


@dataclass(frozen=True)
class RecordedEvent:
    """One event of a topic; its event time is UTC, its values are of its envelope and of the declared columns."""

    time: datetime
    values: dict[str, Any]
    partition: int
    offset: int

    @property
    def origin(self) -> str:
        """Name the partition that its raw record came from."""
        return f"{self.values['raw_topic']}/{self.values['raw_partition']}"


def find_range(
    topic: TopicReader, source: Source, start: datetime, end: datetime, latest: timedelta = LATEST
) -> ReplayRange:
    """Find where the events of `source` from `start` up to `end` lie in its `topic`.

    What was written later than `latest` after `end` is left out, unless it is within the lateness. TransientError if
    Kafka cannot be reached; a retry helps.
    """
    starts, ends = topic.since(start - source.max_ahead), topic.since(end + max(source.lateness, latest))
    return ReplayRange(start=start, end=end, starts=starts, ends=ends)


def read_range(topic: TopicReader, span: ReplayRange, position: Offsets) -> Iterator[RecordedEvent]:
    """Read the events of `span` from `position` on, in order of time as far as each partition is.

    What a crash made an ingest write again is left out, and so are ticks and what is no event. Errors as `find_range`.
    """
    partitions = [_read(topic, span, partition, start) for partition, start in position.items()]
    yield from heapq.merge(*partitions, key=lambda event: event.time)


def _read(topic: TopicReader, span: ReplayRange, partition: int, start: int) -> Iterator[RecordedEvent]:
    read = _Read()
    end = span.ends[partition]
    while start < end:
        block = list(topic.records(partition, start, min(start + _BLOCK, end)))
        start += _BLOCK
        for event in filter(None, map(parse_event, block)):
            if read.is_new(event.origin, event.values["raw_offset"]) and span.start <= event.time < span.end:
                yield event


class _Read:
    """What was read, as bits by origin and offset. Offsets of an origin may come out of order.

    A batch's records are spread over partitions by their keys, and what was in quarantine comes later.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, int], int] = OrderedDict()

    def is_new(self, origin: str, offset: int) -> bool:
        place, bit = (origin, offset // _BITS), 1 << offset % _BITS
        known = self._blocks.get(place, 0)
        self._blocks[place] = known | bit
        self._blocks.move_to_end(place)
        if len(self._blocks) > _BLOCKS:
            self._blocks.popitem(last=False)
        return not known & bit


def parse_event(message: Message) -> RecordedEvent | None:
    """Read the event in a record of an events topic; None for a tick, and for what is no event."""
    value = message.value() or b""
    if is_tick(value):
        return None
    try:
        values = json.loads(value)
        time = datetime.fromisoformat(values["event_time"]).astimezone(UTC)
        int(values["raw_offset"])
        return RecordedEvent(time, values, message.partition() or 0, message.offset() or 0)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
