"""Records that a detect job never reads: those that were removed before it came to them, and those it is to skip."""

import json
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.rig.broker import Broker, recreate
from tests.rig.detect_job import (
    DETECTOR,
    JOB,
    READY_SECONDS,
    SOURCE,
    WINDOW,
    DetectJob,
    LiveJob,
    Topic,
    detect_job,
    next_window,
    ticking,
)
from tests.rig.samples.checkpoints import batch
from tests.rig.waiting import await_that, patient
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import TOPICS_RECREATED, JobState
from tocsin.declare.model.names import ingest_job
from tocsin.spark.query import gaps
from tocsin.spark.query.drain import unread_upstream
from tocsin.spark.query.gaps import Cause, Gap, RemovedRange, read_gaps


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[LiveJob]:
    with detect_job(tmp_path_factory.mktemp("gaps"), broker, drain_offsets_per_trigger=1000) as one:
        yield LiveJob(one)


@pytest.fixture
def live(shared: LiveJob) -> LiveJob:
    shared.await_live()
    # The window in which a gap of the test before ends was not read whole, and is never published.
    whole = [gap.until + WINDOW for gap in read_gaps(shared.job.settings.checkpoint(JOB))]
    await_that(lambda: all(moment < datetime.now(UTC) for moment in whole), READY_SECONDS)
    return shared


def forget(topic: Topic, *users: str) -> None:
    """What was counted for `users` is not to be found."""
    for key in [key for key in topic.truth.failed if key[0] in users]:
        del topic.truth.failed[key]


def the_gap(job: DetectJob) -> Gap:
    (gap,) = read_gaps(job.settings.checkpoint(JOB))
    return gap


def run_and_stop(live: LiveJob) -> dict[int, int]:
    """Let the job find something and stop it; returns up to where it has read."""
    live.topic.burst("before", 60)
    live.job.await_truth(live.topic.truth)
    live.job.await_report(lambda r: bool(r.batch_id))  # the second batch: the first has no watermark
    live.stop()
    return live.job.position()


@pytest.mark.long
def test_records_removed_while_it_was_away_are_a_gap_and_only_whole_windows_are_published(live: LiveJob) -> None:
    job, topic = live.job, live.topic
    with ticking(topic):
        position = run_and_stop(live)
        assert job.await_report(lambda r: r.pid == live.process.pid).state is JobState.STOPPED
        half = datetime.now(UTC)
        topic.burst("cut", 60, moment=half)
        kept_from = job.remove_records(0)
        topic.burst("cut", 60, moment=half)
        topic.burst("after", 101, moment=next_window())
        forget(topic, "cut")
        live.start()
        told = job.await_report(lambda r: r.pid == live.process.pid and "removed_unread" in r.counts)
        job.await_truth(topic.truth)
        live.await_live()
    gap = the_gap(job)
    assert gap.cause is Cause.REMOVED
    assert gap.offsets == {0: f"{position[0]} to {kept_from}"}
    assert gap.records == told.counts["removed_unread"] >= 60
    assert gap.since is not None
    assert gap.since < half < gap.until
    log = job.log.read_text()
    assert log.count("event=gap") == 1
    assert f'reason="{gap.records} records were removed before they were read; continuing after them; ' in log


@pytest.mark.long
def test_a_backlog_is_skipped_on_request_at_the_next_start_and_while_it_runs(live: LiveJob) -> None:
    job, topic = live.job, live.topic
    folder = job.settings.checkpoint(JOB)
    with ticking(topic):
        position = run_and_stop(live)
        topic.burst("skipped", 60)
        forget(topic, "skipped")
        gaps.ask_to_skip(folder)
        process = live.start()
        job.await_report(lambda r: r.pid == process.pid and r.counts.get("skipped", 0) >= 60)
        topic.burst("after", 101, moment=next_window())
        job.await_truth(topic.truth)
        gap = read_gaps(folder)[-1]
        assert (gap.cause, gap.partitions[0].from_offset) == (Cause.SKIPPED, position[0])
        gaps.ask_to_skip(folder)
        await_that(lambda: not gaps.is_asked_to_skip(folder), READY_SECONDS)
        topic.burst("later", 101, moment=next_window())
        job.await_truth(topic.truth)
        assert process.poll() is None
    live.stop()


def test_a_final_score_of_a_window_that_lacks_events_of_its_ingest_is_not_published(job: DetectJob) -> None:
    """Retention removed raw records of a window before the ingest had read them."""
    file = job.settings.project / "detectors" / f"{DETECTOR}.py"
    final = 'F.count("*") + 0 * F.avg(F.length("user_id"))'
    text = file.read_text()
    file.write_text(text.replace('F.count("*")', f"({final})"))
    topic, moment = job.make_topics(), datetime.now(UTC) - 3 * WINDOW
    hole = RemovedRange(from_offset=5, to_offset=9, appended_before=moment)
    gap = Gap(
        topic=job.settings.names.raw(SOURCE), cause=Cause.REMOVED, found_at=moment, partitions={0: hole},
        since=moment - timedelta(seconds=1), until=moment,
    )  # fmt: skip
    gaps.record(job.settings.checkpoint(ingest_job(SOURCE)), gap)
    for user, at in (("before", moment - 2 * WINDOW), ("inside", moment), ("after", moment + 2 * WINDOW)):
        topic.burst(user, 60, moment=at)
    forget(topic, "inside")
    with ticking(topic):
        job.start()
        job.await_truth(topic.truth)
    assert "gap upstream" in job.log.read_text()


@pytest.mark.long
def test_an_event_that_exhausts_the_heap_is_set_aside_after_a_few_lives(job: DetectJob) -> None:
    """The JVM ends without a word of which record it read."""
    plan(job, "length(repeat(ip_address, IF(user_id = 'fatal', 200000000, 1))) > 0")
    topic = job.make_topics()
    with ticking(topic):
        process, lives = job.start(), 1
        topic.burst("before", 60)
        job.await_truth(topic.truth)
        topic.event("fatal", datetime.now(UTC), datetime.now(UTC), 1)
        topic.burst("after", 60, partition=1)
        while "record set aside" not in job.log.read_text():
            assert lives < 12
            time.sleep(0.5)
            if process.poll() is not None:
                process, lives = job.start(), lives + 1
        job.await_truth(topic.truth)
    assert lives > 1
    gap = the_gap(job)
    assert (gap.cause, gap.records) == (Cause.SET_ASIDE, 1)
    told = job.await_report(lambda r: r.pid == process.pid and r.counts.get("set_aside") == 1)
    assert "1 record was set aside" in told.reason


@pytest.mark.long  # test_topics.py has the follower that notices it, test_landing.py a reader that begins anew
def test_a_topic_that_was_recreated_beyond_its_former_length_is_read_from_its_start(job: DetectJob) -> None:
    """While the job is away, and while it runs."""
    topic, name = job.make_topics(), job.settings.names.events(SOURCE)
    process = job.start()
    with ticking(topic):
        topic.burst("before", 60, moment=next_window())
        job.await_truth(topic.truth)
        job.await_report(lambda r: bool(r.batch_id))
        process.send_signal(signal.SIGTERM)
        assert process.wait(patient(20)) == 0
    position = sum(job.position().values())
    for away in (True, False):
        recreate(job.settings.kafka, name, 2)
        topic.burst("cut", 60)
        await_that(lambda: next_window() > datetime.now(UTC) + timedelta(seconds=3), 20)
        topic.burst(f"after {away}", max(101, position), moment=next_window() + WINDOW)
        forget(topic, "cut")
        process = job.start() if away else process
        with ticking(topic):
            wanted = 1 if away else 2
            report = job.await_report(lambda r: r.counts.get(TOPICS_RECREATED) == wanted)  # noqa: B023 - called at once
            job.await_truth(topic.truth)
        position = 2 * sum(job.position().values())
    assert [(gap.is_recreated, gap.records) for gap in read_gaps(job.settings.checkpoint(JOB))] == [(True, 0)] * 2
    assert "was deleted and created again" in report.reason


def checkpoints(job: DetectJob) -> set[Path]:
    """One for each plan."""
    return {path.parent for path in job.settings.checkpoint(JOB).glob("*/start.json")}


def committing(job: DetectJob) -> set[Path]:
    """Those in which Spark has begun to run."""
    return {one for one in checkpoints(job) if any(one.glob("query*/commits"))}


def publish_from(checkpoint: Path) -> Any:
    """The moment from which it publishes windows; None for all."""
    said = json.loads((checkpoint / "start.json").read_text())["publish_from"]
    return None if said is None else datetime.fromisoformat(said)


def plan(job: DetectJob, condition: str) -> None:
    """Give the detector another plan that finds the same."""
    file = job.settings.project / "detectors" / f"{DETECTOR}.py"
    text = file.read_text()
    file.write_text(re.sub("action = 'login failed'.*\"", f"action = 'login failed' AND {condition}\"", text))


def test_the_oldest_raw_record_that_the_ingest_has_not_read_is_known(job: DetectJob) -> None:
    job.make_topics()
    name, feeders = job.settings.names.raw(SOURCE), read_catalog(job.settings.project).upstream(SOURCE)
    assert unread_upstream(job.settings, feeders) is None
    producer = Producer(job.settings.kafka.for_librdkafka())
    for number in range(2):
        producer.produce(name, str(number).encode(), partition=0)
        assert producer.flush(patient(30)) == 0
        time.sleep(0.01)  # append times are whole milliseconds
    both = unread_upstream(job.settings, feeders)
    query = job.settings.checkpoint(ingest_job(SOURCE)) / "query"
    batch(query, 0, {name: {"0": 1, "1": 0}})
    one = unread_upstream(job.settings, feeders)
    assert both is not None
    assert one is not None
    assert both < one
    batch(query, 1, {name: {"0": 2, "1": 0}})
    assert unread_upstream(job.settings, feeders) is None


@pytest.mark.long
def test_a_new_plan_publishes_the_windows_of_an_outage_whose_events_are_not_there_yet(job: DetectJob) -> None:
    """The ingest starts after it: the first events of the outage come when it has begun long since."""
    topic = job.make_topics()
    down = datetime.now(UTC) - timedelta(minutes=10)
    topic.burst("before", 60, moment=down - timedelta(seconds=60))
    topic.tick(down)
    topic.flush()
    process = job.start()
    job.await_report(lambda r: r.watermark is not None and bool(r.batch_id))
    job.await_truth(topic.truth)
    process.send_signal(signal.SIGTERM)
    assert process.wait(patient(20)) == 0
    (first,) = checkpoints(job)
    plan(job, "ip_address != ''")
    process = job.start()
    await_that(lambda: len(committing(job)) == 2, READY_SECONDS)
    job.kill(process)  # before its first commit
    second = max(checkpoints(job) - {first})
    plan(job, "ip_address != 'none'")
    process = job.start()
    job.await_report(lambda r: r.pid == process.pid and r.state is not JobState.STARTING and r.mode is not None)
    (third,) = checkpoints(job) - {first, second}
    assert publish_from(first) is None, "it began with the topic"
    assert publish_from(third) <= publish_from(second) < down
    topic.burst("first", 60, moment=down)
    topic.burst("during", 101, partition=1, moment=down + timedelta(minutes=5))
    job.await_truth(topic.truth)
    assert gaps.read_gaps(job.settings.checkpoint(JOB)) == []
