"""Writing to topics, following one, and reading several as one, in a Kafka that librdkafka plays."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from tests.rig.played_kafka import played_kafka, written
from tests.rig.waiting import await_that
from tocsin.declare.model.errors import TransientError
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.client import TopicIds
from tocsin.platform.kafka.record_writer import PROMPT, RecordWriter
from tocsin.platform.kafka.topic_follower import TopicFollower
from tocsin.platform.kafka.topic_set import TopicSet, as_json, lag_of, partition_of, place_of, position_of

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
TOPIC = "findings"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with played_kafka(TOPIC) as kafka:
        yield Settings(project=tmp_path, state=tmp_path, kafka=kafka)


def write(settings: Settings, *values: str) -> None:
    with RecordWriter(settings, 1_000, config=PROMPT) as writer:
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


# --- several topics ---------------------------------------------------------------------------------------------------


NAMES = ("t.events.logins", "t.events.resets")


def test_a_place_names_topic_and_partition() -> None:
    place = place_of("t.events.logins", 12)
    assert (place, partition_of(place)) == ("t.events.logins/12", ("t.events.logins", 12))
    position = position_of({"a": {"0": 5, "10": 7}, "b": {"0": 1}})
    assert position == {"a/0": 5, "a/10": 7, "b/0": 1}
    assert as_json(position) == '{"a": {"0": 5, "10": 7}, "b": {"0": 1}}'


def test_the_records_of_all_topics_count_and_each_has_its_place(tmp_path: Path) -> None:
    with played_kafka(*NAMES) as kafka:
        settings = Settings(state=tmp_path, kafka=kafka)
        producer = Producer(kafka.for_librdkafka())
        for topic, partition, count in ((NAMES[0], 0, 3), (NAMES[0], 3, 1), (NAMES[1], 0, 2)):
            for number in range(count):
                producer.produce(topic, b"%d" % number, partition=partition)
        assert producer.flush(10) == 0
        with TopicSet(settings, "test", NAMES) as topics:
            assert len(topics.partitions()) == 8
            first, ends = topics.bounds()
            assert set(first.values()) == {0}
            read = {place: end for place, end in ends.items() if end}
            logins, resets = place_of(NAMES[0], 0), place_of(NAMES[1], 0)
            assert read == {logins: 3, place_of(NAMES[0], 3): 1, resets: 2}
            assert [message.value() for message in topics.records(resets, 1, 2)] == [b"1"]
            assert sorted((m.topic(), m.offset()) for m in topics.read(first, ends)) == [
                (NAMES[0], 0), (NAMES[0], 0), (NAMES[0], 1), (NAMES[0], 2), (NAMES[1], 0), (NAMES[1], 1),
            ]  # fmt: skip
            now = datetime.now(UTC)
            came = {logins: now - timedelta(seconds=50), resets: now - timedelta(seconds=500)}
            position = first | {resets: 1, place_of(NAMES[0], 3): 1}
            records, seconds = lag_of(
                topics, position, ends, lambda m: came[place_of(m.topic() or "", m.partition() or 0)]
            )
            assert (records, 500 <= seconds < 560) == (4, True), "three of the one topic, one of the other"
            assert lag_of(topics, {logins: 3}, ends, lambda _: None) == (0, 0.0), "the job reads nothing else"


# --- writing ----------------------------------------------------------------------------------------------------------


LONGEST = 1_000


@pytest.fixture
def without_kafka(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path, kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1"))


def test_records_are_there_when_the_writer_is_closed_and_one_that_is_too_long_is_refused(settings: Settings) -> None:
    told: list[int | None] = []
    with RecordWriter(settings, LONGEST) as writer:
        assert writer.write(TOPIC, b"a", "k", partition=0)
        assert not writer.write(TOPIC, b"x" * (LONGEST + 1), partition=0)
        assert writer.write(TOPIC, "b", partition=0, on_delivery=lambda error, message: told.append(message.offset()))
        assert writer.write(TOPIC, b"c", partition=0)
    assert written(settings, TOPIC) == [(b"k", b"a"), (None, b"b"), (None, b"c")]
    assert told == [1], "who hears of a record itself counts it itself"
    assert (writer.sent, writer.delivered, writer.refused, writer.failed) == (4, 2, 1, 0)
    assert "too large" in (writer.error or "")


def test_records_that_were_lost_are_told_once(without_kafka: Settings) -> None:
    writer = RecordWriter(without_kafka, LONGEST, timeout_seconds=0.1)
    writer.write(TOPIC, b"a")
    with pytest.raises(TransientError, match="1 of 1 records did not reach Kafka at 127"):
        writer.flush(10)
    writer.flush(10)
    assert (writer.sent, writer.delivered, writer.failed) == (1, 0, 1)


def test_a_kafka_that_takes_nothing_is_not_waited_for_longer_than_was_said(without_kafka: Settings) -> None:
    full = {"queue.buffering.max.messages": 1, "message.timeout.ms": 60_000}
    writer = RecordWriter(without_kafka, LONGEST, timeout_seconds=0.1, config=full)
    writer.write(TOPIC, b"a")
    with pytest.raises(TransientError, match="Kafka accepts no records for findings"):
        writer.write(TOPIC, b"b")


def test_an_error_of_the_writers_user_is_not_hidden_by_lost_records(without_kafka: Settings) -> None:
    with pytest.raises(ZeroDivisionError), RecordWriter(without_kafka, LONGEST, timeout_seconds=0.1) as writer:
        writer.write(TOPIC, b"a")
        raise ZeroDivisionError
