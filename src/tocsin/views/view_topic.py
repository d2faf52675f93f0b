"""Follow the topic of a view from the offsets that its read model remembers, and write what it should have instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Message

from tocsin.kafka.reader import appended_at
from tocsin.kafka.record_writer import RecordWriter
from tocsin.kafka.topic_follower import TopicFollower
from tocsin.model.names import view_job
from tocsin.model.sizes import EVENT_BYTES
from tocsin.project.settings import Settings
from tocsin.views.applier import Amends, RowRecord

_REMOVES = "removes"


class ViewTopic(TopicFollower):
    """The topic of one view; see `TopicFollower`."""

    def __init__(self, settings: Settings, view: str) -> None:
        """Follow the topic of `view`; nothing is read yet, and Kafka may be away."""
        super().__init__(settings, view_job(view), settings.names.view(view))
        self._writer = RecordWriter(settings, EVENT_BYTES, timeout_seconds=10.0)

    def amend(self, amends: Iterable[Amends]) -> None:
        """Write what the topic should have; returns when Kafka has it."""
        for one in amends:
            value = None if one.row is None else one.row.to_record()
            headers = {} if one.row is not None else {"headers": {_REMOVES: str(one.offset).encode()}}
            self._writer.write(self._reader.name, value, one.identity, partition=one.partition, **headers)
        self._writer.flush()


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
