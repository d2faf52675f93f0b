"""A follower: where it begins, when all is done that was there, and how far behind it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.rig.played_kafka import played_kafka
from tests.rig.waiting import await_that
from tocsin.declare.model.errors import TransientError
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.client import TopicIds
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topic_follower import TopicFollower

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
TOPIC = "findings"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with played_kafka(TOPIC) as kafka:
        yield Settings(project=tmp_path, state=tmp_path, kafka=kafka)


def write(settings: Settings, *values: str) -> None:
    with RecordWriter(settings, 1_000) as writer:
        for value in values:
            writer.write(TOPIC, value, partition=0)


def begun(settings: Settings) -> contextlib.closing[TopicFollower]:
    follower = TopicFollower(settings, "test", TOPIC)
    follower.follow_committed()
    return contextlib.closing(follower)


def take(follower: TopicFollower, count: int) -> list[Message]:
    found: list[Message] = []

    def came() -> bool:
        found.extend(follower.poll(9, 0.5))
        return len(found) >= count

    await_that(came, 30)
    return found


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


def test_it_goes_on_behind_what_was_committed_and_not_behind_what_was_only_done(settings: Settings) -> None:
    write(settings, "a", "b")
    with begun(settings) as follower:
        first = take(follower, 2)
        follower.done(first[:1])
        follower.commit()
        follower.done(first[1:])
        follower.look()
        assert follower.lag_records == 0
        assert follower.complete_at is not None
    with begun(settings) as follower:
        assert values(take(follower, 1)) == [b"b"]
        assert follower.recreated == 0


@pytest.mark.parametrize("runs", [True, False])
def test_offsets_that_were_committed_with_another_id_are_of_another_topic(settings: Settings, *, runs: bool) -> None:
    """A follower that runs notices that too, and one that does not know yet may commit them again."""
    write(settings, "a", "b")
    # In a block of its own: the fixture patches it too, and must be the last to take its patch back.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicIds, "of", lambda *_: {TOPIC: "former"})
        with begun(settings) as follower:
            follower.done(take(follower, 2))
            follower.commit()
            patch.setattr(TopicIds, "of", lambda *_: {TOPIC: "later"})
            follower._counted = float("-inf")
            with pytest.raises(TransientError, match="was deleted and created again"):
                follower.look()
            if runs:
                follower.follow_committed()
                assert values(take(follower, 2)) == [b"a", b"b"]
                assert (follower.recreated, follower.topic_id) == (1, "later")
        if not runs:
            with begun(settings) as follower:
                assert values(take(follower, 2)) == [b"a", b"b"]
                assert follower.recreated == 1


def look(follower: TopicFollower, seconds: int, done: int, end: int) -> None:
    follower._next = follower._reached = {0: done}
    follower.is_following = True
    follower._measure_lag(NOON + timedelta(seconds=seconds), {0: end})


def test_complete_moves_on_though_records_keep_coming(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path, state=tmp_path, kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    follower = TopicFollower(settings, "test", TOPIC)
    look(follower, 0, done=0, end=5)
    assert (follower.complete_at, follower.lag_records, follower.lag_seconds) == (None, 5, 0.0)
    look(follower, 1, done=4, end=9)
    assert follower.complete_at is None
    look(follower, 2, done=6, end=12)
    assert follower.complete_at == NOON, "all that was there at the first look"
    assert (follower.lag_records, follower.lag_seconds) == (6, 2.0)
    look(follower, 3, done=12, end=12)
    assert follower.complete_at == NOON + timedelta(seconds=3)
    assert (follower.lag_records, follower.lag_seconds) == (0, 0.0)
