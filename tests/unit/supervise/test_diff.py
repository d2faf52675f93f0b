"""What a look would do, told without doing it, and the restart that an operator asks for, with real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.waiting import await_that
from tests.unit.supervise.bench import FAILING, GOOD, Bench
from tocsin.platform.lock import hold
from tocsin.supervise.job_states import Condition, Desired

JOB, OTHER = "notifier", "indexer"
NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path)
    yield one
    one.supervisor.stop(0)


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
