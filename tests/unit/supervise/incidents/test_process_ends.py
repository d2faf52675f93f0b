from __future__ import annotations

import pytest

from tocsin.supervise.incidents.event_log import EventKind, JobEvent, Restart, last_restart, process_ends
from tocsin.supervise.job_states import Condition


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


def test_the_newest_is_first_and_may_not_be_back_yet() -> None:
    newest, oldest = process_ends([start(1), crash(10), start(11), works(12), crash(20), start(21)])
    assert (newest.at, newest.back_seconds) == (20, None)
    assert (oldest.at, oldest.back_seconds) == (10, 2)


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
