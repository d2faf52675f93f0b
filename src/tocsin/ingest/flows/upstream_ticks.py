"""Read which tick a flow may write: one that stands in the events it reads, once all events before it are written."""

from __future__ import annotations

from datetime import datetime

from tocsin.declare.model.source import is_tick
from tocsin.platform.kafka.reader import came_in_at
from tocsin.platform.kafka.topic_set import Position, TopicSet, place_of

_LOOKED_AT = 100
"""So many records of a partition are looked at in one look. Under load there are more, and no ticks among them."""


class UpstreamTicks:
    """The newest tick of each of some events topics, and where their events end; see `tocsin.ingest.ticks.TrueAfter`.

    Ticks do not count as what must be processed first: while nothing else comes, one follows another each second, and
    a job commits far less often.
    """

    def __init__(self, topics: TopicSet) -> None:
        self._topics = topics
        self._read: Position = {}
        self._ends: Position = {}
        self._newest: dict[str, datetime] = {}

    def __call__(self) -> tuple[datetime, Position] | None:
        """Return the tick up to which all topics have come, and after which offsets it is true; None before that.

        Raises:
            TransientError: Kafka cannot be reached; a retry helps.
        """
        self._look()
        newest = dict(self._newest)
        # One speaks of all partitions of its topic, and some of them may have been read before it was written.
        self._look()
        return (min(newest.values()), dict(self._ends)) if len(newest) == len(self._topics.names) else None

    def _look(self) -> None:
        first, ends = self._topics.bounds()
        starts = {p: max(first[p], self._read.get(p, 0), end - _LOOKED_AT) for p, end in ends.items()}
        for place, start in starts.items():
            if start > self._read.get(place, first[place]):
                self._ends[place] = start  # what is between may be events
        for message in self._topics.read(starts, ends):
            topic, moment = message.topic() or "", came_in_at(message)
            if not is_tick(message.value() or b""):
                self._ends[place_of(topic, message.partition() or 0)] = (message.offset() or 0) + 1
            elif moment is not None:
                self._newest[topic] = max(self._newest.get(topic, moment), moment)
        self._read = ends
