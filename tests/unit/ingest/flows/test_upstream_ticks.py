"""The tick that a flow may write speaks of all sources that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from tocsin.declare.model.source import tick_value
from tocsin.ingest.flows.spark.flow_run import UpstreamTicks
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet, partition_of, place_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
A0, B0 = place_of("events.a", 0), place_of("events.b", 0)
EVENT = b'{"ingested_at":"2026-01-01T12:00:00.000000Z"}'


class Topics:
    """Records of two topics."""

    names = ("events.a", "events.b")

    def __init__(self) -> None:
        self.records: dict[Place, list[bytes]] = {A0: [], B0: []}

    def bounds(self) -> tuple[Position, Position]:
        return dict.fromkeys(self.records, 0), {place: len(values) for place, values in self.records.items()}

    def read(self, starts: Position, ends: Position) -> Iterator[Any]:
        for place, start in starts.items():
            topic, partition = partition_of(place)
            for offset in range(start, ends[place]):
                told = {"topic": topic, "partition": partition, "offset": offset, "value": self.records[place][offset]}
                yield SimpleNamespace(**{key: lambda one=one: one for key, one in told.items()})


def test_a_flow_of_two_sources_goes_by_the_one_that_is_behind() -> None:
    topics = Topics()
    ask = UpstreamTicks(cast(TopicSet, topics))
    topics.records[A0] += [EVENT, tick_value(NOON)]
    assert ask() is None, "nothing is known of the other"
    topics.records[B0] += [tick_value(NOON - timedelta(seconds=5)), EVENT]
    assert ask() == (NOON - timedelta(seconds=5), {A0: 1, B0: 2})
    topics.records[B0].append(tick_value(NOON + timedelta(seconds=5)))
    assert ask() == (NOON, {A0: 1, B0: 2})
