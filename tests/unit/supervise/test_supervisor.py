"""Supervision of real processes: light ones, at a quick timing."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.rig.waiting import await_that
from tests.unit.supervise.dummies import SLEEP, STUBBORN, WITH_CHILD, launch
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.job_report import FailureCause, JobReport, JobState
from tocsin.platform.heartbeat import Beat, beat, end_beside, read_beat
from tocsin.platform.lock import hold
from tocsin.supervise.incidents.event_log import EventKind, read_events
from tocsin.supervise.job_states import (
    Action,
    Change,
    Condition,
    Desired,
    History,
    Past,
    Start,
    Timing,
    read_history,
    write_history,
)
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch
from tocsin.supervise.supervisor import JobGroup, Supervisor, stuck_at

QUICK = Timing(
    first_delay=0.05, longest_delay=0.2, crash_loop_failures=3, healthy_after=30.0, stale_after=1.5, stop_grace=1.0
)
GOOD = Desired("v1", beats=False)
FAILING = "import sys; print('it broke', file=sys.stderr); sys.exit({code})"
BEATS_THEN_HANGS = """
import os, time
from datetime import UTC, datetime
from pathlib import Path
from tocsin.platform.heartbeat import beat
from tocsin.declare.model.job_report import FailureCause, JobReport, JobState
for _ in range({beats}):
    about = {{"job": "notifier", "at": datetime.now(UTC), "pid": os.getpid(), "rss_bytes": {rss}}}
    beat(Path({state!r}), JobReport(state=JobState.WAITING, **about))
    time.sleep(0.05)
time.sleep(600)
"""


class Bench:
    """One installation with dummies for jobs."""

    def __init__(self, state: Path) -> None:
        self.state, self.instance = state, f"test-{uuid.uuid4().hex[:8]}"
        self.codes: dict[str, str] = {}
        self.runner = self.new_runner()
        self.supervisor = self.new_supervisor(self.runner)
        self.done: list[Action] = []

    def new_runner(self) -> LocalRunner:
        return LocalRunner(self.instance, lambda job: self.state / "logs" / f"{job.replace(':', '__')}.log")

    def new_supervisor(self, runner: LocalRunner, clock: Callable[[], float] | None = None) -> Supervisor:
        group = JobGroup(name="jobs", state=self.state, launch=self.launch, timing=QUICK)
        return Supervisor(group, runner) if clock is None else Supervisor(group, runner, clock)

    def launch(self, start: Start) -> Launch:
        return launch(self.state, Labels(self.instance, start.job, start.spec), self.codes.get(start.job, SLEEP))

    def tick(self, desired: dict[str, Desired]) -> list[Action]:
        actions = self.supervisor.tick(desired)
        self.done += actions
        return actions

    def pid(self, job: str) -> int | None:
        return next((process.pid for process in self.runner.list() if process.labels.job == job), None)

    def conditions(self, job: str) -> list[Condition]:
        return [action.condition for action in self.done if isinstance(action, Change) and action.job == job]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path)
    yield one
    one.supervisor.stop(0)
    assert one.runner.list() == []


def test_a_crash_loop_of_one_job_does_not_touch_the_other(bench: Bench) -> None:
    bench.codes["detector:bad"] = FAILING.format(code=1)
    desired = {"detector:bad": GOOD, "notifier": GOOD}
    bench.tick(desired)
    neighbour = bench.pid("notifier")

    def looping() -> bool:
        bench.tick(desired)
        return Condition.CRASH_LOOP in bench.conditions("detector:bad")

    await_that(looping)
    for _ in range(10):
        bench.tick(desired)
    assert bench.conditions("detector:bad") == [Condition.RESTARTING, Condition.CRASH_LOOP]
    past = bench.supervisor.pasts()["detector:bad"]
    assert past.condition.is_failing
    assert "failed with exit code 1" in past.reason
    assert bench.runner.logs("detector:bad", 1) == ["it broke"]
    assert bench.pid("notifier") == neighbour is not None
    assert bench.conditions("notifier") == []


def test_what_ended_while_nobody_supervised_is_no_failure(bench: Bench) -> None:
    """As with a launcher that was killed; what outlived it is adopted."""
    desired = {"notifier": GOOD, "indexer": GOOD}
    bench.tick(desired)
    gone, lives = bench.pid("notifier"), bench.pid("indexer")
    assert gone is not None
    os.kill(gone, signal.SIGKILL)
    await_that(lambda: bench.pid("notifier") is None)
    bench.supervisor.excuse_ends()
    (start,) = bench.tick(desired)
    assert start == Start("notifier", "v1", "should run")
    assert bench.pid("indexer") == lives
    end = read_events(bench.state, "notifier")[1]
    assert (end.what, end.reason, end.failed) == (EventKind.END, "ended with the stack", False)
    assert [event.what for event in read_events(bench.state, "indexer")] == [EventKind.START]


def test_the_last_words_of_a_job_are_the_cause_of_its_failure(bench: Bench) -> None:
    bench.codes["notifier"] = FAILING.format(code=1)
    bench.tick({"notifier": GOOD})
    words = {"reason": "no such column:\n  user", "started_at": datetime.now(UTC)}
    beat(bench.state, JobReport(job="notifier", at=datetime.now(UTC), state=JobState.FAILED, **words))

    def told() -> bool:
        bench.tick({"notifier": GOOD})
        return bool(bench.conditions("notifier"))

    await_that(told)
    change = next(action for action in bench.done if isinstance(action, Change))
    assert change.reason == "failed with exit code 1: no such column: user"
    assert bench.supervisor.pasts()["notifier"].first == FailureCause(what="no such column: user")


def test_two_supervisors_do_not_act_at_the_same_time(bench: Bench) -> None:
    with hold(bench.state / "supervision" / "jobs.lock"):
        assert bench.tick({"notifier": GOOD}) == []
        assert bench.pid("notifier") is None
    assert len(bench.tick({"notifier": GOOD})) == 1


@pytest.mark.parametrize(
    ("beats", "rss", "wanted", "why"),
    [
        (2, 0, Desired("v1"), "is hung"),
        (10_000, 600_000_000, Desired("v1", memory_bytes=500_000_000), "memory limit: takes 600 MB of 500 MB"),
    ],
)
def test_a_job_whose_heartbeat_stops_or_tells_of_too_much_memory_is_replaced(
    bench: Bench, beats: int, rss: int, wanted: Desired, why: str
) -> None:
    bench.codes["notifier"] = BEATS_THEN_HANGS.format(beats=beats, rss=rss, state=str(bench.state))
    bench.tick({"notifier": wanted})
    first = bench.pid("notifier")

    def replaced() -> bool:
        bench.tick({"notifier": wanted})
        return bench.pid("notifier") not in (None, first)

    await_that(replaced)
    assert any(why in str(action) for action in bench.done)


def test_a_job_whose_heartbeat_tells_of_a_standstill_is_replaced(bench: Bench) -> None:
    bench.tick({"notifier": Desired("v1")})
    stuck = bench.pid("notifier")

    def reports(stalled_seconds: float) -> list[Action]:
        report = JobReport(job="notifier", at=datetime.now(UTC), pid=stuck, state=JobState.RUNNING)
        beat(bench.state, report.model_copy(update={"stalled_seconds": stalled_seconds}))
        return bench.tick({"notifier": Desired("v1")})

    assert reports(QUICK.stalled_after - 1) == []
    assert "made no progress" in str(reports(QUICK.stalled_after + 1))


def test_who_takes_over_just_when_it_is_looked_at_is_not_taken_for_hung(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.tick({"notifier": Desired("v1")})
    pid = bench.pid("notifier")
    report = JobReport(job="notifier", at=datetime.now(UTC), pid=pid, state=JobState.READY)
    beat(bench.state, report, beside=True)

    def read(state: Path, job: str, *, beside: bool = False) -> Beat | None:
        found = read_beat(state, job, beside=beside)
        beat(state, report)
        end_beside(state, job)
        return found

    monkeypatch.setattr("tocsin.supervise.supervisor.read_beat", read)
    later = bench.new_supervisor(bench.runner, lambda: time.time() + 3600)
    assert later.tick({"notifier": Desired("v1")}) == []
    assert bench.pid("notifier") == pid


def test_a_job_that_waits_and_beats_is_left_alone(bench: Bench) -> None:
    """As one does while Kafka is down: its state is waiting, and it goes on by itself."""
    bench.codes["notifier"] = BEATS_THEN_HANGS.format(beats=10_000, rss=10**9, state=str(bench.state))
    bench.tick({"notifier": Desired("v1")})
    await_that((bench.state / "heartbeats" / "notifier.json").exists)
    first, end = bench.pid("notifier"), time.monotonic() + 2 * QUICK.stale_after

    def long_enough() -> bool:
        bench.tick({"notifier": Desired("v1")})
        return time.monotonic() > end

    await_that(long_enough, 60)
    assert bench.pid("notifier") == first
    assert [type(action) for action in bench.done] == [Start]


def test_a_state_folder_that_cannot_be_written_is_an_error_before_anything_is_started(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        bench.tick({"notifier": GOOD})
    assert bench.pid("notifier") is None


def test_stopping_asks_first_and_then_ends_by_force(bench: Bench) -> None:
    bench.codes["notifier"] = STUBBORN
    bench.tick({"notifier": GOOD, "indexer": GOOD})
    await_that(lambda: bench.runner.logs("notifier", 1) == ["deaf"])
    bench.supervisor.stop(0.5)
    assert bench.runner.list() == []
    assert bench.runner.exit_code("notifier") == -signal.SIGKILL
    assert bench.runner.exit_code("indexer") == -signal.SIGTERM


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_what_a_killed_driver_leaves_is_ended_before_the_restart(bench: Bench) -> None:
    """As a JVM that outlives its Python driver: two writers of one checkpoint must never meet."""
    bench.codes["detector:a"] = WITH_CHILD
    desired = {"detector:a": GOOD}
    bench.tick(desired)
    await_that(lambda: bench.runner.logs("detector:a", 1))
    child = int(bench.runner.logs("detector:a", 1)[0].removeprefix("child "))
    first = bench.pid("detector:a")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await_that(lambda: [process.pid for process in bench.runner.list()] == [child])
    bench.tick(desired)

    def restarted() -> bool:
        bench.tick(desired)
        return [process.leader for process in bench.runner.list()] == [True]

    await_that(restarted)
    (only,) = bench.runner.list()
    assert only.pid not in (first, child)


def test_what_it_did_and_why_is_kept_for_people(bench: Bench) -> None:
    desired = {"notifier": GOOD}
    bench.codes["notifier"] = FAILING.format(code=7)
    bench.tick(desired)
    await_that(lambda: bench.pid("notifier") is None)
    bench.codes["notifier"] = SLEEP
    bench.tick(desired)
    bench.supervisor.restart("notifier")
    await_that(lambda: bench.pid("notifier") is None)
    bench.tick(desired)
    bench.supervisor.stop(5)
    start, end, restart, asked, again, last = (
        one for one in read_events(bench.state, "notifier") if one.what is not EventKind.CONDITION
    )
    assert (start.what, start.reason) == (EventKind.START, "should run")
    assert (end.what, end.exit_code, end.condition) == (EventKind.END, 7, Condition.RESTARTING)
    assert (restart.what, restart.reason) == (EventKind.START, "restart 1: failed with exit code 7")
    assert (asked.what, asked.reason) == (EventKind.STOP, "a restart was asked for")
    assert (again.what, last.what, last.reason) == (EventKind.START, EventKind.STOP, "shutdown")


def test_a_start_that_fails_is_kept_with_its_reason(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_program(start: Start) -> Launch:
        raise ConfigError.one("locks/python.txt", "holds no PySpark")

    bench.codes["notifier"] = FAILING.format(code=7)
    bench.tick({"notifier": GOOD})
    await_that(lambda: bench.pid("notifier") is None)
    monkeypatch.setattr(bench, "launch", no_program)
    supervisor = bench.new_supervisor(bench.runner)
    supervisor.tick({"notifier": GOOD})
    refused = read_events(bench.state, "notifier")[-1]
    assert (refused.what, refused.reason) == (
        EventKind.REFUSED,
        "cannot be started: locks/python.txt: holds no PySpark",
    )
    await_that(lambda: Start in [type(action) for action in supervisor.tick({"notifier": GOOD})])  # it is tried again
    *_, end = (one for one in read_events(bench.state, "notifier") if one.what is EventKind.END)
    assert (end.reason, end.exit_code) == (refused.reason, None), "nothing of the process before"


def test_the_last_stack_in_a_log_says_where_a_worker_is() -> None:
    stack = """Timeout (0:02:00)!
Thread 0x00007f (most recent call first):
  File "/srv/lib/python3.11/re/__init__.py", line 190 in search
  File "/srv/project/detectors/slow.py", line {line} in score
  File "/srv/project/detectors/slow.py", line 30 in outer
  File "/srv/lib/python3.11/site-packages/pyspark/worker.py", line 90 in <lambda>
"""
    log = [*stack.format(line=12).splitlines(), "time=... event=x", *stack.format(line=14).splitlines()]
    assert stuck_at(log) == "detectors/slow.py:14"
    assert stuck_at(["Timeout (0:02:00)!", '  File "/srv/lib/x.py", line 1 in f']) == ""
    assert stuck_at(log[2:4]) == "", "no stack of a worker that is busy for long"
    assert stuck_at([]) == ""


JOB, OTHER = "notifier", "indexer"
NOTHING: frozenset[str] = frozenset()


def diff(bench: Bench, desired: dict[str, Desired]) -> frozenset[str]:
    """As another process sees it."""
    return bench.new_supervisor(bench.new_runner()).diff(desired)


def test_what_is_missing_dead_changed_or_unknown_is_different_until_a_look(bench: Bench) -> None:
    desired = {JOB: GOOD, OTHER: GOOD}
    assert diff(bench, desired) == {JOB, OTHER}
    assert bench.runner.list() == [], "nothing is done"
    bench.tick(desired)
    assert diff(bench, desired) == NOTHING
    assert diff(bench, {JOB: Desired("v2", beats=False), OTHER: GOOD}) == {JOB}
    assert diff(bench, {JOB: GOOD}) == {OTHER}
    os.kill(bench.pid(JOB) or 0, signal.SIGKILL)
    await_that(lambda: diff(bench, desired) == {JOB})
    bench.tick(desired)
    assert diff(bench, desired) == NOTHING


def test_an_end_is_a_difference_even_when_the_next_start_is_far(bench: Bench) -> None:
    """It is to be counted, so that a crash loop is found when it begins."""
    bench.codes[JOB] = FAILING.format(code=1)
    bench.tick({JOB: GOOD})
    await_that(lambda: bench.pid(JOB) is None)
    bench.tick({JOB: GOOD})  # the first restart is at once
    await_that(lambda: bench.pid(JOB) is None)
    assert diff(bench, {JOB: GOOD}) == {JOB}


def test_a_restart_is_done_by_the_next_look_and_is_no_failure(bench: Bench) -> None:
    bench.tick({JOB: GOOD, OTHER: GOOD})
    first, other = bench.pid(JOB), bench.pid(OTHER)
    operator = bench.new_supervisor(bench.new_runner())
    assert operator.restart(JOB)
    await_that(lambda: bench.pid(JOB) is None)
    assert diff(bench, {JOB: GOOD, OTHER: GOOD}) == {JOB}
    bench.tick({JOB: GOOD, OTHER: GOOD})
    assert bench.pid(JOB) not in (None, first)
    assert bench.pid(OTHER) == other
    assert bench.conditions(JOB) == []


def test_a_restart_waits_for_the_supervisor_that_looks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.tick({JOB: GOOD})
    lock = hold(bench.state / "supervision" / "jobs.lock")
    monkeypatch.setattr("tocsin.supervise.supervisor.time.sleep", lambda _: lock.release())
    assert bench.supervisor.restart(JOB)


def test_the_exit_code_is_known_to_a_supervisor_that_did_not_start_the_process(bench: Bench) -> None:
    bench.codes[JOB] = "from tocsin.platform import process_exit; raise SystemExit(process_exit.record(2))"
    bench.tick({JOB: GOOD})
    await_that(lambda: bench.pid(JOB) is None)
    bench.supervisor = bench.new_supervisor(bench.new_runner())
    bench.tick({JOB: GOOD})
    assert bench.conditions(JOB) == [Condition.MISCONFIGURED]


HISTORY = History(
    jobs={
        "notifier": Past(
            spec="v1",
            started_at=12.5,
            expected=True,
            failures=(1.0, 2.0),
            retry_at=9.0,
            condition=Condition.CRASH_LOOP,
            reason="failed with exit code 1",
            asked={77: 3.0},
        )
    },
    heavy_start_at=4.0,
)


def test_what_is_remembered_is_read_back(tmp_path: Path) -> None:
    write_history(tmp_path / "new" / "jobs.json", HISTORY)
    assert read_history(tmp_path / "new" / "jobs.json") == HISTORY
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["jobs.json"]


def test_a_memory_that_is_not_there_or_broken_is_empty(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"jobs": {"notifier": {"spec": ')
    assert read_history(tmp_path / "broken.json") == History()
    assert read_history(tmp_path / "none.json") == History()
