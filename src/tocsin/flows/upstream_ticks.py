"""Read which tick a flow may write: one that stands in the events it reads, once all events before it are written."""

from __future__ import annotations

from datetime import datetime

from tocsin.kafka.reader import Offsets, TopicReader, came_in_at
from tocsin.model.source import is_tick

_LOOKED_AT = 100
"""So many records of a partition are looked at in one look. Under load there are more, and no ticks among them."""


class UpstreamTicks:
    """The newest tick of an events topic, and where its events end; see `tocsin.ingest.ticks.TrueAfter`.

    Ticks do not count as what must be processed first: while nothing else comes, one follows another each second, and
    a job commits far less often.
    """

    def __init__(self, topic: TopicReader) -> None:
        self._topic = topic
        self._read: Offsets = {}
        self._ends: Offsets = {}
        self._newest: datetime | None = None

    def __call__(self) -> tuple[datetime, Offsets] | None:
        """Return the newest tick, and after which offsets it is true; None before the first.

        Raises:
            TransientError: Kafka cannot be reached; a retry helps.
        """
        self._look()
        newest = self._newest
        # It speaks of all partitions, and some of them may have been read before it was written.
        self._look()
        return None if newest is None else (newest, dict(self._ends))

    def _look(self) -> None:
        first, ends = self._topic.bounds()
        starts = {p: max(first[p], self._read.get(p, 0), end - _LOOKED_AT) for p, end in ends.items()}
        for partition, start in starts.items():
            if start > self._read.get(partition, first[partition]):
                self._ends[partition] = start  # what is between may be events
        for message in self._topic.read(starts, ends):
            if is_tick(message.value() or b""):
                moments = (one for one in (self._newest, came_in_at(message)) if one is not None)
                self._newest = max(moments, default=None)
            else:
                self._ends[message.partition() or 0] = (message.offset() or 0) + 1
        self._read = ends
