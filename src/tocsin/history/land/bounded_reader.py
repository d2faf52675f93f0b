"""A topic from the offsets where the last run ended up to its ends as of now, in chunks of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Self

from confluent_kafka import Message

from tocsin.history.land.kafka_reach import find_reach
from tocsin.history.land.landing_ledger import LandingLedger
from tocsin.history.places import end
from tocsin.kafka.reader import TopicReader, appended_at
from tocsin.kafka.topic_identity import is_recreated
from tocsin.model.errors import TocsinError, TransientError
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.quality.day_facts import Hole


class TopicAnew(TocsinError):
    """A topic was deleted and created again since it was read; a retry does not help."""


@dataclass
class Stretch:
    """The part of one partition that is to be read, and how far it has come.

    Attributes:
        start, end: the first offset to read, and the first not to read.
        position: the next offset.
        holes: that it met so far.
        newest_append: append time of the last record read, UTC; at first that of the run before.
    """

    start: int
    end: int
    position: int
    newest_append: datetime | None = None
    holes: list[Hole] = field(default_factory=list)

    def skip(self, to: int, *, removed: bool, before: datetime | None) -> None:
        """There is nothing from here up to `to`."""
        hole = Hole(from_offset=self.position, to_offset=to, removed=removed, after=self.newest_append, before=before)
        self.holes.append(hole)
        self.position = to

    def lose(self, end: int) -> None:
        """Note that what was unread of a former topic of this name, from offset `end` on, is lost."""
        self.holes.append(Hole(from_offset=end, to_offset=end, removed=True, after=self.newest_append, before=None))

    def lost_since(self, known: Iterable[Hole]) -> list[Hole]:
        """List the holes that it met and that are not within `known` ones, of an earlier run."""
        before = [(one.from_offset, one.to_offset) for one in known]
        return [
            hole
            for hole in self.holes
            if not any(first <= hole.from_offset and hole.to_offset <= last for first, last in before)
        ]


@dataclass
class Chunk:
    """Values of records, and the partition of each."""

    values: list[bytes | None] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    bytes: int = 0


class BoundedReader:
    """Reads one topic once. Use it in a `with` statement.

    Attributes:
        stretches: by partition; `position` and `holes` grow while `chunks` is read.
        topic_id: Kafka's id of the topic, from `begin` on; "" if it has none.

    Raises from every method:
        TransientError: Kafka cannot be reached, or retention removed records while they were read; a retry helps.
    """

    def __init__(self, settings: Settings, topic: str, group: str) -> None:
        self.topic, self.topic_id = topic, ""
        self.stretches: dict[int, Stretch] = {}
        strict = {"auto.offset.reset": "error", "check.crcs": True}
        self._reader = TopicReader(settings, group, topic, timeout_seconds=15.0, config=strict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def begin(self, positions: dict[int, int], appended: dict[int, datetime], topic_id: str = "") -> None:
        """Look where the topic begins and ends now.

        It is read from `positions`; a partition without one from its begin.

        Args:
            positions: the next offset of each known partition.
            appended: when the last record before it was appended, UTC.
            topic_id: of the topic that was read up to `positions`; "" if that is not known.

        Raises:
            TopicAnew: the topic is another one, or a partition ends before its position.
        """
        self.topic_id = self._reader.topic_id()
        firsts, ends = self._reader.bounds()
        if not firsts:
            raise TransientError(f"{self.topic} does not exist (yet)")
        if is_recreated(topic_id, self.topic_id, positions, ends):
            raise TopicAnew(f"{self.topic} was deleted and created again since landing has read it")
        for partition, first in firsts.items():
            start, end = positions.get(partition, first), ends[partition]
            stretch = Stretch(start, end, start, appended.get(partition))
            if start < first:
                stretch.skip(first, removed=True, before=None)
            self.stretches[partition] = stretch

    def begin_since(self, moment: datetime, source: Source, ledger: LandingLedger) -> datetime | None:
        """Look where the topic, events of `source`, ends now; it is read from what was appended at `moment` on.

        Returns from when on Kafka holds all events; None if it never removed any. `ledger` is what has landed.
        """
        self.begin(self._reader.since(moment), {})
        return find_reach(self._reader, source, ledger).since

    def chunks(self, *, records: int, size: int) -> Iterator[Chunk]:
        """All that is to be read, in chunks that end behind `records` records or `size` bytes."""
        starts = {partition: stretch.position for partition, stretch in self.stretches.items()}
        chunk = Chunk()
        for message in self._reader.read(starts, {partition: s.end for partition, s in self.stretches.items()}):
            self._take(message, chunk)
            if len(chunk.values) >= records or chunk.bytes >= size:
                yield chunk
                chunk = Chunk()
        for stretch in self.stretches.values():
            if stretch.position < stretch.end:
                stretch.skip(stretch.end, removed=False, before=None)
        if chunk.values:
            yield chunk

    def by_day(self, since: date, until: date) -> dict[date, int]:
        """Count by UTC day of their append time the records that are to be read, without reading them.

        What is older than `since` counts as of that day, what is newer than `until` as of that one.
        """
        counts: dict[date, int] = {}
        positions = {p: stretch.position for p, stretch in self.stretches.items() if stretch.position < stretch.end}
        day = since
        while positions:
            afters = self._reader.since(end(day)) if day < until else {}
            for partition, position in list(positions.items()):
                last = self.stretches[partition].end
                after = min(max(position, afters.get(partition, last)), last)
                if after > position:
                    counts[day] = counts.get(day, 0) + after - position
                positions[partition] = after
                if after == last:
                    del positions[partition]
            day += timedelta(days=1)
        return counts

    def _take(self, message: Message, chunk: Chunk) -> None:
        partition, offset, value = message.partition() or 0, message.offset() or 0, message.value()
        stretch = self.stretches[partition]
        if offset < stretch.position:
            return
        moment = appended_at(message)
        if offset > stretch.position:
            stretch.skip(offset, removed=False, before=moment)
        elif stretch.holes and stretch.holes[-1].before is None:
            stretch.holes[-1] = stretch.holes[-1].model_copy(update={"before": moment})
        stretch.position, stretch.newest_append = offset + 1, moment
        chunk.values.append(value)
        chunk.partitions.append(partition)
        chunk.bytes += len(value or b"")
