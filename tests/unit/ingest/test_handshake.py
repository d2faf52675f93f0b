"""An ingest with a backlog waits for the detectors that would take old events for late."""

from datetime import UTC, datetime, timedelta

import pytest

from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.ingest.spark.mover import not_ready

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def report(state: JobState, delay: float | None, age: float = 1.0) -> dict[str, JobReport]:
    at = NOW - timedelta(seconds=age)
    return {"detector:a": JobReport(job="detector:a", at=at, state=state, delay_seconds=delay)}


@pytest.mark.parametrize(
    ("state", "delay", "age", "waits"),
    [
        (JobState.RUNNING, 12.0, 1, True),  # would drop what is older than 12 s
        (JobState.DRAINING, 599.9, 1, True),
        (JobState.DRAINING, 600.0, 1, False),
        (JobState.RUNNING, None, 1, False),  # has no watermark
        (JobState.STARTING, None, 1, True),  # will read our report when it starts its query
        (JobState.WAITING, None, 1, True),
        (JobState.READY, None, 1, True),  # has just followed on the same checkpoint
        (JobState.STOPPED, 12.0, 1, False),
        (JobState.RUNNING, 12.0, 10.1, False),  # is dead
    ],
)
def test_who_is_waited_for(state: JobState, delay: float | None, age: float, waits: bool) -> None:
    assert not_ready(report(state, delay, age), ["detector:a"], 600.0, NOW) == (["detector:a"] if waits else [])


def test_nobody_else_is_waited_for() -> None:
    assert not_ready(report(JobState.RUNNING, 12.0), ["detector:b"], 600.0, NOW) == []
    assert not_ready({}, ["detector:a"], 600.0, NOW) == []
