"""Four thousand hostile records, and each thing that can be wrong with a line, through the real jobs up to the mail.

The tests share the jobs and run in this order: identities can be forged on an empty topic alone.
"""

import base64
import email.policy
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage, Message
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.faults.attack import ADDRESS, BURSTS, Attack, attack
from tests.faults.findings import Differences, Told, expected_notifications
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.load import WINDOW_MICROS, iso, line, now_micros
from tests.rig.observed import DETECT, DETECTOR, INGEST, SOURCE
from tests.rig.waiting import await_that
from tocsin.alerts.store.queries import FindingFilter, list_findings, open_store
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.names import INDEXER, NOTIFIER, detector_job
from tocsin.declare.model.sizes import RAW_BYTES

pytestmark = pytest.mark.long

COUNT = 4_000
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
INJECTION = 'trudy" onerror="alert(0)\r\nBcc: victim@example.com\r\n\r\n<script>alert(1)</script>'


def _json(**fields: object) -> bytes:
    moment = iso(now_micros())
    base = {"user_id": "ann", "timestamp": moment, "ip_address": "192.0.2.1", "action": "login failed", "message": "m"}
    return json.dumps({**base, **fields}).encode()


def _at(moment: str) -> bytes:
    return _json(timestamp=moment)


BAD = {
    b"user_id: \xff\xfe | timestamp: 2026-01-01T00:00:00Z | ip_address: 1 | action: login failed": {"not_utf8"},
    b"user_id: " + b"x" * 1_000_000: {"too_long"},
    _json()[:-20]: {"not_json"},
    b"what is this": {"not_key_value"},
    line("ann", now_micros()).replace(b" | action: login failed", b""): {"missing:action"},
    _json(timestamp="yesterday"): {"wrong_type:timestamp"},
    _json(timestamp=[1, 2]): {"wrong_type:timestamp"},
    _at("9999-01-01T00:00:00Z"): {"time_ahead"},
    _at("1970-01-01T00:00:00Z"): {"time_too_old"},
    _json(user_id=None): {"missing:user_id"},
    line("", now_micros()): {"missing:user_id"},
    b"   ": {"empty"},
}


@pytest.fixture(scope="module")
def one(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(tmp_path_factory.mktemp("bad_input"), broker) as installation:
        (installation.settings.project / "detectors" / f"{ADDRESSES}.py").write_text(_SECOND)
        installation.make_topics()
        installation.start(*JOBS)
        installation.await_ready(*JOBS)
        yield installation


def _events(one: Installation) -> list[dict[str, Any]]:
    return [event for event in one.values(one.settings.names.events(SOURCE)) if "tick" not in event]


def _attack_with(one: Installation, made: Attack) -> None:
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
    _attack_with(one, made)

    def all_read() -> bool:
        assert one.runner.exit_code(INGEST) is None, one.log(INGEST)[-3000:]
        report = one.report(INGEST)
        return report is not None and report.counts.get("records", 0) >= COUNT

    await_that(all_read, 120)
    events, quarantined = _events(one), one.values(names.quarantine(SOURCE))
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


def _send(installation: Installation, folder: Path, lines: list[bytes]) -> str:
    """Send `lines` as a user does, with `tocsin send`; returns what it says."""
    file = folder / "lines.txt"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    command = [sys.executable, "-m", "tocsin.cli", "send", str(file)]
    done = subprocess.run(command, env=installation.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class _Page(HTMLParser):
    """The tags and attributes of a page, as a browser understands it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def _as_a_reader_sees(mail: Message) -> EmailMessage:
    opened = message_from_bytes(mail.as_bytes(), policy=email.policy.default)
    assert isinstance(opened, EmailMessage)
    return opened


def _part(mail: EmailMessage, kind: str) -> str:
    part = mail.get_body(preferencelist=(kind,))
    assert part is not None
    return str(part.get_content())


def _mails_about_trudy(installation: Installation) -> list[Message]:
    return [mail for mail in installation.sink.mails if "trudy" in str(_as_a_reader_sees(mail)["Subject"])]


def test_what_cannot_be_used_waits_in_quarantine_and_what_can_is_found(one: Installation, tmp_path: Path) -> None:
    names = one.settings.names
    refused, known = len(one.values(names.quarantine(SOURCE))), _events(one)
    assert "0 lines" in _send(one, tmp_path, [])

    unknown_field = _json(user_id="ann", shoe_size=43)
    evil = [_json(user_id=INJECTION) for _ in range(101)]
    _send(one, tmp_path, [*BAD, unknown_field, *evil])
    await_that(
        lambda: len(one.values(names.quarantine(SOURCE))) >= refused + len(BAD), 60, lambda: one.log(INGEST)[-3000:]
    )
    await_that(lambda: _mails_about_trudy(one) != [], 120, lambda: Told.of(one))

    waiting = {record["payload_sha256"]: record for record in one.values(names.quarantine(SOURCE))[refused:]}
    assert waiting.keys() == {hashlib.sha256(bad).hexdigest() for bad in BAD}
    for bad, reasons in BAD.items():
        record = waiting[hashlib.sha256(bad).hexdigest()]
        assert set(record["reasons"]) == reasons, bad[:80]
        assert record["payload_length"] == len(bad)
        assert base64.b64decode(record["payload"]) == bad[:262_144]

    events = [event for event in _events(one) if event not in known]
    assert sorted({event["user_id"] for event in events}) == ["ann", INJECTION]
    assert sum(event["user_id"] == "ann" for event in events) == 1, "a field that is not declared is no fault"

    (mail,) = map(_as_a_reader_sees, _mails_about_trudy(one))
    assert mail["Bcc"] is None
    assert mail["To"] == "security@example.com"
    page = _Page()
    page.feed(_part(mail, "html"))
    assert "script" not in page.tags
    assert not {name for name in page.attributes if name.startswith("on")}
    assert "\r" not in mail["Subject"] and "\n" not in mail["Subject"]
