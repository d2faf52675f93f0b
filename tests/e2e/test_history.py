"""From a real Kafka through landing, sealing and publishing to a batch: the findings are those that Kafka gives."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.broker import Broker
from tests.e2e.detecting import DETECTOR, WINDOW, DetectJob, Topic, detect_job, read_all
from tests.waiting import patient
from tocsin.catalog import read_catalog
from tocsin.finding import Finding
from tocsin.history.care import verify
from tocsin.history.landing import land
from tocsin.history.places import begin
from tocsin.history.standing import DayState, known, standing
from tocsin.history.table import DayTable
from tocsin.provision.java import find_java
from tocsin.provision.paths import here
from tocsin.setting_blocks import HistorySettings
from tocsin.source import Source
from tocsin.supervision.jobs import job_environment

JOBS = here().root / "spark_jobs"
NOW = datetime.now(UTC)
DAY = NOW.date() - timedelta(days=1)
START = begin(DAY)


@pytest.fixture
def job(broker: Broker, tmp_path: Path) -> Iterator[DetectJob]:
    with detect_job(tmp_path, broker) as one:
        one.settings = one.settings.model_copy(update={"history": HistorySettings(grace=timedelta(seconds=1))})
        yield one


def submit(job: DetectJob, program: str, *words: str) -> tuple[int, str]:
    """Exit code of a batch program, and what it said."""
    jars = ",".join(map(str, sorted(here().jars("spark").glob("*.jar"))))
    done = subprocess.run(
        [JOBS / "submit.sh", "--master", "local[2]", "--jars", jars, JOBS / program, *words],
        env=job_environment(job.settings, find_java().home),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def batch(job: DetectJob, run: str) -> dict[str, Finding]:
    """The findings of the middle of DAY, without what tells one run from another."""
    words = [f"--start={(START + WINDOW).isoformat()}", f"--end={(START + timedelta(hours=20)).isoformat()}"]
    code, said = submit(job, "batch.py", DETECTOR, *words, f"--run-id={run}")
    assert code == 0, said[-3000:]
    assert f"reads {'Kafka' if run == 'kafka' else 'history'}" in said
    values = read_all(job.settings, job.settings.names.findings)
    found = [Finding.from_record(value, "findings", 0, 0) for value in values]
    return {one.finding_id: one.model_copy(update={"run_id": ""}) for one in found if one.run_id == run}


def write(topic: Topic) -> None:
    """Bursts over the whole of DAY, duplicates, an event behind midnight, and ticks past its end."""
    for hour in range(20):
        for user, count in (("many", 60 + 5 * hour), ("few", 50), (f"once-{hour}", 101)):
            for number in range(count):
                topic.event(user, START + timedelta(hours=hour, milliseconds=20 * number), NOW, number % 2)
    record = topic.event("twice", START + timedelta(hours=1), NOW, 0)
    for _ in range(80):
        topic.write(record, 1)
    topic.event("behind", START + timedelta(days=1), NOW, 1)
    topic.tick(NOW)
    topic.flush()


def logins(job: DetectJob) -> Source:
    return read_catalog(job.settings.project).source("logins")


def states(job: DetectJob) -> dict[date, DayState]:
    settings, source = job.settings, logins(job)
    with DayTable(settings, source) as table:
        return {one.day: one.state for one in standing("logins", known(settings, source, table))}


def test_history_gives_the_findings_that_kafka_gave_and_goes_on_without_it(job: DetectJob) -> None:
    topic, source = job.make_topics(), logins(job)
    write(topic)
    from_kafka = batch(job, "kafka")
    assert len(from_kafka) == 2 * 19  # the first hour lies before the range

    entry = land(job.settings, source)
    assert entry.events == sum(topic.truth.failed.values()) + 80
    again = land(job.settings, source)
    assert (again.events, again.files) == (0, ())
    assert states(job) == {DAY: DayState.READY, NOW.date(): DayState.WAITING}

    code, said = submit(job, "seal.py", "logins")
    assert code == 0, said[-3000:]
    assert states(job)[DAY] is DayState.PUBLISHED
    assert verify(job.settings, source, checksums=True) == []

    events = job.settings.names.events("logins")
    client = AdminClient(job.settings.kafka.for_librdkafka())
    ends = [TopicPartition(events, partition, -1) for partition in (0, 1)]
    for future in client.delete_records(ends).values():
        future.result(patient(30))
    assert batch(job, "history") == from_kafka

    for number in range(61):
        topic.event("late", START + timedelta(hours=3, milliseconds=number), NOW, number % 2)
    topic.flush()
    assert land(job.settings, source).events == 61
    assert states(job)[DAY] is DayState.OUTDATED
    assert verify(job.settings, source) == []
