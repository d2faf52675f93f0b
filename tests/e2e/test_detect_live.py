"""One detect job that stays: idle, killed, copied, stopped, changed. The generator knows the truth."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.rig.broker import Broker
from tests.rig.detect_job import JOB, READY_SECONDS, LiveJob, detect_job, ticking
from tests.rig.waiting import await_that, patient
from tocsin.model.job_report import JobState


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[LiveJob]:
    with detect_job(tmp_path_factory.mktemp("live"), broker) as one:
        yield LiveJob(one)


@pytest.fixture
def live(shared: LiveJob) -> LiveJob:
    shared.await_live()
    return shared


def test_ticks_alone_move_the_watermark_of_an_idle_detector(live: LiveJob) -> None:
    """Nothing that arrives is a failed login: the filter of the detector must not hold the ticks back."""
    job, topic = live.job, live.topic
    began = datetime.now(UTC)
    with ticking(topic):
        topic.event("ann", began, began, 0, action="login succeeded")
        topic.event(None, began, began, 1)  # type: ignore[arg-type]  # an entity may be missing
        job.await_report(
            lambda r: r.watermark is not None and r.watermark > began + timedelta(seconds=3), READY_SECONDS
        )
    assert not [one for one in job.findings().values() if one.entity["user_id"] == "ann"]
    told = job.await_report(lambda r: bool(r.counts))
    assert (told.counts, told.rows_in) == ({"null_entity": 1}, 2), "ticks are no records"


def test_a_kill_in_real_time_mode_repeats_and_loses_nothing(live: LiveJob) -> None:
    job, topic = live.job, live.topic
    with ticking(topic):
        for number, count in enumerate((51, 100, 50, 101, 160)):
            topic.burst(f"before{number}", count, partition=number % 2)
        await_that(lambda: len(job.findings()) >= 3, READY_SECONDS)
        half = datetime.now(UTC)
        topic.burst("across", 30, moment=half)
        job.kill(live.process)
        topic.burst("across", 30, moment=half)
        live.process = job.start()
        topic.burst("after", 137, partition=1)
        job.await_truth(topic.truth)
        # When their windows have closed, what was told as at least 155 and 133 is told as it was, restart or not.
        await_that(lambda: not any(one.at_least for one in job.findings().values()), READY_SECONDS)
        job.await_truth(topic.truth)
    report = job.await_report(lambda r: r.pid == live.process.pid and r.mode == "real-time")
    assert report.rows_dropped_late == 0


def test_a_copy_is_refused(live: LiveJob) -> None:
    assert live.job.start().wait(patient(READY_SECONDS)) == 3
    assert live.process.poll() is None


def test_sigterm_stops_in_time_and_a_changed_state_gets_a_new_checkpoint_and_publishes_whole_windows(
    live: LiveJob,
) -> None:
    job, topic, process = live.job, live.topic, live.process
    with ticking(topic):
        rows = job.await_report(lambda r: r.pid == process.pid).rows_in
        topic.burst("first", 60)
        job.await_truth(topic.truth)
        job.await_report(lambda r: r.rows_in >= rows + 60)
        live.stop()
        assert job.await_report(lambda r: r.pid == process.pid).state is JobState.STOPPED
        path = job.settings.project / "detectors" / "failed_logins.py"
        path.write_text(path.read_text().replace("'login failed'", "'login failed' and ip_address is not null"))
        topic.burst("while away", 60, partition=1)
        live.process = job.start()
        topic.burst("after", 101)
        job.await_truth(topic.truth)
    assert len(list(job.settings.checkpoint(JOB).glob("*/start.json"))) == 2
