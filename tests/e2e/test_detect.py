"""Detect jobs as real processes: backlogs, crashes, growth, idle topics, a copy. The generator knows the truth.

The first five tests share one job, the next two another one, in this order: each goes on from what the one before it
left.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.rig.broker import Broker
from tests.rig.detect_job import JOB, READY_SECONDS, WINDOW, DetectJob, LiveJob, detect_job, next_window, ticking
from tests.rig.waiting import await_that
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import ingest_job
from tocsin.platform.kafka.reporter import Reporter
from tocsin.spark.query.gaps import Cause, read_gaps


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[LiveJob]:
    with detect_job(tmp_path_factory.mktemp("detect"), broker, drain_offsets_per_trigger=1000) as job:
        path = job.settings.project / "detectors" / "failed_logins.py"
        strict = "if(user_id = 'poison', raise_error('no such user'), true)"
        path.write_text(path.read_text().replace("events.where(", f'events.where("{strict}").where('))
        yield LiveJob(job)


@pytest.fixture(scope="module")
def unhurried(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[LiveJob]:
    """A job whose real-time batches are longer than a test."""
    folder = tmp_path_factory.mktemp("unhurried")
    with detect_job(folder, broker, drain_offsets_per_trigger=1000, trigger_seconds=300) as job:
        yield LiveJob(job)


@pytest.fixture
def live(shared: LiveJob) -> LiveJob:
    shared.await_live()
    return shared


@pytest.mark.long
def test_an_uneven_backlog_is_drained_exactly_through_a_kill(shared: LiveJob) -> None:
    """Partition 0 reaches back 10 minutes and partition 1 half a minute: without the drain most of 0 would be late."""
    job, topic = shared.job, shared.topic
    topic.backlog(spans=(600, 30), events=(9_000, 6_000))
    process = shared.start()
    await_that(lambda: job.committed_batches() >= 3, READY_SECONDS)
    job.kill(process)
    killed = job.position()
    assert 0 < sum(killed.values()) < 15_000, "killed in the middle"
    shared.start()
    draining = job.await_report(lambda r: r.state is JobState.DRAINING and r.batch_id is not None)
    assert draining.mode == "micro-batch"
    assert draining.delay_seconds is not None
    assert draining.delay_seconds >= 600
    running = job.await_report(lambda r: r.state is JobState.RUNNING and r.mode == "real-time")
    assert running.delay_seconds == pytest.approx(12)
    job.await_truth(topic.truth)
    assert job.await_report(lambda r: r.lag_records == 0).rows_dropped_late == 0
    with ticking(topic):  # what was read is counted when its batch ends; the next test counts what is read from then on
        last = job.await_report(lambda r: r.batch_id is not None).batch_id or 0
        job.await_report(lambda r: (r.batch_id or 0) > last + 1)


def test_ticks_alone_move_the_watermark_of_an_idle_detector(live: LiveJob) -> None:
    """Nothing that arrives is a failed login: the filter of the detector must not hold the ticks back."""
    job, topic = live.job, live.topic
    before = job.await_report(lambda r: r.pid == live.process.pid).rows_in
    with ticking(topic):
        began = datetime.now(UTC)
        topic.event("ann", began, began, 0, action="login succeeded")
        topic.event(None, began, began, 1)  # type: ignore[arg-type]  # an entity may be missing
        # Those two events alone would move it to the lateness of the source before they began.
        told = job.await_report(lambda r: r.watermark is not None and r.watermark > began - timedelta(seconds=5))
    assert not [one for one in job.findings().values() if one.entity["user_id"] == "ann"]
    assert (told.counts["null_entity"], told.rows_in) == (1, before + 2), "ticks are no records"


def test_added_partitions_are_read_and_an_event_that_ends_the_query_is_set_aside(live: LiveJob) -> None:
    job, topic = live.job, live.topic
    job.grow_to(4)
    await_that(lambda: "partitions=4 slots=8" in job.log.read_text(), READY_SECONDS)
    topic.burst("new", 60, partition=3)
    topic.burst("old", 60, partition=0)
    topic.burst("\x01" * 180_000, 51, partition=1)  # as JSON longer than a Kafka record of 1 MiB
    job.await_truth(topic.truth)
    job.await_committed()  # or all that is there would be searched
    process_id, now = job.await_report(lambda r: r.lag_records == 0).pid, datetime.now(UTC)
    topic.burst("beside", 2, partition=1)
    topic.event("poison", now, now, 1)
    topic.burst("beside", 2, partition=1)
    await_that(lambda: "search started" in job.log.read_text(), READY_SECONDS)
    topic.burst("after", 60, partition=1)
    job.await_truth(topic.truth)
    told = job.await_report(lambda r: r.counts.get("set_aside") == 1)
    assert told.pid == process_id, "it has not even ended"
    assert "1 record was set aside" in told.reason
    (gap,) = read_gaps(job.settings.checkpoint(JOB))
    assert (gap.cause, gap.records, gap.since) == (Cause.SET_ASIDE, 1, now)


def test_a_kill_between_flush_and_commit_repeats_and_loses_nothing(live: LiveJob) -> None:
    job, topic, found = live.job, live.topic, len(live.job.findings())
    with ticking(topic):
        for number, count in enumerate((51, 100, 50, 101, 160)):
            topic.burst(f"before{number}", count, partition=number % 2)
        await_that(lambda: len(job.findings()) >= found + 3, READY_SECONDS)
        half = datetime.now(UTC)
        topic.burst("across", 30, moment=half)
        job.kill_before_commit(live.process)
        topic.burst("across", 30, moment=half)
        live.start()
        topic.burst("after", 137, partition=1)
        job.await_truth(topic.truth)
        # When their windows have closed, what was told as at least 155 and 133 is told as it was, restart or not.
        await_that(lambda: not any(one.at_least for one in job.findings().values()), READY_SECONDS)
        job.await_truth(topic.truth)
    report = job.await_report(lambda r: r.pid == live.process.pid and r.mode == "real-time")
    assert report.rows_dropped_late == 0


@pytest.mark.long  # test_landing.py has retention that overtakes a reader, tests/unit/ingest/spark that of a query
def test_a_drain_that_retention_overtakes_goes_on_behind_the_gap(unhurried: LiveJob) -> None:
    job, topic = unhurried.job, unhurried.topic
    topic.backlog(spans=(600, 600), events=(40_000, 100))
    process = unhurried.start()
    await_that(lambda: job.committed_batches() >= 2, READY_SECONDS)
    kept_from = job.remove_records(0, keep=3_000)
    job.await_report(lambda r: "removed_unread" in r.counts)
    topic.truth.failed.clear()
    topic.burst("after", 101, moment=next_window())
    job.await_report(lambda r: r.state is JobState.RUNNING and r.mode == "real-time")
    await_that(lambda: any(one.entity["user_id"] == "after" for one in job.findings().values()), READY_SECONDS)
    (gap,) = read_gaps(job.settings.checkpoint(JOB))
    hole = gap.partitions[0]
    assert 0 < hole.from_offset < hole.to_offset == kept_from
    assert process.poll() is None, "the same process goes on"


def test_a_window_is_said_to_be_complete_long_before_the_boundary(unhurried: LiveJob) -> None:
    """The test plays the ingest. While that one is silent nothing is said, and then what the query has read."""
    unhurried.await_live()
    job, topic, found = unhurried.job, unhurried.topic, len(unhurried.job.findings())
    now = next_window()  # no window that began before the gap is published
    topic.burst("mallory", 60, moment=now)
    await_that(lambda: len(job.findings()) == found + 1, READY_SECONDS)
    ingest = Reporter(job.settings, ingest_job("logins"))
    try:
        ingest.update(state=JobState.DRAINING, complete_through=now)
        updated = datetime.now(UTC)
        later = job.await_report(lambda r: r.at > updated + timedelta(seconds=6))
        assert later.complete_through is None
        topic.burst("eve", 70, partition=1, moment=now)
        ingest.update(state=JobState.RUNNING, complete_through=now + timedelta(seconds=30))
        said = job.await_report(lambda r: r.complete_through is not None)
    finally:
        ingest.close()
    assert said.complete_through == now + timedelta(seconds=20)
    assert (said.batch_id, said.watermark) == (later.batch_id, later.watermark)
    assert len(job.findings()) == found + 2, "all that was in the topic then is found"


@pytest.mark.long
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


STREAKS = '''"""Failed logins in a row."""
from dataclasses import dataclass
from datetime import datetime, timedelta
from tocsin import Event, Levels, StepFinding, detector


@dataclass(frozen=True)
class Streak:
    failures: int = 0
    timer: datetime | None = None


@detector(source="logins", entity="user_id", window=None, forget_after="1 hour", levels=Levels(email=2),
          owner="a@example.com", runbook="https://example.com", stage="live")
def step(key: str, state: Streak, event: Event) -> tuple[Streak, list[StepFinding]]:
    if event.action == "broken":
        raise ValueError(event.action)
    failures = state.failures + 1 if event.action == "login failed" else 0
    return Streak(failures, event.event_time + timedelta(seconds=30)), [StepFinding(failures)]


def on_timer(key: str, state: Streak, at: datetime) -> tuple[Streak, list[StepFinding]]:
    return Streak(), [StepFinding(100)]
'''


def streaks(written: list[tuple[datetime, str, str]]) -> dict[tuple[str, datetime], float]:
    """Count what STREAKS must find: failures in a row, and each silence of 30 seconds, which ends a row."""
    found: dict[tuple[str, datetime], float] = {}
    silence, rows, last = timedelta(seconds=30), Counter[str](), dict[str, datetime]()
    for moment, user, action in sorted(written):
        if action == "broken":
            continue
        if user in last and last[user] + silence < moment:
            found[user, last[user] + silence], rows[user] = 100, 0
        rows[user] = rows[user] + 1 if action == "login failed" else 0
        last[user] = moment
        if rows[user] > 2:
            found[user, moment] = rows[user]
    return found | {(user, moment + silence): 100.0 for user, moment in last.items()}


@pytest.mark.long
def test_step_is_exact_through_a_kill_and_leaves_out_what_it_fails_on(job: DetectJob) -> None:
    """Events come late, twice and out of order; at last timers fire while nothing but ticks comes."""
    (job.settings.project / "detectors" / "streaks.py").write_text(STREAKS)
    job.job = "detector:streaks"
    topic, chance = job.make_topics(), random.Random(4)
    written: list[tuple[datetime, str, str]] = []

    def send() -> None:
        now = datetime.now(UTC)
        for number in range(100):
            moment, user, partition = now - timedelta(seconds=chance.uniform(0, 6)), f"user{number % 7}", number % 2
            action = chance.choice(["login failed"] * 8 + ["login succeeded", "broken"])
            record = topic.event(user, moment, now, partition, action=action)
            written.append((moment, user, action))
            if number % 10 == 0:
                topic.write(record, partition)
        topic.flush()

    process = job.start("streaks")
    running = job.await_report(lambda r: r.state is JobState.RUNNING)
    assert running.mode == "micro-batch"
    assert "real-time mode runs none" in running.reason
    with ticking(topic):
        send()
        batches = job.committed_batches()
        await_that(lambda: job.committed_batches() >= batches + 2, READY_SECONDS)
        send()
        job.kill(process)
        job.start("streaks")
        send()
        expected = streaks(written)
        await_that(lambda: len(job.findings()) >= len(expected), READY_SECONDS)
    assert {(one.entity["user_id"], one.event_time_max): one.score for one in job.findings().values()} == expected
    failed = job.await_report(lambda r: "failed_in_step" in r.counts)
    line = STREAKS[: STREAKS.index("raise")].count("\n") + 1
    assert f"(detectors/streaks.py:{line}: ValueError: broken)" in failed.reason
    assert failed.state is JobState.RUNNING


LISTED = {("ann", 1): 1.0, ("ann", 2): 3.0} | {("ann", number): 3.0 for number in range(4, 9)}
LISTED |= {("bob", number): 3.0 for number in range(9)}
SEEN = {("ann", 1): 1.0} | {("ann", number): 3.0 for number in (2, 4, 5, 6)}
"""Who was seen in a window is expected in the next three: ann in those up to the sixth, and bob never."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("expect", "expected"),
    [('["ann", "bob"]', LISTED), ('seen_within="30 seconds"', SEEN)],
    ids=["listed", "seen"],
)
def test_silence_is_found_in_every_window_through_a_kill(
    job: DetectJob, expect: str, expected: dict[tuple[str, int], float]
) -> None:
    """Ann sends some in the first windows and bob nothing ever; then nobody sends anything, and only ticks come."""
    path = job.settings.project / "detectors" / "failed_logins.py"
    text = path.read_text().replace("import Case,", "import Case, Entities,")
    text = text.replace("levels=", f"expect=Entities({expect}, minimum=3),\n    levels=")
    path.write_text(re.sub(r"Levels\(.*?\)", "Levels(email=0)", text))
    topic, first = job.make_topics(), next_window()
    for number, count in enumerate((3, 2, 0, 5)):
        topic.burst("ann", count, moment=first + number * WINDOW)
    began = first - timedelta(seconds=1)

    def missing() -> dict[tuple[str, int], float]:
        found = {(one.entity["user_id"], one.window_start): one.score for one in job.findings().values()}
        numbered = {(user, (at - began) // WINDOW): score for (user, at), score in found.items() if at is not None}
        return {place: score for place, score in numbered.items() if 0 <= place[1] < 9}

    process = job.start()
    with ticking(topic):
        await_that(lambda: ("ann", 4) in missing(), READY_SECONDS)
        job.kill_before_commit(process)
        job.start()
        job.await_report(lambda r: r.watermark is not None and r.watermark > began + 10 * WINDOW)
    assert missing() == expected
    assert job.await_report(lambda r: r.batch_id is not None).mode == "micro-batch"
