from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.web.job_rows import Load, Loads

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def report(seconds: float, cpu: float, pid: int = 1) -> JobReport:
    at = BEGAN + timedelta(seconds=seconds)
    return JobReport(job="notifier", at=at, started_at=BEGAN, pid=pid, state=JobState.RUNNING, cpu_seconds=cpu)


def test_it_is_what_the_last_minute_took_not_the_whole_life() -> None:
    loads = Loads()
    for second in range(0, 600, 5):
        loads.take(report(second, 500 if second < 300 else 500 + (second - 300) * 0.1))
    load = loads.of("notifier")
    assert load is not None
    assert load.cores == pytest.approx(0.1)
    assert 60 <= load.seconds <= 65


def test_a_single_sign_of_life_tells_the_average_since_the_start() -> None:
    loads = Loads()
    assert loads.of("notifier") is None
    loads.take(report(100, 25))
    loads.take(report(100, 25))
    assert loads.of("notifier") == Load(0.25, 100)


def test_another_process_begins_anew() -> None:
    loads = Loads()
    loads.take(report(100, 90, pid=1))
    loads.take(report(110, 2, pid=2))
    assert loads.of("notifier") == Load(2 / 110, 110)


def test_a_child_that_ends_takes_no_time_back() -> None:
    loads = Loads()
    loads.take(report(100, 90))
    loads.take(report(110, 80))
    assert loads.of("notifier") == Load(0, 10)


@pytest.mark.parametrize(("cores", "seconds", "busy"), [(1.0, 60, True), (1.0, 10, False), (0.5, 60, False)])
def test_it_stands_out_when_it_eats_a_core_for_a_while(cores: float, seconds: float, busy: bool) -> None:
    assert Load(cores, seconds).busy is busy
