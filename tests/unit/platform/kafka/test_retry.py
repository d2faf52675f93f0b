"""Work that is tried again: for how long, at which intervals, and what is reported meanwhile."""

from __future__ import annotations

import threading
from unittest.mock import Mock, call

import pytest

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import JobState
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.kafka.retry import Retry

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
