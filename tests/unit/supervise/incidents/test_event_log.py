from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.declare.model.job_report import FailureCause
from tocsin.supervise.incidents.event_log import (
    LIMIT_BYTES,
    EventKind,
    JobEvent,
    Look,
    Restart,
    last_restart,
    process_ends,
    read_events,
    record,
)
from tocsin.supervise.job_states import Action, Actual, Change, Condition, Desired, History, Live, Past, Start, Stop
from tocsin.supervise.restart_policy import end_reason, reconcile

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


def start(at: float) -> JobEvent:
    return JobEvent(at=at, what=EventKind.START, reason="should run", condition=Condition.FINE)


def works(at: float) -> JobEvent:
    return JobEvent(at=at, what=EventKind.WORKS, reason="works")


def crash(at: float, code: int | None = -9, condition: Condition = Condition.RESTARTING) -> JobEvent:
    return JobEvent(
        at=at, what=EventKind.END, reason="it broke", condition=condition, exit_code=code, ran_seconds=9, failed=True
    )


def stop(at: float, reason: str = "a restart was asked for", *, forced: bool = False) -> JobEvent:
    return JobEvent(at=at, what=EventKind.STOP, reason=reason, condition=Condition.FINE, ran_seconds=5, forced=forced)


def test_a_crash_tells_its_code_its_life_and_when_the_next_process_worked() -> None:
    (one,) = process_ends([start(1), works(5), crash(10), start(12.1), works(74)])
    assert (one.at, one.failed, one.exit_code, one.ran_seconds) == (10, True, -9, 9)
    assert (one.cause, one.condition, one.back_seconds) == ("it broke", "restarting", 64)
    assert one.restart_seconds == pytest.approx(2.1)


def test_a_crash_loop_is_one_line_with_a_count() -> None:
    before = [start(1), works(2), crash(10), start(12)]
    loop = [event for at in range(20, 95) for event in (crash(at, condition=Condition.CRASH_LOOP), start(at + 0.5))]
    (one,) = process_ends(before + loop)
    assert (one.cause, one.at, one.back_seconds) == ("it broke; 76 times", 94, None)
    other = JobEvent(at=96, what=EventKind.END, reason="another", condition=Condition.CRASH_LOOP, failed=True)
    assert [one.cause for one in process_ends([*before, *loop, other])] == ["another", "it broke; 76 times"]


def test_a_stop_that_was_asked_for_is_no_failure() -> None:
    (one,) = process_ends([start(1), stop(10), start(11)])
    assert (one.failed, one.cause, one.exit_code) == (False, "a restart was asked for", None)


def test_one_process_ends_once_however_often_that_is_told() -> None:
    (one,) = process_ends(
        [start(1), stop(10), stop(30, "was asked to stop", forced=True), crash(31), start(40), works(40)]
    )
    assert one.cause == "a restart was asked for; it did not stop when asked, and was killed"
    assert (one.at, one.back_seconds, one.failed) == (10, 30, False)
    (one,) = process_ends([start(1), crash(10), stop(10, "lost its leader", forced=True), start(12), works(40)])
    assert (one.cause, one.at, one.back_seconds, one.failed) == ("it broke", 10, 30, True)


def test_where_two_ran_the_other_one_was_there_at_once() -> None:
    (one,) = process_ends([start(1), start(5), stop(10, "another version has taken over")])
    assert one.back_seconds == 0


def test_a_pause_counts_from_the_end_and_not_from_the_look_that_found_it() -> None:
    noticed = JobEvent(at=160, what=EventKind.END, reason="it broke", ended_at=56, ran_seconds=55, failed=True)
    (one,) = process_ends([start(1), works(5), noticed, start(160), works(199)])
    assert (one.at, one.restart_seconds, one.back_seconds) == (56, 104, 143)


def test_a_version_that_never_came_is_not_back_until_one_works() -> None:
    never_came = [start(1), works(5), start(10), crash(20)]
    (one,) = process_ends(never_came)
    assert (one.failed, one.back_seconds) == (True, None)
    handed_over, failed = process_ends([*never_came, start(30), stop(50, "handing over to another version"), works(51)])
    assert (handed_over.failed, failed.failed, failed.back_seconds) == (False, True, 31)


def test_a_start_that_was_refused_is_a_failure() -> None:
    refused = JobEvent(at=5, what=EventKind.REFUSED, reason="cannot be started: no PySpark")
    assert [one.failed for one in process_ends([start(1), refused])] == [True]


def test_what_happened_before_the_beginning_of_the_record_does_no_harm() -> None:
    assert [one.at for one in process_ends([stop(3), start(4), crash(5), crash(6)])] == [6, 5, 3]


def test_the_last_restart_is_the_last_start_after_an_end() -> None:
    told = process_ends([start(1), crash(10), start(12), stop(20)])
    assert last_restart(told) == Restart(at=12, cause="it broke")
    assert last_restart(process_ends([start(1)])) is None


def test_a_cause_hides_nothing() -> None:
    (one,) = process_ends([JobEvent(at=1, what=EventKind.END, reason="\x1b[31m\u202eevil", failed=True)])
    assert one.cause == r"\x1b[31m\u202eevil"
