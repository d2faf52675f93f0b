"""From findings to mails: a real broker, the real indexer and notifier, a real SMTP server."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.observed import DETECT, DETECTOR
from tests.rig.waiting import await_that
from tocsin.declare.model.finding import Finding, finding_id
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.names import INDEXER, NOTIFIER
from tocsin.platform.kafka.reader import appended_at
from tocsin.platform.kafka.topic_follower import TopicFollower

WINDOW = timedelta(seconds=10)
OWNER = "security@example.com"


@pytest.fixture(scope="module")
def one(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation whose indexer and notifier run; its detector is played by the tests."""
    with Installation(tmp_path_factory.mktemp("alerts"), broker) as installation:
        installation.make_topics()
        installation.start(INDEXER, NOTIFIER)
        installation.await_ready(INDEXER, NOTIFIER)
        yield installation


@pytest.fixture
def idle(broker: Broker, tmp_path: Path) -> Iterator[Installation]:
    """An installation in which nothing runs."""
    with Installation(tmp_path, broker) as installation:
        installation.make_topics()
        yield installation


def present_window() -> datetime:
    """The start of a window of ten seconds that has just begun to be past."""
    now = datetime.now(UTC)
    return now - timedelta(seconds=now.second % 10, microseconds=now.microsecond)


def emit(installation: Installation, user: str, score: int, start: datetime) -> None:
    """Write what the detect job writes while a count rises to `score`: every value above 50."""
    producer = Producer(installation.settings.kafka.for_librdkafka())
    end, entity = start + WINDOW, {"user_id": user}
    identity = finding_id(DETECTOR, entity, start, end)
    version = installation.catalog.detector(DETECTOR).version
    for count in range(51, score + 1):
        urgent = count > 100
        finding = Finding(
            finding_id=identity, detector=DETECTOR, version=version, entity=entity, window_start=start, window_end=end,
            level="urgent" if urgent else "email", score=count, limit=100 if urgent else 50,
            event_time_max=start + timedelta(milliseconds=50 * count),
        )  # fmt: skip
        producer.produce(installation.settings.names.findings, finding.to_json(), identity.encode())
    assert producer.flush(10) == 0


def pass_watermark(installation: Installation, watermark: datetime) -> None:
    """Report as the detect job does when its watermark has got to `watermark`."""
    own = installation.settings.installation_id
    report = JobReport(job=DETECT, instance=own, at=datetime.now(UTC), state=JobState.RUNNING, watermark=watermark)
    producer = Producer(installation.settings.kafka.for_librdkafka())
    producer.produce(installation.settings.names.job_metrics, report.model_dump_json(), DETECT, partition=0)
    assert producer.flush(10) == 0


def subjects(installation: Installation) -> list[str]:
    return [str(mail["Subject"]) for mail in installation.sink.mails]


def about(installation: Installation, user: str) -> list[str]:
    return [subject for subject in subjects(installation) if f"{user}:" in subject]


def is_caught_up(installation: Installation) -> bool:
    report = installation.report(INDEXER)
    return report is not None and report.state is JobState.RUNNING and report.lag_records == 0


def rewind(installation: Installation) -> None:
    """Take the commit of the offsets back: the state after a crash between the transaction and the commit."""
    names = installation.settings.names
    config = {"group.id": names.group(INDEXER), "enable.auto.commit": False}
    consumer = Consumer(installation.settings.kafka.for_librdkafka() | config)
    partitions = consumer.list_topics(names.findings, timeout=60).topics[names.findings].partitions
    offsets = [TopicPartition(names.findings, partition, 0) for partition in partitions]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def test_a_burst_of_120_pages_once_and_one_of_60_mails_once_through_crashes_of_both_jobs(one: Installation) -> None:
    start = present_window()
    emit(one, "trent", 60, start)
    emit(one, "mallory", 120, start)
    await_that(lambda: len(about(one, "mallory")) == 1, 30)
    pass_watermark(one, start + WINDOW - timedelta(seconds=1))
    await_that(lambda: is_caught_up(one), 30)
    assert about(one, "trent") == []
    pass_watermark(one, start + WINDOW)
    await_that(lambda: len(about(one, "trent")) == 1, 60)  # it gathers behind the urgent one

    one.kill(INDEXER)
    one.kill(NOTIFIER)
    one.await_end(INDEXER)
    one.await_end(NOTIFIER)
    rewind(one)
    one.start(INDEXER, NOTIFIER)
    one.await_ready(INDEXER, NOTIFIER)
    # A later mail shows that all before it was read again and all that was due has left.
    emit(one, "eve", 130, start + WINDOW)
    await_that(lambda: len(about(one, "eve")) == 1 and is_caught_up(one), 60)
    assert sorted(subject[: subject.index(" (limit")].rstrip("+") for subject in subjects(one)) == [
        *sorted(["[URGENT] eve: 130", "[URGENT] mallory: 120", "trent: 60"])
    ]
    assert {mail["To"] for mail in one.sink.mails} == {OWNER}


def test_a_record_that_comes_after_a_quiet_time_is_behind_since_then_at_most(idle: Installation) -> None:
    topic = TopicFollower(idle.settings, INDEXER, idle.settings.names.findings)
    topic.follow_committed()
    emit(idle, "trent", 51, present_window())
    found = next(filter(None, (topic.poll(10, 1.0) for _ in range(60))))
    topic.done(found)
    topic.commit()
    await_that(lambda: bool(topic.look()) and topic.lag_records == 0, 30)
    emit(idle, "mallory", 51, present_window())
    await_that(lambda: bool(topic.look()) and topic.lag_records == 1, 30)
    all_was_read = topic.complete_at
    assert all_was_read is not None
    assert all_was_read > appended_at(found[0])
    assert 0 < topic.lag_seconds <= (datetime.now(UTC) - all_was_read).total_seconds()
    topic.close()
