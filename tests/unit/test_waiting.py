"""The limits of tests grow with what runs beside, and still end."""

import os
import time
from itertools import count, pairwise

import pytest

from tests.rig.waiting import MOST, await_that, patient


@pytest.mark.parametrize(("processes", "times"), [(0.0, 1.0), (1.0, 1.0), (2.5, 2.5), (100.0, MOST)])
def test_a_limit_grows_with_the_processes_that_want_each_core(
    monkeypatch: pytest.MonkeyPatch, processes: float, times: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (processes * (os.cpu_count() or 1), 0.0, 0.0))
    assert patient(10.0) == pytest.approx(10.0 * times)


def test_what_does_not_come_fails_with_what_is_known_and_what_comes_does_not() -> None:
    asked = count(1)
    await_that(lambda: next(asked) == 3, 30.0, every=0.001)
    assert next(asked) == 4, "it is asked until it is true, and not again"
    with pytest.raises(AssertionError, match="nothing came"):
        await_that(lambda: False, 0.01, lambda: "nothing came", every=0.001)


def test_what_takes_long_to_answer_is_asked_less_often() -> None:
    began: list[float] = []

    def slow() -> bool:
        began.append(time.monotonic())
        time.sleep(0.02)
        return len(began) == 3

    await_that(slow, every=0.001)
    assert min(after - before for before, after in pairwise(began)) >= 5 * 0.02
