"""Read the topics of one job beside Spark: each partition of each of them is a place, with offsets of its own."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import NewType

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.platform.kafka.client import is_recreated
from tocsin.platform.kafka.reader import CameAt, Offsets, Reader, appended_at

Place = NewType("Place", str)
"""A partition of a topic, as in `events.logins/3`."""

Position = dict[Place, int]
"""Place to the offset of the next record."""


def place_of(topic: str, partition: int) -> Place:
    """Name the place; a topic has no slash in its name."""
    return Place(f"{topic}/{partition}")


def partition_of(place: Place) -> tuple[str, int]:
    """Return topic and partition of `place`."""
    topic, _, partition = place.rpartition("/")
    return topic, int(partition)


def position_of(topics: Mapping[str, Mapping[str, int]]) -> Position:
    """Make a position of what Spark writes as JSON: topic to partition to offset."""
    return {
        place_of(topic, int(partition)): offset
        for topic, offsets in topics.items()
        for partition, offset in offsets.items()
    }


def as_json(position: Position) -> str:
    """Write `position` as Spark's options and checkpoints have it."""
    return json.dumps(_by_topic(position))


class TopicSet(Reader[Place]):
    """The topics that one job reads; see `Reader`."""

    def only(self, names: Collection[str]) -> TopicSet:
        """Return those of the topics that are among `names`; both are closed together."""
        part = copy.copy(self)
        part.names = tuple(name for name in self.names if name in names)
        return part

    def missing(self) -> str | None:
        """Name a topic that does not exist; None if all do."""
        there = {partition_of(place)[0] for place in self.partitions()}
        return next((name for name in self.names if name not in there), None)

    def recreated(self, known: Mapping[str, str], read: Position) -> list[str]:
        """Name the topics that were deleted and created again since those of the ids `known` were read up to `read`."""
        current, (_, ends) = self.ids(), self.bounds()
        offsets, bounds = _by_topic(read), _by_topic(ends)
        return [
            name
            for name in self.names
            if name in bounds
            and is_recreated(known.get(name, ""), current.get(name, ""), offsets.get(name, {}), bounds[name])
        ]

    def _key(self, topic: str, partition: int) -> Place:
        return place_of(topic, partition)

    def _place(self, key: Place) -> tuple[str, int]:
        return partition_of(key)


def oldest(topics: TopicSet, position: Position, came_at: CameAt = appended_at) -> datetime | None:
    """Date the oldest record from `position` on, UTC, by the first of each place. TransientError if Kafka is away."""
    first, ends = topics.bounds()
    unread = {place: max(offset, position.get(place, 0)) for place, offset in first.items()}
    moments = (topics.first_at(place, offset, ends[place], came_at) for place, offset in unread.items())
    return min((moment for moment in moments if moment is not None), default=None)


def lag_of(topics: TopicSet, position: Position, ends: Position, came_at: CameAt) -> tuple[int, float]:
    """Count what a job at `position` has not read of topics that end at `ends`; `came_at` dates a record.

    Returns the number of records, and the seconds since the oldest came in, as the first of each place tells: 0 if
    there are none, or while Kafka does not answer.
    """
    behind = {place: (position[place], end) for place, end in ends.items() if position.get(place, end) < end}
    moments: list[datetime] = []
    for place, (start, end) in behind.items():
        with contextlib.suppress(ConfigError, TransientError):
            times = (came_at(message) for message in topics.records(place, start, end))
            moments += itertools.islice((moment for moment in times if moment is not None), 1)
    seconds = (datetime.now(UTC) - min(moments)).total_seconds() if moments else 0.0
    return sum(end - start for start, end in behind.values()), round(max(0.0, seconds), 3)


def _by_topic(position: Position) -> dict[str, Offsets]:
    found: dict[str, Offsets] = {}
    for place, offset in position.items():
        topic, partition = partition_of(place)
        found.setdefault(topic, {})[partition] = offset
    return found
