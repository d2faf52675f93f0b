"""Ten thousand hostile records through the real jobs: none ends, none is lost, and the innocent get their alerts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.faults.attack import ADDRESS, BURSTS, Attack, attack
from tests.faults.findings import Differences, Told, expected_notifications
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.load import WINDOW_MICROS, now_micros
from tests.rig.observed import DETECT, DETECTOR, INGEST, SOURCE
from tests.rig.waiting import await_that
from tocsin.alerts.store.queries import FindingFilter, list_findings, open_store
from tocsin.model.finding import Finding
from tocsin.model.names import INDEXER, NOTIFIER, detector_job
from tocsin.model.sizes import RAW_BYTES

COUNT = 10_000
ADDRESSES = "failures_by_address"
JOBS = (INGEST, DETECT, detector_job(ADDRESSES), INDEXER, NOTIFIER)
_SECOND = """\"\"\"Failed logins from one address.\"\"\"

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, detector


@detector(
    source="logins",
    entity="ip_address",
    window="10 seconds",
    levels=Levels(email=394),
    owner="network@example.com",
    runbook="docs/runbooks/failed_logins.md",
    stage="shadow",
)
def detect(events: DataFrame) -> DataFrame:
    failures = events.where("action = 'login failed'")
    return failures.groupBy("window", "ip_address").agg(F.count("*").alias("score"))
"""


@pytest.fixture
def one(broker: Broker, tmp_path: Path) -> Iterator[Installation]:
    with Installation(tmp_path, broker) as installation:
        (installation.settings.project / "detectors" / f"{ADDRESSES}.py").write_text(_SECOND)
        installation.make_topics()
        installation.start(*JOBS)
        installation.await_ready(*JOBS)
        yield installation


def _send(one: Installation, made: Attack) -> None:
    config = one.settings.kafka.for_librdkafka() | {"message.max.bytes": RAW_BYTES, "linger.ms": 5}
    # In order, or no identity could be forged beforehand.
    producer = Producer(config | {"enable.idempotence": True})
    for record in made.records:
        topic = one.settings.names.raw(SOURCE)
        producer.produce(topic, record.value, record.key, record.partition, headers=list(record.headers))
        producer.poll(0)
    assert producer.flush(60) == 0


def _findings(one: Installation, detector: str) -> list[Finding]:
    records = one.read(one.settings.names.findings)
    found = [Finding.from_record(record.value(), "findings", 0, 0) for record in records]
    return [finding for finding in found if finding.detector == detector]


def test_hostile_records_end_no_job_lose_no_record_and_hide_no_innocent_user(one: Installation) -> None:
    await_that(lambda: 3_000_000 < now_micros() % WINDOW_MICROS < 5_000_000, 15)
    names = one.settings.names
    made = attack(7, COUNT, now_micros(), names.raw(SOURCE))
    leaders = {job: one.leader(job) for job in JOBS}
    _send(one, made)

    def kept() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
        events = [event for event in one.values(names.events(SOURCE)) if "tick" not in event]
        return events, one.values(names.quarantine(SOURCE))

    def all_kept() -> bool:
        assert one.runner.exit_code(INGEST) is None, one.log(INGEST)[-3000:]
        return sum(map(len, kept())) >= COUNT

    await_that(all_kept, 120)
    events, quarantined = kept()
    assert len(events) + len(quarantined) == COUNT == len(made.records)
    assert len(events) > 1_000 < len(quarantined)

    def differences() -> Differences:
        mine = [finding for finding in _findings(one, DETECTOR) if finding.entity["user_id"] in BURSTS]
        return Differences.between(made.truth, mine)

    await_that(lambda: differences() == Differences([], [], []), 60, differences)
    of_address = [finding.score for finding in _findings(one, ADDRESSES) if finding.entity["ip_address"] == ADDRESS]
    assert set(of_address) == {sum(BURSTS.values())}
    long = {finding.score: finding for finding in _findings(one, DETECTOR) if finding.entity["user_id"][:1] == "\x01"}
    assert max(long) == 60
    assert max(len(finding.to_json()) for finding in long.values()) < 5_000
    wanted = expected_notifications(made.truth.findings())

    def all_told() -> bool:
        sent = Told.of(one).sent
        return all(sent.get(user) == [kind] for user, kind in wanted.items())

    await_that(all_told, 90)
    store = open_store(one.settings)
    stored = list_findings(store, FindingFilter(limit=10_000))
    store.close()
    assert {finding.finding_id for finding in _findings(one, DETECTOR)} <= {one.finding.finding_id for one in stored}
    for job, leader in leaders.items():
        assert one.runner.exit_code(job) is None, one.log(job)[-3000:]
        assert leader.is_running()
