"""What a job says of itself, as whoever looks at the same moment finds it. There is no Kafka here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin import heartbeat
from tocsin.heartbeat import end_beside, read_beat
from tocsin.metrics import JobState
from tocsin.reporting import Reporter
from tocsin.settings import Settings

JOB = "detector:bursts"
UPDATES = 100


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path / "state")


@pytest.fixture
def beside(settings: Settings) -> Iterator[Reporter]:
    reporter = Reporter(settings, JOB, beside=True)
    reporter.update(state=JobState.RUNNING)
    yield reporter
    reporter.close()


def test_two_threads_that_report_at_once_never_leave_half_a_heartbeat_or_an_older_one(settings: Settings) -> None:
    reporter = Reporter(settings, JOB)
    reporter.update(state=JobState.RUNNING)

    def report() -> None:
        for length in range(UPDATES):
            reporter.update(reason="x" * (length * 10))

    threads = [threading.Thread(target=report) for _ in range(2)]
    for thread in threads:
        thread.start()
    found = []
    while any(thread.is_alive() for thread in threads):
        found.append(read_beat(settings.state, JOB))
    reporter.close()
    assert None not in found, "a job without a heartbeat is taken for hung"
    moments = [beat.report.at for beat in found if beat is not None]
    assert moments == sorted(moments)
    assert len({*moments}) > UPDATES / 2


def test_who_takes_over_has_a_heartbeat_at_each_moment(
    settings: Settings, beside: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_beat(settings.state, JOB) is None
    leading = []

    def end(state: Path, job: str) -> None:
        leading.append(read_beat(state, job))
        end_beside(state, job)

    monkeypatch.setattr(heartbeat, "end_beside", end)
    beside.lead()
    (beat,) = leading
    assert beat is not None
    assert beat.report.state is JobState.RUNNING
    assert read_beat(settings.state, JOB, beside=True) is None
