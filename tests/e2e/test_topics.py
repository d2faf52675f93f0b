"""Topics as the platform needs them, on a real broker; and what a producer meets there."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # as in tocsin.platform.kafka.topics
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.rig.broker import Broker, recreate
from tests.rig.waiting import await_that, patient
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.model.sizes import FINDING_BYTES, QUARANTINE_BYTES, RAW_BYTES
from tocsin.declare.model.source import Source
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.dev.servers.ports import free_ports
from tocsin.ingest.producer import LineProducer
from tocsin.platform.kafka.reporter import Reporter, ReportReader
from tocsin.platform.kafka.topic_follower import TopicFollower
from tocsin.platform.kafka.topics import TopicsReport, ensure_topics, wanted_topics

LOGINS = read_source(Path(__file__).parents[2] / "sources/logins.toml")
DAY = 24 * 3600 * 1000


@pytest.fixture
def settings(tmp_path: Path, broker: Broker) -> Settings:
    return Settings(state=tmp_path, kafka=broker.kafka.model_copy(update={"topic_prefix": f"{tmp_path.name}."}))


def write(settings: Settings, topic: str, *values: str) -> None:
    producer = Producer(settings.kafka.for_librdkafka())
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(patient(30)) == 0


def test_a_follower_notices_a_topic_that_was_recreated_beyond_its_former_length(settings: Settings) -> None:
    """As a table or the applier of a view, which remember offsets and id."""
    topic = settings.names.events("logins")
    ensure_topics(settings, with_partitions(1))
    write(settings, topic, "a", "b")
    with contextlib.closing(TopicFollower(settings, "test", topic)) as follower:
        assert follower.follow({0: 1}), "nobody has noted an id before"
        known = follower.topic_id
        assert [message.value() for message in follower.poll(9, patient(10))] == [b"b"]
        recreate(settings.kafka, topic, 1)
        write(settings, topic, "c", "d", "e")
        with pytest.raises(TransientError, match="was deleted and created again"):  # while it runs
            follower._counted = float("-inf")
            follower.look()
        assert not follower.is_following
        assert not follower.follow({0: 2}, known)
        assert follower.recreated == 1
        assert follower.follow({})
        assert follower.topic_id not in ("", known)
        read = [message.value() for message in until(3, lambda: follower.poll(9, 1.0))]
    assert read == [b"c", b"d", b"e"]


@pytest.mark.parametrize("runs", [True, False])
def test_the_indexer_reads_all_of_a_findings_topic_that_was_recreated(settings: Settings, *, runs: bool) -> None:
    """Kafka removes the offsets of the group with the topic; an indexer that runs may commit them again."""
    topic = settings.names.events("logins")
    ensure_topics(settings, with_partitions(1))
    write(settings, topic, "a", "b")
    with contextlib.closing(TopicFollower(settings, "test", topic)) as follower:
        follower.follow_committed()
        follower.done(until(2, lambda: follower.poll(9, 1.0)))
        follower.commit()
        recreate(settings.kafka, topic, 1)
        write(settings, topic, "c", "d", "e")
        if runs:
            follower._counted = float("-inf")
            with pytest.raises(TransientError, match="was deleted and created again"):
                follower.look()
            follower.follow_committed()
            assert [message.value() for message in until(3, lambda: follower.poll(9, 1.0))] == [b"c", b"d", b"e"]
            assert follower.recreated == 1
        else:
            follower._committed = {}
            follower.commit()
    if not runs:
        with contextlib.closing(TopicFollower(settings, "test", topic)) as follower:
            follower.follow_committed()
            assert [message.value() for message in until(3, lambda: follower.poll(9, 1.0))] == [b"c", b"d", b"e"]
            assert follower.recreated == 1


def until(count: int, read: Callable[[], list[Any]]) -> list[Any]:
    found: list[Any] = []

    def came() -> bool:
        found.extend(read())
        return len(found) >= count

    await_that(came, 30)
    return found


def with_partitions(partitions: int) -> Catalog:
    source: Source = LOGINS.model_copy(update={"partitions": partitions})
    return Catalog(sources={"logins": source})


def admin_of(settings: Settings) -> AdminClient:
    return AdminClient(settings.kafka.for_librdkafka())


def config_of(settings: Settings, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = admin_of(settings)  # has to outlive the answer
    entries = admin.describe_configs([resource])[resource].result()
    return {name: entry.value for name, entry in entries.items()}


def partitions_of(settings: Settings, topic: str) -> int:
    return len(admin_of(settings).list_topics(topic, timeout=60).topics[topic].partitions)


def test_new_topics_can_be_read_at_once(settings: Settings) -> None:
    ensure_topics(settings, with_partitions(30))
    consumer = Consumer(settings.kafka.for_librdkafka() | {"group.id": "x"})
    raw = settings.names.raw("logins")
    assert {consumer.get_watermark_offsets(TopicPartition(raw, number)) for number in range(30)} == {(0, 0)}
    consumer.close()


def test_missing_topics_are_made_as_they_must_be(settings: Settings) -> None:
    names = settings.names
    made = ensure_topics(settings, with_partitions(3))
    all_names = {
        names.raw("logins"),
        names.events("logins"),
        names.quarantine("logins"),
        names.findings,
        names.job_metrics,
    }
    assert (set(made.created), made.grown, made.differences) == (all_names, (), ())
    assert {name: partitions_of(settings, name) for name in all_names} == {
        names.raw("logins"): 3,
        names.events("logins"): 3,
        names.quarantine("logins"): 1,
        names.findings: 4,
        names.job_metrics: 1,
    }
    configs = {name: config_of(settings, name) for name in all_names}
    assert {config["message.timestamp.type"] for config in configs.values()} == {"LogAppendTime"}
    assert {name: int(config["retention.ms"]) // DAY for name, config in configs.items()} == {
        names.raw("logins"): 7,
        names.events("logins"): 7,
        names.quarantine("logins"): 30,
        names.findings: 70,
        names.job_metrics: 7,
    }
    for name, longest in {names.findings: FINDING_BYTES, names.quarantine("logins"): QUARANTINE_BYTES}.items():
        assert int(configs[name]["max.message.bytes"]) == longest
    for name in (names.findings, names.job_metrics):
        assert set(configs[name]["cleanup.policy"].split(",")) == {"compact", "delete"}
    assert ensure_topics(settings, with_partitions(3)) == TopicsReport()


def test_partitions_are_added_and_never_taken_away(settings: Settings) -> None:
    names = settings.names
    ensure_topics(settings, with_partitions(2))
    grown = ensure_topics(settings, with_partitions(5))
    assert grown.grown == tuple(
        f"{n} has grown from 2 to 5 partitions" for n in (names.events("logins"), names.raw("logins"))
    )
    fewer = ensure_topics(settings, with_partitions(1))
    assert (fewer.created, fewer.grown) == ((), ())
    assert fewer.differences == tuple(
        f"{n} has 5 partitions, 1 are declared; partitions cannot be removed"
        for n in (names.events("logins"), names.raw("logins"))
    )
    assert partitions_of(settings, names.raw("logins")) == 5


def test_what_differs_is_told_and_left_alone(settings: Settings) -> None:
    names = settings.names
    theirs = {"retention.ms": str(DAY), "max.message.bytes": str(50 * RAW_BYTES)}
    raw = NewTopic(names.raw("logins"), num_partitions=4, config=theirs)
    admin = admin_of(settings)  # has to outlive the answer
    admin.create_topics([raw])[names.raw("logins")].result()
    found = ensure_topics(settings, with_partitions(4))
    assert set(found.differences) == {
        f"{names.raw('logins')} has retention.ms={DAY}, not {7 * DAY}",
        f"{names.raw('logins')} has message.timestamp.type=CreateTime, not LogAppendTime",
    }
    assert config_of(settings, names.raw("logins"))["retention.ms"] == str(DAY)


def test_kafka_away_is_transient() -> None:
    (port,) = free_ports(1)
    away = Settings(kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}"))
    with pytest.raises(TransientError, match="cannot reach Kafka"):
        ensure_topics(away, with_partitions(1), timeout_seconds=1)


def test_a_line_of_a_megabyte_goes_in_and_a_longer_one_is_refused(settings: Settings) -> None:
    ensure_topics(settings, with_partitions(2))
    with LineProducer(settings, LOGINS) as producer:
        for line in (b"user_id: a | x: 1", b"user_id: a | x: 2", b"\xff" * 1_048_576, b"x" * RAW_BYTES):
            producer.send(line)
    assert (producer.sent, producer.delivered, producer.refused, producer.failed) == (4, 3, 1, 0)
    assert "too large" in (producer.error or "").lower()
    consumer = Consumer(settings.kafka.for_librdkafka() | {"group.id": "g"})
    raw = settings.names.raw("logins")
    consumer.assign([TopicPartition(raw, 0, 0), TopicPartition(raw, 1, 0)])
    try:
        messages = [message for message in (consumer.poll(10) for _ in range(3)) if message is not None]
    finally:
        consumer.close()
    assert {message.key() for message in messages} == {b"a", None}
    assert len({message.partition() for message in messages if message.key() == b"a"}) == 1


def test_unknown_topics_are_not_made_by_accident(settings: Settings) -> None:
    admin = admin_of(settings)  # has to outlive the answer
    assert admin.list_topics("no-such-topic", timeout=60).topics["no-such-topic"].error is not None
    assert "no-such-topic" not in admin.list_topics(timeout=60).topics


def test_a_source_without_topics_is_told(settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r"raw\.logins: does not exist; `tocsin dev up` creates"):
        LineProducer(settings, LOGINS)


def test_every_declared_topic_is_wanted(settings: Settings) -> None:
    assert set(wanted_topics(settings, with_partitions(2))) == set(ensure_topics(settings, with_partitions(2)).created)


def test_reports_of_another_installation_are_left_out(settings: Settings, tmp_path: Path) -> None:
    """As of a process whose settings lead to this broker by mistake."""
    ensure_topics(settings, with_partitions(1))
    reporters = [Reporter(settings, "indexer"), *foreign(settings, tmp_path)]
    try:
        for reporter in reporters:
            await_that(reporter.broker_time, 30)
    finally:
        for reporter in reversed(reporters):
            reporter.close()
    taken: list[JobReport] = []
    reader = ReportReader(settings, taken.append)
    assert {job: report.instance for job, report in reader.latest().items()} == {"indexer": settings.installation_id}
    assert {report.instance for report in taken} == {settings.installation_id}
    reader.close()


def foreign(settings: Settings, tmp_path: Path) -> list[Reporter]:
    other = settings.model_copy(update={"state": tmp_path / "other"})
    return [Reporter(other, job) for job in ("indexer", "detector:never_declared")]
