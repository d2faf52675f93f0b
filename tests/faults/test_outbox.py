"""The mail server and the alerts DB go away: what waits is told, and nothing is lost or sent twice."""

import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.faults.findings import Told
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.observed import DETECTOR
from tests.rig.small_disk import small_disk
from tests.rig.waiting import await_that
from tocsin.declare.model.finding import Finding, finding_id
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import INDEXER, NOTIFIER


@pytest.fixture(scope="module")
def one(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Indexer and notifier at work; findings come from the tests, each of which has users of its own."""
    with Installation(tmp_path_factory.mktemp("outbox"), broker) as installation:
        installation.make_topics()
        installation.start(INDEXER, NOTIFIER)
        installation.await_ready(INDEXER, NOTIFIER)
        yield installation


def _urgent(installation: Installation, user: str, score: float = 101) -> None:
    """Write a finding of `user` in the present window, as the detect job does."""
    now = datetime.now(UTC)
    start = now - timedelta(seconds=now.second % 10, microseconds=now.microsecond)
    end, entity = start + timedelta(seconds=10), {"user_id": user}
    finding = Finding(
        finding_id=finding_id(DETECTOR, entity, start, end), detector=DETECTOR, entity=entity,
        version=installation.catalog.detector(DETECTOR).version,
        window_start=start, window_end=end, level="urgent", score=score, limit=100, event_time_max=now,
    )  # fmt: skip
    producer = Producer(installation.settings.kafka.for_librdkafka())
    producer.produce(installation.settings.names.findings, finding.to_json(), finding.finding_id.encode())
    assert producer.flush(10) == 0


def _waits_for(installation: Installation, job: str, word: str) -> bool:
    report = installation.report(job)
    return report is not None and report.state is JobState.WAITING and word in report.reason


def _told_once(installation: Installation, *users: str) -> bool:
    told = Told.of(installation, ("sent",))
    return not told.twice() and all(told.sent.get(user) == ["urgent"] for user in users)


def test_without_a_mail_server_the_outbox_waits_and_then_each_mail_leaves_once(one: Installation) -> None:
    one.sink.stop()
    _urgent(one, "mallory")
    _urgent(one, "trudy")
    await_that(lambda: _waits_for(one, NOTIFIER, "SMTP"), 30)
    assert not one.sink.mails
    one.sink.start()
    await_that(lambda: _told_once(one, "mallory", "trudy"), 90)  # the second gathers behind the first
    assert one.state(NOTIFIER) is not JobState.FAILED


def test_a_mail_server_that_dies_with_the_notifier_loses_no_mail(one: Installation) -> None:
    before = len(one.sink.mails)
    one.sink.stop()
    _urgent(one, "peggy")
    await_that(lambda: _waits_for(one, NOTIFIER, "SMTP"), 60)
    one.kill(NOTIFIER)
    one.await_end(NOTIFIER)
    one.sink.start()
    one.start(NOTIFIER)
    await_that(lambda: _told_once(one, "peggy") and len(one.sink.mails) == before + 1, 60)


def test_a_locked_alerts_db_is_waited_for(one: Installation) -> None:
    before, file = len(one.sink.mails), one.settings.alerts_database.removeprefix("sqlite:///")
    holder = sqlite3.connect(file, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        _urgent(one, "oscar")
        await_that(lambda: _waits_for(one, INDEXER, "alerts DB"), 60)
        assert len(one.sink.mails) == before
    finally:
        holder.close()
    await_that(lambda: len(one.sink.mails) > before, 90)
    await_that(lambda: _told_once(one, "oscar"), 10)


@pytest.mark.long  # the test above has one that cannot be written for another reason
def test_a_read_only_alerts_db_is_waited_for(broker: Broker, tmp_path: Path) -> None:
    with small_disk(tmp_path / "db", 32) as disk, Installation(tmp_path / "one", broker) as one:
        (file := tmp_path / "alerts-db").write_text(f"sqlite:///{disk.folder / 'alerts.db'}")
        alerts = one.settings.alerts.model_copy(update={"database_file": file})
        one.settings = one.settings.model_copy(update={"alerts": alerts})
        one.make_topics()
        one.start(INDEXER, NOTIFIER)
        one.await_ready(INDEXER, NOTIFIER)
        _urgent(one, "before")
        await_that(lambda: _told_once(one, "before") and one.sink.mails, 60)
        for job in (INDEXER, NOTIFIER):
            one.stop(job)
        disk.allow_writing(False)
        one.start(INDEXER, NOTIFIER)
        _urgent(one, "mallory")
        await_that(lambda: _waits_for(one, INDEXER, "alerts DB"), 60)
        time.sleep(1)
        assert len(one.sink.mails) == 1
        disk.allow_writing(True)
        await_that(lambda: _told_once(one, "before", "mallory"), 60)
