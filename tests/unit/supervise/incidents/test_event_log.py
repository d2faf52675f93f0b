from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.declare.model.job_report import FailureCause
from tocsin.supervise.incidents.event_log import LIMIT_BYTES, EventKind, JobEvent, Look, read_events, record
from tocsin.supervise.job_states import Action, Actual, Change, Condition, Desired, History, Live, Past, Start, Stop
from tocsin.supervise.restart_policy import end_reason, plan_restart, reconcile

JOB = "detector:bursts"
OTHER = "notifier"
WANTED = {JOB: Desired("v1")}


def event(reason: str, at: float = 1.0) -> JobEvent:
    return JobEvent(
        at=at, what=EventKind.END, reason=reason, condition=Condition.RESTARTING, exit_code=-9, ran_seconds=12.5
    )


def live(pid: int, spec: str = "v1", rss_bytes: int = 0) -> Live:
    return Live(job=JOB, pid=pid, spec=spec, started_at=100.0, beat_at=200.0, rss_bytes=rss_bytes)


def look(actual: Actual, before: History, wanted: dict[str, Desired] | None = None, at: float = 200.0) -> Look:
    actions, after = reconcile(WANTED if wanted is None else wanted, actual, before, at)
    return Look(at, actual, before, after, actions)


def running(spec: str = "v1", **past: object) -> History:
    return History(jobs={JOB: Past(spec=spec, started_at=100.0, expected=True, **past)})  # type: ignore[arg-type]  # of each field its own type


def test_a_job_that_ended_is_told_with_its_code_its_life_and_what_follows() -> None:
    found = look(Actual(exits={JOB: -9}), running()).events()
    assert [(job, one.what) for job, one in found] == [
        (JOB, EventKind.END),
        (JOB, EventKind.CONDITION),
        (JOB, EventKind.START),
    ]
    end, change, start = (one for _, one in found)
    assert (end.exit_code, end.ran_seconds, end.condition, end.failed) == (-9, 100.0, Condition.RESTARTING, True)
    assert end.reason == change.reason == "was killed by signal 9 (SIGKILL)"
    assert start.reason == "restart 1: was killed by signal 9 (SIGKILL)"


def test_an_end_that_leads_into_a_crash_loop_says_so() -> None:
    actual = Actual(exits={JOB: 1}, causes={JOB: FailureCause(what="no such column")})
    found = look(actual, running(failures=(150.0, 160.0, 170.0))).events()
    assert found[0][1].condition is Condition.CRASH_LOOP
    assert found[0][1].reason == "failed with exit code 1: no such column", "the count is no cause"
    assert found[1][1].reason == "4 failures within 30 min, the first: no such column"


def test_when_a_job_works_again_is_told_once() -> None:
    started = History(jobs={JOB: Past(spec="v1", started_at=100.0, expected=True)})
    first = look(Actual(live=[replace(live(7), leads=True)]), started)
    second = look(Actual(live=[replace(live(7), leads=True, works=True)]), first.after, at=240.0)
    third = look(Actual(live=[replace(live(7), leads=True)]), second.after, at=241.0)
    fourth = look(Actual(live=[replace(live(7), leads=True, works=True)]), third.after, at=242.0)
    told = [[(one.what, one.at) for _, one in each.events()] for each in (first, second, third, fourth)]
    assert told == [[], [(EventKind.WORKS, 240.0)], [], []]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-9, "was killed by signal 9 (SIGKILL)"),
        (-99, "was killed by signal 99 (unknown)"),
        (None, "ended without an exit code: killed by the kernel (out of memory) or by somebody"),
        (1, "failed with exit code 1: why"),
        (2, "its configuration is wrong: why"),
    ],
)
def test_an_end_says_what_can_be_known(code: int | None, said: str) -> None:
    assert end_reason(code, "" if code is None else "why") == said


def test_a_version_that_ended_beside_the_one_that_runs_is_told_too() -> None:
    end = look(Actual(live=[live(7, spec="v0")], exits={JOB: 2}), running()).events()[0][1]
    assert (end.what, end.exit_code) == (EventKind.END, 2)


def test_an_end_is_dated_by_the_last_sign_of_life() -> None:
    end = look(Actual(exits={JOB: 1}, ended={JOB: 150.0}), running()).events()[0][1]
    assert (end.at, end.ended_at, end.ran_seconds) == (200.0, 150.0, 50.0)


def test_a_stop_is_no_end_and_tells_why_and_how_long_it_ran() -> None:
    ((_, one),) = look(Actual(live=[live(7, spec="v0")]), running("v0")).events()
    assert (one.what, one.reason, one.ran_seconds) == (EventKind.STOP, "runs from another spec", 100.0)
    stopped = History(jobs={JOB: Past(spec="v1", asked={7: 199.0})})
    assert [one.what for _, one in look(Actual(exits={JOB: 0}), stopped).events()] == [EventKind.START]


def test_memory_over_the_declared_is_the_cause_of_the_stop() -> None:
    wanted = {JOB: Desired("v1", memory_bytes=500_000_000)}
    found = look(Actual(live=[live(7, rss_bytes=600_000_000)]), running(), wanted).events()
    stop = next(one for _, one in found if one.what is EventKind.STOP)
    assert (stop.reason, stop.failed) == ("memory limit: takes 600 MB of 500 MB", True)


def test_a_restart_that_was_asked_for_says_so() -> None:
    actual, before = Actual(live=[live(7)]), running(failures=(150.0,), condition=Condition.RESTARTING)
    actions, after = plan_restart(JOB, actual, before, 200.0)
    ((_, one),) = Look(200.0, actual, before, after, actions).events()
    assert (one.what, one.reason, one.failed) == (EventKind.STOP, "a restart was asked for", False)


def test_a_look_at_which_nothing_happens_tells_nothing() -> None:
    assert look(Actual(live=[live(7)]), running()).events() == []


def test_an_end_of_what_is_not_to_run_any_more_has_a_cause_too() -> None:
    (_, one), *_ = look(Actual(), running(), {}).events()
    assert (one.what, one.reason) == (EventKind.END, end_reason(None))


def test_kinds_of_actions_are_told_apart() -> None:
    after = History(jobs={JOB: Past(condition=Condition.CRASH_LOOP)})
    actions: list[Action] = [
        Change(JOB, Condition.FINE, "recovered"),
        Stop(JOB, 7, "is hung", force=True),
        Start(JOB, "v1", "runs"),
    ]
    change, stop, start = (one for _, one in Look(1.0, Actual(), History(), after, actions).events())
    assert (change.what, change.condition) == (EventKind.CONDITION, Condition.FINE)
    assert (stop.what, stop.forced, stop.ran_seconds) == (EventKind.STOP, True, None)
    assert (start.what, start.forced) == (EventKind.START, False)


def test_each_job_has_its_own_and_all_is_read_back_in_order(tmp_path: Path) -> None:
    record(tmp_path, [(JOB, event("first")), (OTHER, event("other")), (JOB, event("second", 2.0))])
    record(tmp_path, [(JOB, event("third", 3.0))])
    assert read_events(tmp_path, JOB) == [event("first"), event("second", 2.0), event("third", 3.0)]
    assert read_events(tmp_path, OTHER) == [event("other")]
    assert read_events(tmp_path, "indexer") == []


def test_it_stays_small_and_keeps_the_newest(tmp_path: Path) -> None:
    for number in range(1000):
        record(tmp_path, [(JOB, event(f"{number} {'x' * 1000}"))])
    (path,) = (tmp_path / "supervision" / "chronicle").iterdir()
    assert LIMIT_BYTES / 3 < path.stat().st_size <= LIMIT_BYTES
    numbers = [int(one.reason.split()[0]) for one in read_events(tmp_path, JOB)]
    assert numbers == list(range(numbers[0], 1000))


def test_a_torn_line_hides_no_other(tmp_path: Path) -> None:
    record(tmp_path, [(JOB, event("before"))])
    (path,) = (tmp_path / "supervision" / "chronicle").iterdir()
    path.write_bytes(path.read_bytes() + b'{"at": 1.0, "wh')
    record(tmp_path, [(JOB, event("after"))])
    assert [one.reason for one in read_events(tmp_path, JOB)] == ["before", "after"]


def test_a_disk_that_takes_nothing_stops_no_supervision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "supervision").write_text("not a folder")
    record(tmp_path, [(JOB, event("lost"))])
    assert "event of a job not recorded" in capsys.readouterr().out
