"""Follow the topic of a view from the offsets that its read model remembers, and write what it should have instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import structlog
from confluent_kafka import Message

from tocsin.declare.model.names import view_job
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import SHARING, Offsets, appended_at
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topic_follower import TopicFollower
from tocsin.views.applier import Applier
from tocsin.views.stored_row import TopicWrite
from tocsin.views.view_row import RowRecord

_REMOVES = "removes"
_log = structlog.get_logger()


class ViewTopic(TopicFollower):
    """The topic of one view; see `TopicFollower`."""

    def __init__(self, settings: Settings, view: str) -> None:
        super().__init__(settings, view_job(view), settings.names.view(view))
        self._writer = RecordWriter(settings, EVENT_BYTES, timeout_seconds=10.0)

    @property
    def is_leading(self) -> bool:
        """Return whether it falls to this process to finish windows, switch builds and report freshness."""
        return True

    def follow_for(self, applier: Applier) -> bool:
        """Read on where `applier` is, and let it know the id of the topic; see `follow`."""
        if not self.follow(applier.positions(), applier.topic_id):
            return False
        applier.note_topic(self.topic_id)
        return True

    def write(self, writes: Iterable[TopicWrite]) -> None:
        """Write upserts and deletions to the topic; returns when Kafka has them."""
        for row_write in writes:
            value = None if row_write.row is None else row_write.row.to_record()
            headers = {} if row_write.row is not None else {"headers": {_REMOVES: str(row_write.offset).encode()}}
            self._writer.write(self._reader.name, value, row_write.identity, partition=row_write.partition, **headers)
        self._writer.flush()


class SharedViewTopic(ViewTopic):
    """The topic of one view, of which several processes read some partitions each: those that Kafka assigns to them."""

    _CONFIG: ClassVar[dict[str, Any]] = ViewTopic._CONFIG | SHARING

    def __init__(self, settings: Settings, view: str) -> None:
        super().__init__(settings, view)
        self.partitions: set[int] = set()
        self._all: list[int] = []
        self._applier: Applier | None = None

    @property
    def is_leading(self) -> bool:
        """See `ViewTopic`: whoever has the first partition."""
        return 0 in self.partitions

    def follow_for(self, applier: Applier) -> bool:
        """See `ViewTopic`."""
        if not super().follow_for(applier):
            return False
        if self._applier is None:
            self._reader.share(self._take, self._give_up)
        self._applier = applier
        return True

    def _start(self, offsets: Offsets) -> None:
        self._all = list(offsets)
        self._next = {partition: offsets[partition] for partition in self.partitions}
        self._reader.seek(self._next)

    def _take(self, partitions: list[int]) -> Offsets:
        first, applied = self._ends.bounds(partitions)[0], self._positions(partitions)
        starts = {partition: max(low, applied.get(partition, 0)) for partition, low in first.items()}
        _log.info("partitions taken over", partitions=partitions)
        self.partitions |= {*partitions}
        self._next = self._next | starts
        return starts

    def _give_up(self, partitions: list[int]) -> None:
        _log.info("partitions given up", partitions=partitions)
        self.partitions -= {*partitions}
        self._next = {partition: at for partition, at in self._next.items() if partition in self.partitions}

    def _expect_partitions(self, there: list[int], position: Offsets) -> None:
        del position
        self._all = there  # Kafka assigns new ones by itself

    def _others(self) -> Offsets:
        applied = self._positions([])
        return {partition: applied.get(partition, 0) for partition in self._all if partition not in self.partitions}

    def _positions(self, partitions: list[int]) -> Offsets:
        return {} if self._applier is None else self._applier.positions(partitions)


def read_row_record(message: Message) -> RowRecord:
    """Read what a record of the topic of a view says."""
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
