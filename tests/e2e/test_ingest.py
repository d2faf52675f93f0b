"""The ingest job as it is run, on a real broker: what goes in comes out, whatever happens meanwhile."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # as in ingest.topics
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from tests.rig.broker import Broker
from tests.rig.ingest_topics import WAIT, Identity, Topics, place
from tests.rig.installation import Installation
from tests.rig.observed import INGEST
from tests.rig.waiting import await_that
from tocsin.dev.generator import Line, Traffic
from tocsin.ingest.parsing_rules import reason_class
from tocsin.ingest.quarantine import Selection, find_quarantined, list_quarantined, replay
from tocsin.model.job_report import JobState
from tocsin.model.names import detector_job
from tocsin.model.sizes import RAW_BYTES
from tocsin.project.source_file import read_source
from tocsin.runtime.reporter import Reporter


@pytest.fixture
def installation(tmp_path: Path, broker: Broker) -> Iterator[Installation]:
    with Installation(tmp_path, broker) as one:
        yield one


def traffic(seconds: float = 10, **more: Any) -> list[Line]:
    """Lines of the last seconds, with bad ones."""
    return list(Traffic(start=datetime.now(UTC) - timedelta(seconds=seconds), seconds=seconds, **more).lines())


def users(events: Iterable[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """What happened to whom, each event once."""
    once = {place(event): event for event in events}
    return Counter((event["user_id"], event["timestamp"]) for event in once.values())


def expected(lines: Iterable[Line]) -> Counter[tuple[str, str]]:
    good = [line for line in lines if line.user is not None]
    return Counter((line.user or "", line.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")) for line in good)


def test_routes_counts_ticks_and_replays(installation: Installation) -> None:
    topics, settings = Topics(installation), installation.settings
    installation.make_topics()
    leave_a_first_batch_that_was_killed(installation)
    installation.start(INGEST)
    installation.await_ready(INGEST)
    await_that(lambda: len(topics.ticks()) == 2, WAIT, lambda: "an empty topic does not tick")

    lines = topics.send(traffic(bad_share=0.1, rate=60))
    bad = [line for line in lines if line.reason is not None]
    topics.await_all()
    assert users(topics.events()) == expected(lines)
    assert {event["raw_partition"] for event in topics.events()} == {0, 1}

    source = installation.catalog.source("logins")
    waiting = list_quarantined(settings, source, Selection(limit=1_000))
    assert sorted(record.payload_sha256 or "" for record in waiting) == sorted(_sha256(line.value) for line in bad)
    assert {record.payload or b"" for record in waiting} == {line.value for line in bad}
    assert all(a.quarantined_at >= b.quarantined_at for a, b in pairwise(waiting))
    by_hash = {_sha256(line.value): line.reason for line in bad}
    assert all(str(by_hash[r.payload_sha256 or ""]) in map(reason_class, r.reasons) for r in waiting)
    assert find_quarantined(settings, source, waiting[3].id) == waiting[3]
    assert list_quarantined(settings, source, Selection(limit=2)) == waiting[:2]
    aged = list_quarantined(settings, source, Selection(reason="time_ahead"))
    assert aged == [record for record in waiting if record.reasons == ("time_ahead",)]

    await_that(lambda: _counts(installation).get("records") == len(lines), WAIT, lambda: _counts(installation))
    counts = _counts(installation)
    assert (counts["quarantined"], counts["not_utf8"]) == (len(bad), sum(line.reason == "not_utf8" for line in bad))

    before = topics.ticks()
    await_that(
        lambda: all(topics.ticks()[p] > n for p, n in before.items()), WAIT, lambda: "it does not tick when idle"
    )
    topics.assert_ticks_are_true()
    assert installation.stop(INGEST) == 0


def test_a_replay_keeps_its_time_and_identity_and_says_which_rules_changed(installation: Installation) -> None:
    topics, settings = Topics(installation), installation.settings
    installation.make_topics()
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    curable = [f"user_id: u{n} | timestamp: {at} | action: login failed".encode() for n in range(3)]
    hopeless = b"\xff" * 300_000
    topics.send(Line(datetime.now(UTC), value) for value in curable)
    key = b"k" * 1_300_000  # as base64, with payload and headers, longer than a record in quarantine may be
    producer = Producer(settings.kafka.for_librdkafka() | {"message.max.bytes": RAW_BYTES})
    producer.produce(topics.raw, hopeless, key=key, headers=[("many", b"\xff" * 300_000)])
    assert producer.flush(30) == 0
    installation.start(INGEST)
    topics.await_all()
    assert topics.events() == []
    path = settings.project / "sources/logins.toml"
    before = list_quarantined(settings, read_source(path), Selection())
    assert installation.stop(INGEST) == 0

    text = path.read_text().replace('ip_address = "string"\n', "", 1)
    path.write_text(text.replace("[optional]\n", '[optional]\nip_address = "string"\n'))
    source = read_source(path)
    result = replay(settings, source, before)
    replay(settings, source, before)
    assert (len(result.replayed), result.skipped, result.changed) == (4, {}, {"schema"})
    installation.start(INGEST)
    await_that(lambda: len(topics.events()) == 6, WAIT, topics.events)
    origins = {(r.origin.partition, r.origin.offset): r.origin.timestamp for r in before if not r.truncated}
    assert {place(event): datetime.fromisoformat(event["ingested_at"]) for event in topics.events()} == origins
    assert users(topics.events()) == Counter({(f"u{n}", at): 1 for n in range(3)})

    await_that(
        lambda: len(list_quarantined(settings, source, Selection())) == 6, WAIT, lambda: "the hopeless one is gone"
    )
    again = list_quarantined(settings, source, Selection(limit=2))
    assert {(r.replays, r.reasons, r.payload_sha256) for r in again} == {(1, ("too_long",), _sha256(hopeless))}
    assert {r.cut for r in (*again, *before) if r.truncated} == {("payload", "key", "headers")}
    assert {r.raw_key_sha256 for r in again} == {_sha256(key)}
    assert {r.origin for r in again} == {r.origin for r in before if r.truncated}
    assert replay(settings, source, again[:1]).changed == set()


def test_kill_9_under_load_loses_nothing(installation: Installation) -> None:
    topics = Topics(installation)
    installation.make_topics()
    installation.start(INGEST)
    sent: list[Line] = []
    for what in ("all", "jvm", "python"):
        installation.await_ready(INGEST)
        start = len(topics.processed())
        endless = Traffic(start=datetime.now(UTC), rate=200, bad_share=0.05, seed=len(sent)).lines()
        load = islice(endless, 400)
        sent += topics.send(islice(load, 200))
        await_that(lambda least=start: len(topics.processed()) > least, WAIT, lambda: "nothing comes out")  # type: ignore[misc]  # mypy: no lambda with a default
        sent += topics.send(load)
        installation.kill(INGEST, what)
        installation.await_end(INGEST)
        installation.start(INGEST)
    topics.await_all()
    assert users(topics.events()) == expected(sent)
    repeated = Counter(place(event) for event in topics.events())
    values: dict[Identity, str] = {}
    for event in topics.events():
        assert values.setdefault(place(event), json.dumps(event)) == json.dumps(event), "a repeat differs"
    assert repeated.keys() == values.keys()
    topics.assert_ticks_are_true()


def test_added_partitions_are_read(installation: Installation) -> None:
    topics = Topics(installation)
    installation.make_topics()
    installation.start(INGEST)
    installation.await_ready(INGEST)
    sent = topics.send(traffic(2))
    admin = AdminClient(installation.settings.kafka.for_librdkafka())
    admin.create_partitions([NewPartitions(topics.raw, 5)])[topics.raw].result()
    for partition in range(5):
        sent += topics.send_to(partition, traffic(2, seed=partition))
    topics.await_all()
    assert {partition for partition, _ in topics.processed()} == set(range(5))
    assert users(topics.events()) == expected(sent)
    assert "has grown from 2 to 5 partitions" in installation.log(INGEST)
    for partition in range(5):
        sent += topics.send_to(partition, traffic(2, seed=10 + partition))
    topics.await_all()
    topics.assert_ticks_are_true()
    sent = a_record_that_ends_the_query_is_set_aside(installation, topics, sent)
    assert users(topics.events()) == expected(sent)


def a_record_that_ends_the_query_is_set_aside(
    installation: Installation, topics: Topics, sent: list[Line]
) -> list[Line]:
    """An events topic that takes less than it should refuses one record: only that one is missing, after a restart too.

    Returns `sent` and what was sent here and came out as events.
    """
    settings = installation.settings
    admin, at = AdminClient(settings.kafka.for_librdkafka()), datetime.now(UTC)
    entry = ConfigEntry("max.message.bytes", "50000", incremental_operation=AlterConfigOpType.SET)
    less = ConfigResource(ResourceType.TOPIC, topics.events_topic, incremental_configs=[entry])
    admin.incremental_alter_configs([less])[less].result()
    poison = f"user_id: eve | timestamp: {at:%Y-%m-%dT%H:%M:%S.%fZ} | ip_address: 192.0.2.1 | action: {'x' * 100_000}"
    for lines in (traffic(2, seed=20), [Line(at, poison.encode())], traffic(2, seed=21)):
        topics.send_to(3, lines)
        sent += [line for line in lines if line.value != poison.encode()]
    topics.await_all()
    source = installation.catalog.source("logins")
    (record,) = list_quarantined(settings, source, Selection(reason="set_aside"))
    assert (record.payload, record.origin.partition) == (poison.encode(), 3)
    assert "RecordTooLargeException" in record.error
    await_that(lambda: _counts(installation).get("set_aside") == 1, WAIT, lambda: _state(installation))
    assert f"1 record was set aside, the last is {record.origin}" in _said_reason(installation)
    assert installation.stop(INGEST) == 0
    installation.start(INGEST)
    more = traffic(2, seed=22)
    topics.send_to(3, more)
    topics.await_all()
    assert len(list_quarantined(settings, source, Selection(reason="set_aside"))) == 1
    await_that(lambda: _counts(installation).get("set_aside") == 1, WAIT, lambda: _state(installation))
    return sent + more


def test_records_removed_unread_are_told_and_passed_over(installation: Installation) -> None:
    """Retention that is shorter than an outage costs the records that it removed, and no others."""
    topics = Topics(installation)
    installation.make_topics()
    installation.start(INGEST)
    for partition in (0, 1):
        topics.send_to(partition, traffic(2))
    topics.await_all()
    assert installation.stop(INGEST) == 0
    read = topics.processed()
    for partition in (0, 1):
        topics.send_to(partition, traffic(5, seed=partition))
    ends = Counter(partition for partition, _ in topics.appended())
    admin = AdminClient(installation.settings.kafka.for_librdkafka())
    cut = TopicPartition(topics.raw, 0, ends[0] - 30)
    (future,) = admin.delete_records([cut]).values()
    assert future.result().low_watermark == ends[0] - 30
    installation.start(INGEST)
    topics.await_all()
    removed = {(0, offset) for offset in range(ends[0] - 30)} - read
    await_that(lambda: _counts(installation).get("removed_unread") == len(removed), WAIT, lambda: _state(installation))
    topics.send_to(0, traffic(2, seed=9))
    topics.await_all()
    await_that(lambda: installation.reports(INGEST)[-1].mode == "real-time", WAIT, lambda: _state(installation))
    assert not removed & topics.processed()


def test_waits_for_detectors_before_it_reads_a_backlog(installation: Installation) -> None:
    topics, settings = Topics(installation), installation.settings
    installation.make_topics()
    topics.send(traffic())
    detector = Reporter(settings, detector_job("failed_logins"))
    try:
        detector.update(state=JobState.RUNNING, delay_seconds=12.0)
        time.sleep(settings_lateness(installation) + 1)  # the backlog has to become older than that
        installation.start(INGEST)
        await_that(
            lambda: _said(installation, "waits until detector:failed_logins"), WAIT, lambda: _state(installation)
        )
        report = installation.reports(INGEST)[-1]
        assert (report.state, report.lag_seconds > 10) == (JobState.DRAINING, True)
        assert topics.processed() == set()
        detector.update(state=JobState.DRAINING, delay_seconds=report.lag_seconds + 60)
        topics.await_all()
        await_that(lambda: installation.state(INGEST) is JobState.RUNNING, WAIT, lambda: _state(installation))
    finally:
        detector.close()


def leave_a_first_batch_that_was_killed(installation: Installation) -> None:
    """What a kill leaves while Spark writes the offsets of its first batch; Spark itself refuses to start over it."""
    query = installation.settings.checkpoint(INGEST) / "query"
    (query / "offsets").mkdir(parents=True)
    (query / "offsets/.0.66e9130c-f0c7-4a20-ac97-ee8d6cd89ab1.tmp").touch()
    (query / "metadata").write_text('{"id":"1abc2638-82f5-4a05-9d2a-385d61baeda8"}')


def settings_lateness(installation: Installation) -> float:
    return installation.catalog.source("logins").lateness.total_seconds()


def _counts(installation: Installation) -> dict[str, float]:
    report = installation.report(INGEST)
    return {} if report is None else report.counts


def _state(installation: Installation) -> str:
    return f"{installation.report(INGEST)}\n{installation.log(INGEST)[-3_000:]}"


def _said_reason(installation: Installation) -> str:
    report = installation.report(INGEST)
    return "" if report is None else report.reason


def _said(installation: Installation, text: str) -> bool:
    report = installation.report(INGEST)
    return report is not None and text in report.reason


def _sha256(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
