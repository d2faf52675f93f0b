"""What a job says of itself, also while it retries, as whoever looks at the same moment finds it. There is no Kafka."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, call

import psutil
import pytest

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.settings import Settings
from tocsin.platform import heartbeat
from tocsin.platform.heartbeat import end_beside, read_beat
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.kafka.retry import Retry

JOB = "detector:bursts"
UPDATES = 40


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes what it is given; a real producer would wait for its broker at each end."""
    monkeypatch.setattr("tocsin.platform.kafka.reporter.RecordWriter", Mock())


@pytest.fixture
def beside(settings: Settings) -> Iterator[Reporter]:
    reporter = Reporter(settings, JOB, beside=True)
    reporter.update(state=JobState.RUNNING)
    yield reporter
    reporter.close()


class Clock:
    """Time that passes when a test says so."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tocsin.platform.kafka.reporter.time", clock)
    return clock


@pytest.fixture
def reporter(settings: Settings) -> Iterator[Reporter]:
    """Of a job that has finished a batch and read all that there was."""
    reporter = Reporter(settings, JOB)
    reporter.update(state=JobState.RUNNING, batch_id=0, lag_records=0)
    yield reporter
    reporter.close()


def test_a_quiet_hour_is_no_standstill_when_at_last_something_comes(reporter: Reporter, clock: Clock) -> None:
    clock.now += 3600
    assert reporter.report().stalled_seconds == 0
    reporter.update(lag_records=1)
    clock.now += 5
    reporter.update(lag_records=7)
    clock.now += 2
    assert reporter.report().stalled_seconds == 7, "from the first record that waited"
    reporter.update(lag_records=0)
    assert reporter.report().stalled_seconds == 0


def test_a_standstill_begins_anew_with_each_batch(reporter: Reporter, clock: Clock) -> None:
    reporter.update(lag_records=9)
    clock.now += 500
    reporter.update(batch_id=1, lag_records=8)
    clock.now += 400
    reporter.update(batch_id=1, reason="still behind")
    assert reporter.report().stalled_seconds == 400


def test_who_waits_for_something_outside_does_not_stand_still(reporter: Reporter, clock: Clock) -> None:
    reporter.update(lag_records=9)
    reporter.update(state=JobState.WAITING, reason="Kafka is away")
    clock.now += 3600
    reporter.update(state=JobState.RUNNING, reason="")
    clock.now += 3
    assert reporter.report().stalled_seconds == 3


def test_a_wait_lasts_until_the_job_works_again_however_often_it_starts_anew(reporter: Reporter, clock: Clock) -> None:
    for state in (JobState.WAITING, JobState.STARTING, JobState.WAITING):
        reporter.update(state=state, reason="Kafka is away")
        clock.now += 250
    report = reporter.report()
    assert (report.waiting_seconds, report.waits_long) == (750, True)
    reporter.update(state=JobState.RUNNING, reason="")
    assert reporter.report().waiting_seconds == 0


def test_who_has_said_that_it_goes_on_stands_still_when_it_does_not(reporter: Reporter, clock: Clock) -> None:
    for comes_by in (reporter.goes_on, reporter.update):
        clock.now += 400
        comes_by()
        clock.now += 2
        assert reporter.report().stalled_seconds == 2
    clock.now += 3600
    assert reporter.report().stalled_seconds == 3602
    reporter.update(state=JobState.WAITING, reason="Kafka is away")
    clock.now += 5
    assert reporter.report().stalled_seconds == 5, "in each state"


def test_the_first_batch_may_take_as_long_as_it_likes(settings: Settings, clock: Clock) -> None:
    first = Reporter(settings, JOB)
    first.update(state=JobState.RUNNING, lag_records=9)
    clock.now += 3600
    assert first.report().stalled_seconds == 0
    first.update(batch_id=0)
    clock.now += 5
    assert first.report().stalled_seconds == 5
    first.close()


def test_who_runs_beside_another_process_does_not_stand_still(beside: Reporter, clock: Clock) -> None:
    beside.update(batch_id=0, lag_records=9)
    clock.now += 3600
    assert beside.report().stalled_seconds == 0


def test_a_start_that_does_not_come_on_stands_still(settings: Settings, clock: Clock) -> None:
    reporter = Reporter(settings, JOB)
    clock.now += 500
    reporter.update(version="v2")
    clock.now += 700
    assert reporter.report().stalled_seconds == 700, "beats alone are no progress"
    reporter.update(state=JobState.RUNNING)
    clock.now += 700
    assert reporter.report().stalled_seconds == 0
    reporter.close()


def test_the_process_list_is_read_seldom_and_children_count(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = []
    children = psutil.Process.children

    def counted(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        walks.append(process)
        return children(process, recursive=recursive)

    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            reporter = Reporter(settings, JOB)
            alone = psutil.Process().memory_info().rss
            assert reporter.report().rss_bytes > alone
            monkeypatch.setattr("tocsin.platform.kafka.reporter._YOUNG_SECONDS", 0.0)
            monkeypatch.setattr("psutil.Process.children", counted)
            reports = [reporter.report() for _ in range(20)]
            assert len(walks) <= 1
            assert min(one.rss_bytes for one in reports) > alone
        finally:
            child.kill()
    assert reporter.report().rss_bytes > 0, "what has ended is left out"
    reporter.close()


def test_two_threads_that_report_at_once_never_leave_half_a_heartbeat_or_an_older_one(settings: Settings) -> None:
    reporter = Reporter(settings, JOB)
    reporter.update(state=JobState.RUNNING)

    def report() -> None:
        for length in range(UPDATES):
            reporter.update(reason="x" * (length * 25))

    threads = [threading.Thread(target=report) for _ in range(2)]
    for thread in threads:
        thread.start()
    found = []
    while any(thread.is_alive() for thread in threads):
        found.append(read_beat(settings.state, JOB))
    reporter.close()
    assert None not in found, "a job without a heartbeat is taken for hung"
    moments = [beat.report.at for beat in found if beat is not None]
    assert moments == sorted(moments)
    assert len({*moments}) > UPDATES / 2


def test_a_job_whose_work_does_not_answer_has_no_heartbeat(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.platform.kafka.reporter.EVERY_SECONDS", 0.02)
    asked, answers = threading.Semaphore(0), threading.Semaphore(0)

    def await_answer() -> None:
        asked.release()
        answers.acquire()

    reporter = Reporter(settings, JOB)
    reporter.expect_batches(await_answer)
    assert asked.acquire(timeout=60)
    assert read_beat(settings.state, JOB) is None
    answers.release()
    assert asked.acquire(timeout=60), "it is asked before each report"
    assert read_beat(settings.state, JOB) is not None
    answers.release(1_000)
    reporter.close()


def test_who_takes_over_has_a_heartbeat_at_each_moment(
    settings: Settings, beside: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_beat(settings.state, JOB) is None
    leading = []

    def end(state: Path, job: str) -> None:
        leading.append(read_beat(state, job))
        end_beside(state, job)

    monkeypatch.setattr(heartbeat, "end_beside", end)
    beside.lead()
    (beat,) = leading
    assert beat is not None
    assert beat.report.state is JobState.RUNNING
    assert read_beat(settings.state, JOB, beside=True) is None


def test_a_first_batch_that_never_ends_is_a_standstill(settings: Settings, clock: Clock) -> None:
    """As that of a function that loops on the first event."""
    with contextlib.closing(Reporter(settings, JOB)) as reporter:
        reporter.expect_batches(lambda: None)
        reporter.update(state=JobState.RUNNING, lag_records=3)
        clock.now += 1
        reporter.update(lag_records=4)
        clock.now += 600
        assert reporter.report().stalled_seconds == 601
        reporter.update(batch_id=0, lag_records=0)
        assert reporter.report().stalled_seconds == 0


# --- retries ----------------------------------------------------------------------------------------------------------


AWAY = call(state=JobState.WAITING, reason="Kafka is away")


def failing(times: int) -> Mock:
    return Mock(side_effect=[TransientError("Kafka is away")] * times + ["done"])


def test_intervals_double_up_to_five_seconds_and_begin_anew_after_a_success() -> None:
    reporter, waits = Mock(spec=Reporter), list[float]()
    retry = Retry(reporter, threading.Event(), wait=waits.append)
    assert retry.call(failing(7)) == "done"
    assert waits == [0.25, 0.5, 1, 2, 4, 5, 5]
    assert retry.call(failing(1)) == "done"
    assert waits[7:] == [0.25]
    retry.recovered()
    retry.recovered()
    assert reporter.update.call_args_list == [AWAY, call(state=JobState.RUNNING, reason="")]


def test_no_attempt_follows_once_the_job_is_asked_to_stop() -> None:
    stop = threading.Event()
    work = failing(1)
    assert Retry(Mock(spec=Reporter), stop, wait=lambda _: stop.set()).call(work) is None
    assert work.call_count == 1


def test_what_no_retry_helps_is_raised_at_once() -> None:
    with pytest.raises(ConfigError):
        Retry(Mock(spec=Reporter), threading.Event()).call(Mock(side_effect=ConfigError.one("x", "is wrong")))
