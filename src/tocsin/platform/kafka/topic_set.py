"""Read the topics of one job beside Spark: each partition of each of them is a place, with offsets of its own."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NewType, Self

from confluent_kafka import Message

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import CameAt, Offsets, TopicReader, appended_at
from tocsin.platform.kafka.topic_identity import TopicIds, is_recreated

Place = NewType("Place", str)
"""A partition of a topic, as in `events.logins/3`."""

_TIMEOUT = 5.0

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


class TopicSet:
    """The topics that one job reads. For one thread, and one reading at a time.

    Raises from every method:
        TransientError: Kafka cannot be reached, or does not give what a topic holds; a retry helps.
    """

    def __init__(self, settings: Settings, group: str, names: Sequence[str]) -> None:
        """Ask nothing yet; see `TopicReader`."""
        self.names = tuple(names)
        self._readers = {name: TopicReader(settings, group, name) for name in names}
        self._ids = TopicIds(settings.kafka, _TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave Kafka; offsets on their way are committed first."""
        for reader in self._readers.values():
            reader.close()

    def only(self, names: Collection[str]) -> TopicSet:
        """Return those of the topics that are among `names`; both are closed together."""
        part = copy.copy(self)
        part.names = tuple(name for name in self.names if name in names)
        part._readers = {name: self._readers[name] for name in part.names}
        return part

    def places(self) -> list[Place]:
        """List the partitions of all topics; none of a topic that does not exist."""
        readers = self._readers.items()
        return [place_of(name, partition) for name, reader in readers for partition in reader.partitions()]

    def missing(self) -> str | None:
        """Name a topic that does not exist; None if all do."""
        return next((name for name, reader in self._readers.items() if not reader.partitions()), None)

    def bounds(self) -> tuple[Position, Position]:
        """Return the first offset that is still there, and the end, of each place."""
        first: Position = {}
        ends: Position = {}
        for name, reader in self._readers.items():
            both = reader.bounds()
            first |= _placed(name, both[0])
            ends |= _placed(name, both[1])
        return first, ends

    def ids(self) -> dict[str, str]:
        """Return the id of each topic; see `TopicIds.of`."""
        return self._ids.of(self.names)

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

    def since(self, moment: datetime) -> Position:
        """Return the first offset of each place appended at or after `moment`; the end if there is none."""
        found: Position = {}
        for name, reader in self._readers.items():
            found |= _placed(name, reader.since(moment))
        return found

    def records(self, place: Place, start: int, end: int) -> Iterator[Message]:
        """Read the records of `place` with offsets from `start` up to, not including, `end`; see `TopicReader.read`."""
        topic, partition = partition_of(place)
        return self._readers[topic].records(partition, start, end)

    def read(self, starts: Position, ends: Position) -> Iterator[Message]:
        """Read the records of all places with offsets from `starts` up to, not including, `ends`."""
        for topic, offsets in _by_topic(starts).items():
            yield from self._readers[topic].read(offsets, _by_topic(ends)[topic])

    def appended_at(self, place: Place, start: int, end: int) -> datetime | None:
        """Read when the first record from `start` up to, not including, `end` was appended, UTC; None without one."""
        return self.first_at(place, start, end, appended_at)

    def first_at(self, place: Place, start: int, end: int, came_at: CameAt) -> datetime | None:
        """Date the first of these records that `came_at` can date; None without one."""
        topic, partition = partition_of(place)
        return self._readers[topic].first_at(partition, start, end, came_at)

    def commit(self, position: Position) -> None:
        """Commit `position`, without waiting. A lost commit is made good by the next."""
        for topic, offsets in _by_topic(position).items():
            self._readers[topic].commit(offsets)


def oldest(topics: TopicSet, position: Position, came_at: CameAt = appended_at) -> datetime | None:
    """When the oldest record from `position` on came in, UTC, as the first of each place tells; None without.

    Raises:
        TransientError: Kafka cannot be reached; a retry helps.
    """
    first, ends = topics.bounds()
    unread = {place: max(offset, position.get(place, 0)) for place, offset in first.items()}
    moments = (topics.first_at(place, offset, ends[place], came_at) for place, offset in unread.items())
    return min((moment for moment in moments if moment is not None), default=None)


def lag_of(topics: TopicSet, position: Position, ends: Position, came_at: CameAt) -> tuple[int, float]:
    """Count what a job at `position` has not read of topics that end at `ends`; `came_at` dates a record.

    Returns:
        The number of records, and the seconds since the oldest came in, as the first of each place tells: 0 if there
        are none, or while Kafka does not answer.
    """
    behind = {place: (position[place], end) for place, end in ends.items() if position.get(place, end) < end}
    moments: list[datetime] = []
    for place, (start, end) in behind.items():
        with contextlib.suppress(ConfigError, TransientError):
            times = (came_at(message) for message in topics.records(place, start, end))
            moments += itertools.islice((moment for moment in times if moment is not None), 1)
    seconds = (datetime.now(UTC) - min(moments)).total_seconds() if moments else 0.0
    return sum(end - start for start, end in behind.values()), round(max(0.0, seconds), 3)


def _placed(topic: str, offsets: Offsets) -> Position:
    return {place_of(topic, partition): offset for partition, offset in offsets.items()}


def _by_topic(position: Position) -> dict[str, Offsets]:
    found: dict[str, Offsets] = {}
    for place, offset in position.items():
        topic, partition = partition_of(place)
        found.setdefault(topic, {})[partition] = offset
    return found
