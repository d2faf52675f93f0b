from __future__ import annotations

import threading
import time

import pytest

from tests.rig.waiting import patient
from tocsin.web.background_value import BackgroundValue, Fetched


def test_nobody_waits_and_the_next_one_is_told() -> None:
    go = threading.Event()

    def slow() -> int:
        assert go.wait(patient(10))
        return 7

    value = BackgroundValue(slow, 60)
    assert value.known() == Fetched()
    go.set()
    value.wait(patient(10))
    known = value.known()
    assert (known.value, known.error) == (7, "")
    assert known.at is not None


def test_who_has_patience_gets_the_first_value_and_a_fresh_one_for_a_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([1, 2])
    value = BackgroundValue(lambda: next(answers), 0.0)
    assert value.known(patient(10)).value == 1
    slow = BackgroundValue(lambda: threading.Event().wait(patient(10)), 60)
    assert slow.known(0.01) == Fetched(), "and waits no longer"
    now = time.time() + 1
    monkeypatch.setattr("tocsin.web.background_value.time.time", lambda: now)
    assert value.known(patient(10)).value == 2


def test_it_is_got_once_for_all_who_ask_and_only_when_it_is_old() -> None:
    asked: list[int] = []
    value = BackgroundValue(lambda: asked.append(1), 60)
    for _ in range(5):
        value.known()
        value.wait(patient(10))
    assert asked == [1]
    eager = BackgroundValue(lambda: asked.append(1), 0)
    for _ in range(3):
        eager.known()
        eager.wait(patient(10))
    assert len(asked) == 4


def test_a_failure_is_told_beside_what_was_known() -> None:
    answers = iter([3])
    value: BackgroundValue[int] = BackgroundValue(lambda: next(answers), 0)
    value.known()
    value.wait(patient(10))
    value.known()
    value.wait(patient(10))
    known = value.known()
    value.wait(patient(10))
    assert (known.value, known.error) == (3, "StopIteration")
