"""Landing from a real Kafka: what is there lands once, and what is missing is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]  # as in ingest.topics

from tests.rig.broker import recreate
from tests.rig.detect_job import DetectJob, Topic
from tests.rig.landing import land
from tests.rig.waiting import await_that, patient
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.source import tick_value
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.history.care import verify
from tocsin.history.landing_ledger import Entry, landing_lock, read_ledger, record
from tocsin.history.places import Places
from tocsin.history.spark.landing import count_by_day
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.platform.lock import LockHeld
from tocsin.spark.batch_session import shared_session

NOW = datetime.now(UTC)


@pytest.fixture(autouse=True, scope="module")
def session() -> Iterator[None]:
    with shared_session():
        yield


def send(topic: Topic, count: int, partition: int = 0) -> None:
    for _ in range(count):
        topic.event("u", NOW, NOW, partition)
    topic.flush()


def admin(job: DetectJob) -> AdminClient:
    """It must live until it has answered, so keep it."""
    return AdminClient(job.settings.kafka.for_librdkafka())


@contextmanager
def kafka_away(job: DetectJob) -> Iterator[Settings]:
    """Settings with a Kafka that never answers; a landing gives it up after a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tocsin.history.spark.landing._TIMEOUT_SECONDS", 1.0)
        yield job.settings.model_copy(update={"kafka": KafkaSettings(bootstrap_servers="127.0.0.1:9")})


def remove_before(job: DetectJob, offset: int) -> None:
    """What retention does to partition 0."""
    client, place = admin(job), TopicPartition(job.settings.names.events("logins"), 0, offset)
    (done,) = client.delete_records([place]).values()
    assert done.result(patient(10)).low_watermark == offset


def offsets(entry: Entry) -> dict[int, tuple[int, int]]:
    return {partition: (span.from_offset, span.to_offset) for partition, span in entry.partitions.items()}


def test_runs_follow_one_another_over_ticks_foreign_records_and_new_partitions(job: DetectJob) -> None:
    topic, source = job.make_topics(), job.source
    send(topic, 3)
    topic.tick(NOW)
    topic.write(b"null", 1)
    topic.flush()
    first = land(job.settings, source)
    assert (first.events, offsets(first)) == (3, {0: (0, 4), 1: (0, 2)})
    assert (first.partitions[0].events, first.partitions[1].unreadable) == (3, 1)
    assert read_ledger(Places.of(job.settings, "logins")).read_through == NOW
    client, name = admin(job), job.settings.names.events("logins")
    client.create_partitions([NewPartitions(name, 3)])[name].result(patient(10))
    topic = Topic(job.settings)  # a producer that knows the new partition
    send(topic, 2, 2)
    second = land(job.settings, source)
    assert (second.events, offsets(second)) == (2, {0: (4, 4), 1: (2, 2), 2: (0, 2)})
    assert read_ledger(Places.of(job.settings, "logins")).read_through is None, "the new partition has no tick yet"
    topic.tick(NOW + timedelta(seconds=1), partitions=3)
    topic.flush()
    land(job.settings, source)
    assert read_ledger(Places.of(job.settings, "logins")).read_through == NOW + timedelta(seconds=1)
    assert verify(job.settings, source, checksums=True) == []


def test_what_retention_removed_is_a_hole_in_the_ledger(job: DetectJob) -> None:
    topic, source = job.make_topics(), job.source
    send(topic, 5)
    land(job.settings, source)
    send(topic, 7)
    remove_before(job, 9)
    entry = land(job.settings, source)
    (hole,) = entry.partitions[0].holes
    assert (hole.from_offset, hole.to_offset, hole.removed, entry.events) == (5, 9, True, 3)
    assert hole.after is not None and hole.before is not None
    assert abs(hole.before - datetime.now(UTC)) < timedelta(minutes=5)
    facts = read_ledger(Places.of(job.settings, "logins")).partitions(NOW.date(), timedelta(hours=1))
    assert (facts[0].rows, facts[0].holes) == (8, (hole,))
    assert verify(job.settings, source) == []


@pytest.mark.parametrize("events", [2, 9])
def test_a_recreated_topic_is_read_from_its_start_however_long_it_is(job: DetectJob, events: int) -> None:
    topic, source = job.make_topics(), job.source
    send(topic, 5)
    topic.tick(NOW)
    topic.flush()
    land(job.settings, source)
    recreate(job.settings.kafka, job.settings.names.events("logins"), 2)
    send(Topic(job.settings), events)
    entry = land(job.settings, source)
    assert (entry.events, offsets(entry)) == (events, {0: (0, events), 1: (0, 0)})
    (hole,) = entry.partitions[0].holes
    assert (hole.is_of_former_topic, hole.to_offset, hole.offsets) == (True, 6, 1)
    assert land(job.settings, source).events == 0
    ledger = read_ledger(Places.of(job.settings, "logins"))
    assert ledger.read_through is None, "no tick of the new topic has come"
    assert ledger.partitions(NOW.date(), timedelta(hours=1))[0].holes == (hole,), "the day that may lack events says so"
    assert verify(job.settings, source) == []


def test_offsets_that_kafka_does_not_give_are_holes(job: DetectJob) -> None:
    topic, source = job.make_topics(), job.source
    send(topic, 3)
    producer = Producer(job.settings.kafka.for_librdkafka() | {"transactional.id": job.settings.names.prefix + "t"})
    producer.init_transactions(patient(30))
    producer.begin_transaction()
    producer.produce(job.settings.names.events("logins"), tick_value(NOW), partition=0)
    producer.commit_transaction(patient(30))  # its mark takes an offset
    send(topic, 2)
    entry = land(job.settings, source)
    assert (entry.events, offsets(entry)[0]) == (5, (0, 7))
    (hole,) = entry.partitions[0].holes
    assert (hole.offsets, hole.removed) == (1, False)
    assert hole.from_offset in (4, 5, 6), "Kafka writes the mark a moment later"
    assert hole.after is not None and hole.before is not None and hole.after <= hole.before


def test_a_ledger_of_before_ids_were_noted_goes_on(job: DetectJob) -> None:
    topic, source = job.make_topics(), job.source
    send(topic, 5)
    entry = land(job.settings, source)
    record(Places.of(job.settings, "logins"), entry.model_copy(update={"topic_id": ""}))
    send(topic, 2)
    assert land(job.settings, source).events == 2


def test_what_is_broken_is_read_again_without_the_entries_from_there_on(job: DetectJob) -> None:
    topic, source = job.make_topics(), job.source
    send(topic, 5)
    entry = land(job.settings, source)
    path = job.settings.history_folder / entry.files[0].path
    path.write_bytes(b"broken")
    assert any(str(path) in fault for fault in verify(job.settings, source))
    send(topic, 5)
    (Places.of(job.settings, "logins").ledger / f"{entry.run}.json").unlink()
    assert land(job.settings, source).events == 10
    assert verify(job.settings, source, checksums=True) == []


def test_records_are_read_as_a_detector_reads_them(job: DetectJob) -> None:
    declared = job.settings.project / "sources" / "logins.toml"
    kinds = {"i": "int", "l": "bigint", "d": "double", "b": "boolean", "t": "timestamp", "s": "string"}
    columns = "\n".join(f'{name} = "{kind}"' for name, kind in kinds.items())
    declared.write_text(declared.read_text().replace("[optional]", f"[optional]\n{columns}"))
    topic, source = job.make_topics(), job.source
    at = "2026-11-19T12:00:00.123456Z"
    identity = {"raw_topic": "raw.logins", "raw_partition": 0, "event_time": at, "ingested_at": at, "user_id": "u"}
    odd: list[dict[str, Any]] = [
        {"i": 7, "l": 2**40, "d": 1.0e10, "b": True, "t": at, "s": 'a"\\\n\u2028\ud83d\ude00'},
        {"i": -(2**31), "l": -(2**63), "d": 4.9e-324, "b": False, "t": "1971-01-01T00:00:00.000000Z", "s": ""},
        {"i": None, "l": None, "d": -0.0, "b": None, "t": None, "s": None},
        {},
        {"i": "7", "d": "x", "b": "true", "l": 1},
        {"s": {"a": [1, "x"]}, "unknown": 1},
    ]
    unreadable = [b"", b"null", b"{", b'{"raw_topic":"raw.logins"}', b"\xff\xfe", b'{"tick":true}']
    for number, one in enumerate(odd):
        topic.write(json.dumps(identity | {"raw_offset": number} | one).encode(), 0)
    for value in unreadable:
        topic.write(value, 0)
    topic.flush()
    entry = land(job.settings, source)
    assert (entry.events, entry.partitions[0].unreadable) == (len(odd), len(unreadable))
    rows = pq.read_table(job.settings.history_folder / entry.files[0].path, partitioning=None).to_pylist()
    found = [tuple(row[name] for name in kinds) for row in sorted(rows, key=lambda row: row["raw_offset"])]
    moment = datetime.fromisoformat(at)
    assert found == [
        (7, 2**40, 1.0e10, True, moment, 'a"\\\n\u2028\U0001f600'),
        (-(2**31), -(2**63), 4.9e-324, False, datetime(1971, 1, 1, tzinfo=UTC), ""),
        (None, None, -0.0, None, None, None),
        (None,) * 6,
        (None, 1, None, None, None, None),
        (None, None, None, None, None, '{"a":[1,"x"]}'),
    ]


def quarantined(job: DetectJob, count: int) -> None:
    producer = Producer(job.settings.kafka.for_librdkafka())
    for _ in range(count):
        producer.produce(job.settings.names.quarantine("logins"), b"{}")
    assert producer.flush(30) == 0


def test_what_went_to_quarantine_is_counted_once_whatever_becomes_of_the_run(job: DetectJob) -> None:
    send(job.make_topics(), 1)
    quarantined(job, 3)
    first = land(job.settings, job.source)
    quarantined(job, 2)
    with kafka_away(job) as away, pytest.raises(TransientError):
        land(away, job.source)
    second = land(job.settings, job.source)
    assert [one.quarantined and one.quarantined.positions for one in (first, second)] == [{0: 3}, {0: 5}]
    assert [one.quarantined and sum(one.quarantined.days.values()) for one in (first, second)] == [3, 2]
    ledger = read_ledger(Places.of(job.settings, "logins"))
    now = datetime.now(UTC).date()
    assert sum(ledger.quarantined(day) for day in {NOW.date(), now}) == 5
    client, name = admin(job), job.settings.names.quarantine("logins")
    client.delete_topics([name])[name].result(patient(10))
    await_that(lambda: name not in client.list_topics(timeout=60).topics, 20)
    ensure_topics(job.settings, read_catalog(job.settings.project))
    quarantined(job, 1)
    anew = land(job.settings, job.source).quarantined
    assert anew is not None
    assert (anew.positions, sum(anew.days.values())) == ({0: 1}, 1), "its begin is counted from, and the run goes on"


def test_records_are_told_by_their_day_without_being_read(job: DetectJob) -> None:
    client, name, midnight = admin(job), job.settings.names.prefix + "days", datetime(2026, 1, 3, tzinfo=UTC)
    # Here the times are the producer's, so that a test need not wait for a midnight.
    wanted = NewTopic(name, 2, 1, config={"message.timestamp.type": "CreateTime", "retention.ms": "-1"})
    client.create_topics([wanted])[name].result(patient(10))
    producer = Producer(job.settings.kafka.for_librdkafka())
    second = timedelta(seconds=1)
    for partition, moment in [
        (0, midnight - timedelta(days=40)), (0, midnight - second), (0, midnight), (0, midnight + timedelta(days=2)),
        (1, midnight - second), (1, midnight + timedelta(days=1, hours=23)),
    ]:  # fmt: skip
        producer.produce(name, b"{}", partition=partition, timestamp=int(moment.timestamp() * 1000))
    assert producer.flush(30) == 0
    with TopicReader(job.settings, "days", name) as reader:
        bounds, last = reader.bounds(), date(2026, 1, 4)
        days = {first: count_by_day(reader, *bounds, date(2026, 1, first), last) for first in (1, 2, 4)}
    assert days[1] == {date(2026, 1, 1): 1, date(2026, 1, 2): 2, date(2026, 1, 3): 1, date(2026, 1, 4): 2}
    assert days[2] == {date(2026, 1, 2): 3, date(2026, 1, 3): 1, date(2026, 1, 4): 2}, "what is older counts as first"
    assert days[4] == {date(2026, 1, 4): 6}


def test_one_at_a_time_and_kafka_away(job: DetectJob) -> None:
    topic, source = job.make_topics(), job.source
    send(topic, 1)
    with landing_lock(job.settings, "logins"), pytest.raises(LockHeld):
        land(job.settings, source)
    with kafka_away(job) as away, pytest.raises(TransientError, match="cannot reach Kafka"):
        land(away, source)
    assert read_ledger(Places.of(job.settings, "logins")).entries == ()
    left = job.settings.history_folder / "landing" / "logins" / "reading" / "left.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"what a killed run has left")
    assert land(job.settings, source).events == 1
    assert not left.parent.exists()
