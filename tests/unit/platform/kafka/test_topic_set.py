"""Several topics read as one, in a Kafka that librdkafka plays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Producer

from tests.rig.played_kafka import played_kafka
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.topic_set import TopicSet, as_json, lag_of, partition_of, place_of, position_of

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
