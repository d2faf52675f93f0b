"""The detect job as a real process: backlogs, crashes, stops, growth, idle topics. The generator knows the truth."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # exported all the same

from tests.rig.broker import Broker
from tests.rig.detect_job import JOB, READY_SECONDS, DetectJob, LiveJob, detect_job
from tests.rig.waiting import await_that, patient
from tocsin.kafka.reporter import Reporter
from tocsin.model.job_report import JobState
from tocsin.model.names import ingest_job
from tocsin.sparkjob.query.gaps import Cause, read_gaps


@pytest.fixture
def job(tmp_path: Path, broker: Broker) -> Iterator[DetectJob]:
    with detect_job(tmp_path, broker, drain_offsets_per_trigger=1000) as one:
        yield one


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[LiveJob]:
    """The job of the first two tests: the second goes on from what the first has left."""
    with detect_job(tmp_path_factory.mktemp("detect"), broker, drain_offsets_per_trigger=1000) as job:
        path = job.settings.project / "detectors" / "failed_logins.py"
        strict = "if(user_id = 'poison', raise_error('no such user'), true)"
        path.write_text(path.read_text().replace("events.where(", f'events.where("{strict}").where('))
        yield LiveJob(job)


def test_an_uneven_backlog_is_drained_exactly_through_a_kill(shared: LiveJob) -> None:
    """Partition 0 reaches back 10 minutes and partition 1 half a minute: without the drain most of 0 would be late."""
    job, topic = shared.job, shared.topic
    topic.backlog(spans=(600, 30), events=(9_000, 6_000))
    process = shared.process = job.start()
    await_that(lambda: job.committed_batches() >= 3, READY_SECONDS)
    job.kill(process)
    killed = job.position()
    assert 0 < sum(killed.values()) < 15_000, "killed in the middle"
    shared.process = job.start()
    draining = job.await_report(lambda r: r.state is JobState.DRAINING and r.batch_id is not None)
    assert draining.mode == "micro-batch"
    assert draining.delay_seconds is not None
    assert draining.delay_seconds >= 600
    running = job.await_report(lambda r: r.state is JobState.RUNNING and r.mode == "real-time")
    assert running.delay_seconds == pytest.approx(12)
    job.await_truth(topic.truth)
    assert job.await_report(lambda r: r.lag_records == 0).rows_dropped_late == 0


def test_added_partitions_are_read_and_an_event_that_ends_the_query_is_set_aside(shared: LiveJob) -> None:
    shared.await_live()
    job, topic = shared.job, shared.topic
    name = job.settings.names.events("logins")
    admin = AdminClient(job.settings.kafka.for_librdkafka())
    admin.create_partitions([NewPartitions(name, 4)])[name].result(patient(10))
    await_that(lambda: "has grown from 2 to 4 partitions" in job.log.read_text(), READY_SECONDS)
    topic.burst("new", 60, partition=3)
    topic.burst("old", 60, partition=0)
    topic.burst("\x01" * 180_000, 60, partition=1)  # as JSON longer than a Kafka record of 1 MiB
    job.await_truth(topic.truth)
    # The last batch before the restart may have read the new ones already.
    await_that(lambda: "partitions=4 slots=8" in job.log.read_text(), READY_SECONDS)
    process_id, now = job.await_report(lambda r: r.lag_records == 0).pid, datetime.now(UTC)
    topic.event("poison", now, now, 1)
    topic.burst("after", 60, partition=1)
    job.await_truth(topic.truth)
    told = job.await_report(lambda r: r.counts.get("set_aside") == 1)
    assert told.pid == process_id, "it has not even ended"
    assert "1 record was set aside" in told.reason
    (gap,) = read_gaps(job.settings.checkpoint(JOB))
    assert (gap.cause, gap.records, gap.since) == (Cause.SET_ASIDE, 1, now)


def test_a_window_is_said_to_be_complete_long_before_the_boundary(tmp_path: Path, broker: Broker) -> None:
    """The test plays the ingest. While that one is silent nothing is said, and then what the query has read."""
    with detect_job(tmp_path, broker, trigger_seconds=300) as job:
        topic = job.make_topics()
        job.start()
        job.await_report(lambda r: r.mode == "real-time")
        now = datetime.now(UTC)
        topic.burst("mallory", 60, moment=now - timedelta(seconds=15))
        await_that(lambda: len(job.findings()) == 1, READY_SECONDS)
        ingest = Reporter(job.settings, ingest_job("logins"))
        try:
            ingest.update(state=JobState.DRAINING, complete_through=now)
            later = job.await_report(lambda r: r.at > now + timedelta(seconds=6))
            assert later.complete_through is None
            topic.burst("eve", 70, partition=1, moment=now)
            ingest.update(state=JobState.RUNNING, complete_through=now + timedelta(seconds=30))
            said = job.await_report(lambda r: r.complete_through is not None)
        finally:
            ingest.close()
        assert said.complete_through == now + timedelta(seconds=20)
        assert (said.batch_id, said.watermark) == (None, None)
        assert len(job.findings()) == 2, "all that was in the topic then is found"


def test_a_draining_ingest_widens_the_delay_before_anything_late_is_read(job: DetectJob) -> None:
    topic = job.make_topics()
    job.start()
    job.await_report(lambda r: r.mode == "real-time")
    now = datetime.now(UTC)
    topic.burst("now", 60, partition=0, moment=now)
    ingest = Reporter(job.settings, ingest_job("logins"))
    try:
        ingest.update(state=JobState.DRAINING, lag_seconds=300.0)
        widened = job.await_report(lambda r: r.state is JobState.DRAINING)
        assert widened.delay_seconds is not None
        assert widened.delay_seconds >= 300
        old = now - timedelta(seconds=290)
        for _ in range(60):  # as the ingest reads on, one raw partition far behind the other
            topic.event("old", old, old, 1)
            topic.event("new", now, now, 0)
        topic.flush()
        job.await_truth(topic.truth)
        ingest.update(state=JobState.RUNNING, lag_seconds=0.0)
        done = job.await_report(lambda r: r.mode == "real-time" and r.state is JobState.RUNNING)
        assert done.rows_dropped_late == 0
    finally:
        ingest.close()
