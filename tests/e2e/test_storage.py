"""A detector whose checkpoint lies in an object store: killed, moved to another machine, cut off, refused.

The tests share one job and one store, in this order: each goes on from what the one before it left.
"""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.rig.broker import Broker
from tests.rig.detect_job import JOB, READY_SECONDS, LiveJob, detect_job, ticking
from tests.rig.object_store import ObjectStoreServer
from tests.rig.waiting import await_that, patient
from tocsin.declare.model.job_report import JobState
from tocsin.platform.process_exit import ExitCode
from tocsin.platform.storage.job_folders import stored_folder

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, broker: Broker, server: ObjectStoreServer) -> Iterator[LiveJob]:
    with detect_job(tmp_path_factory.mktemp("storage"), broker, server.settings("team/checkpoints")) as job:
        one = LiveJob(job)
        with ticking(one.topic):
            yield one


def find_burst(live: LiveJob, user: str, count: int) -> None:
    """Write a burst, and wait until it is found; the batch that has found it is not committed yet, most likely."""
    live.topic.burst(user, count, moment=datetime.now(UTC))
    await_that(lambda: any(one.entity["user_id"] == user for one in live.job.findings().values()), READY_SECONDS)


def await_batches(live: LiveJob, more: int) -> None:
    before = live.job.committed_batches()
    await_that(lambda: live.job.committed_batches() >= before + more, READY_SECONDS)


def test_a_kill_loses_and_doubles_nothing(live: LiveJob) -> None:
    live.await_live()
    await_batches(live, 1)
    for number in range(3):
        find_burst(live, f"killed{number}", 60)
        live.job.kill(live.process)
        live.topic.burst(f"meanwhile{number}", 120)
        live.await_live()
    live.job.await_truth(live.topic.truth)


def test_nothing_of_the_checkpoint_lies_on_the_disk(live: LiveJob) -> None:
    """Locks, requests and scratch do."""
    local, stored = live.job.settings.checkpoint(JOB), stored_folder(live.job.settings, JOB)
    assert [*stored.glob("*/start.json")]
    assert [*stored.glob("*/query/state/*")]
    assert [*local.glob("*/start.json"), *local.glob("*/query*")] == []


def test_a_machine_with_an_empty_disk_goes_on_where_the_lost_one_was(live: LiveJob) -> None:
    find_burst(live, "last-words", 60)
    report = live.job.await_report(lambda r: r.batch_id is not None)
    live.job.kill(live.process)
    shutil.rmtree(live.job.settings.state)
    live.topic.burst("moving", 120)
    live.await_live()
    after = live.job.await_report(lambda r: r.pid == live.process.pid and r.batch_id is not None)
    assert report.batch_id is not None
    assert after.batch_id is not None
    assert after.batch_id > report.batch_id, "the same checkpoint"
    live.job.await_truth(live.topic.truth)


def test_a_store_that_is_cut_off_in_mid_write_or_at_the_start_is_waited_for(
    live: LiveJob, server: ObjectStoreServer
) -> None:
    live.await_live()
    server.wire.most_bytes = 300  # each request breaks off in the middle of its head
    live.topic.burst("half-written", 130)
    waiting = live.job.await_report(lambda r: r.state is JobState.WAITING and "object store" in r.reason)
    assert live.process.poll() is None, waiting
    server.wire.cut()
    live.topic.burst("cut-off", 60, moment=datetime.now(UTC) + timedelta(seconds=1))
    tried = live.job.log.read_text().count("query restarting") + 2
    await_that(lambda: live.job.log.read_text().count("query restarting") >= tried, READY_SECONDS)
    assert live.process.poll() is None
    live.job.kill(live.process)
    pid = live.start().pid
    live.job.await_report(lambda r: (r.pid, r.state) == (pid, JobState.WAITING) and "object store" in r.reason)
    server.wire.mend()
    live.await_live()
    assert live.process.pid == pid
    live.job.await_truth(live.topic.truth)


def test_a_slow_store_makes_findings_late_and_one_that_hangs_is_waited_for(
    live: LiveJob, server: ObjectStoreServer
) -> None:
    live.await_live()
    server.wire.slow_down(1.0)  # each of the forty requests of a batch
    find_burst(live, "slowly", 120)
    await_batches(live, 1)
    live.topic.burst("in-time", 60, moment=datetime.now(UTC))
    live.job.await_report(lambda r: r.state is JobState.RUNNING)
    server.wire.slow_down(60.0)
    live.topic.burst("hanging", 60, moment=datetime.now(UTC))
    live.job.await_report(lambda r: r.state is JobState.WAITING and "object store" in r.reason)
    server.wire.mend()
    live.await_live()
    live.job.await_truth(live.topic.truth)


def test_a_store_that_denies_stops_the_job_and_says_why(live: LiveJob, server: ObjectStoreServer) -> None:
    live.await_live()
    server.deny()
    try:
        assert live.process.wait(patient(120)) == ExitCode.MISCONFIGURED
    finally:
        server.allow()
    assert "storage.checkpoints: the store" in live.job.log.read_text()
    live.topic.burst("let-in-again", 60)
    live.await_live()
    live.job.await_truth(live.topic.truth)
