from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.rig.broker import Broker
from tests.rig.waiting import patient


@pytest.fixture
def own(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "kafka")


def _cluster(broker: Broker) -> str:
    return str(AdminClient(broker.kafka.for_librdkafka()).list_topics(timeout=60).cluster_id)


def _produce(broker: Broker, topic: str, value: bytes) -> None:
    producer = Producer(broker.kafka.for_librdkafka())
    producer.produce(topic, value)
    assert producer.flush(10) == 0


def _read(broker: Broker, topic: str, count: int) -> list[bytes]:
    config = {"group.id": "reader", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**broker.kafka.for_librdkafka(), **config})
    try:
        consumer.subscribe([topic])
        return [message.value() or b"" for message in consumer.consume(count, timeout=20)]
    finally:
        consumer.close()


def test_records_and_the_cluster_id_outlive_a_stop_and_a_crash(own: Broker) -> None:
    try:
        own.start()
        cluster = _cluster(own)
        admin = AdminClient(own.kafka.for_librdkafka())
        admin.create_topics([NewTopic("kept", 2, 1)])["kept"].result(patient(10))
        _produce(own, "kept", b"before the stop")
        own.stop()
        own.start()
        _produce(own, "kept", b"before the crash")
        own.kill()
        own.start()
        assert _cluster(own) == cluster
        assert sorted(_read(own, "kept", 2)) == [b"before the crash", b"before the stop"]
    finally:
        own.kill()


def test_unknown_topics_are_not_made_by_accident(broker: Broker) -> None:
    known = AdminClient(broker.kafka.for_librdkafka()).list_topics("no-such-topic", timeout=60)
    assert known.topics["no-such-topic"].error is not None
    assert "no-such-topic" not in AdminClient(broker.kafka.for_librdkafka()).list_topics(timeout=60).topics


def test_the_broker_logs_what_it_does(broker: Broker) -> None:
    assert "Kafka Server started" in broker.log.read_text()
