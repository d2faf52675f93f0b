"""What a query has read between two boundaries: never more than it has, and nothing where that cannot be told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.detect.spark.closed_windows import ClosedWindows
from tocsin.ingest.backlog import FeederLag
from tocsin.model.detector import ScoreKind
from tocsin.model.job_report import JobReport, JobState
from tocsin.project.feeding import Feeder
from tocsin.project.settings import Settings
from tocsin.sparkjob.query.read_positions import SETTLE_SECONDS, UNSENT_SECONDS, Reading, ReadPositions
from tocsin.sparkjob.query.work import MICRO_BATCH, REAL_TIME

T0 = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW, LATENESS = timedelta(seconds=10), timedelta(seconds=10)
LEFT = {("old", 0): 90.0, ("old", 1): 30.0}
FIRST = {0: 10, 1: 0}


def reading() -> Reading:
    """Of a batch of a minute that began at 0 s with offsets 95 and 30, where the one before had polled 100 and 30."""
    one = Reading()
    one.begin({0: 95, 1: 30}, FIRST, LEFT, 60.0)
    return one


def settled(one: Reading, leads: dict[tuple[str, int], float], now: float, *, is_unsent: bool = False) -> Any:
    one.look(leads, is_unsent, now)
    return one.look(leads, is_unsent, now + 1.01 * SETTLE_SECONDS)


def test_nothing_is_known_before_a_batch_begins() -> None:
    assert Reading().look(LEFT, False, 0.0) == {}


def test_what_was_polled_counts_once_it_has_settled() -> None:
    one, polled = reading(), LEFT | {("new", 0): 95.0}
    assert one.look(polled, False, 1.0) == {0: 95, 1: 30}
    assert one.look(polled, False, 1.0 + SETTLE_SECONDS / 2) == {0: 95, 1: 30}
    assert one.look(polled, False, 1.01 + SETTLE_SECONDS) == {0: 105, 1: 30}


def test_what_the_batch_before_had_polled_says_nothing() -> None:
    """Its consumer goes on with the next batch, which reads five records again."""
    one = reading()
    assert settled(one, LEFT, 1.0) == {0: 95, 1: 30}
    assert settled(one, LEFT | {("old", 0): 87.0}, 2.0) == {0: 97, 1: 30}


def test_nothing_is_said_around_a_boundary() -> None:
    one, polled = reading(), LEFT | {("old", 0): 95.0}
    assert settled(one, polled, 58.0) == {0: 105, 1: 30}
    assert settled(one, polled, 59.6) == {}
    assert settled(one, polled, 70.0) == {}
    one.begin({0: 101, 1: 30}, FIRST, polled, 130.0)
    assert settled(one, polled, 70.5) == {0: 101, 1: 30}


def test_what_the_broker_has_not_acknowledged_takes_longer() -> None:
    one, polled = reading(), LEFT | {("old", 0): 95.0}
    assert settled(one, polled, 1.0, is_unsent=True) == {0: 95, 1: 30}
    assert one.look(polled, True, 1.01 + UNSENT_SECONDS) == {0: 105, 1: 30}


def test_records_that_retention_removes_meanwhile_make_it_say_less() -> None:
    """The lead is counted from a later first record then, and this one still from the earlier."""
    one = reading()
    assert settled(one, LEFT | {("old", 1): 5.0}, 1.0)[1] <= 35


def test_a_partition_that_was_added_is_not_known() -> None:
    assert 2 not in settled(reading(), LEFT | {("new", 2): 4.0}, 1.0)


def test_nothing_is_said_of_micro_batches() -> None:
    between = ReadPositions(SimpleNamespace(name="events.logins"), "spark")  # type: ignore[arg-type]  # asked for nothing
    between.begin({0: 5}, 0.0)
    assert between.offsets() == {}


class Job:
    """What `ClosedWindows` sees of a run and of the ingest; the test moves it."""

    def __init__(self) -> None:
        self.ingested: datetime | None = T0
        self.ends, self.read, self.sent_count = {0: 5, 1: 7}, {0: 5, 1: 6}, 1.0
        self.told: list[datetime] = []
        self.read_positions = SimpleNamespace(offsets=lambda: self.read, sent=lambda: self.sent_count)
        self.topic = SimpleNamespace(bounds=lambda: ({0: 0, 1: 0}, dict(self.ends)))
        self.reporter = SimpleNamespace(update=self.update)
        self.closed = ClosedWindows(self, WINDOW, LATENESS)  # type: ignore[arg-type]  # it plays the reports too
        self.begin()

    def begin(self, mode: str = REAL_TIME, kind: ScoreKind = ScoreKind.RISING, *, draining: bool = False) -> None:
        self.closed.begin(self, mode, kind, is_draining=draining)  # type: ignore[arg-type]

    def complete_through(self) -> datetime | None:
        return self.ingested

    def update(self, complete_through: datetime | None) -> None:
        self.told += [] if complete_through is None else [complete_through]

    def look(self) -> list[datetime]:
        self.closed.look(self)  # type: ignore[arg-type]
        return self.told


def test_windows_are_closed_a_lateness_before_what_the_ingest_had_written_once_that_is_read() -> None:
    job = Job()
    assert job.look() == []
    job.read = {0: 5, 1: 7}
    assert job.look() == [T0 - LATENESS]
    assert job.look() == [T0 - LATENESS], "said once"
    job.ingested, job.ends = T0 + timedelta(seconds=1), {0: 6, 1: 7}
    assert job.look() == [T0 - LATENESS], "what came since is not read yet"
    job.read = {0: 6, 1: 7}
    assert job.look()[1:] == [T0 + timedelta(seconds=1) - LATENESS]


def test_an_ingest_that_lags_closes_no_window() -> None:
    job = Job()
    job.look()
    job.ingested, job.read = None, {0: 5, 1: 7}
    assert job.look() == []


@pytest.mark.parametrize("read", [{}, {0: 5}])
def test_what_is_unknown_closes_no_window(read: dict[int, int]) -> None:
    job = Job()
    job.read = read
    assert job.look() == []


@pytest.mark.parametrize(
    ("mode", "kind", "draining"),
    [
        (REAL_TIME, ScoreKind.RISING, True),
        (MICRO_BATCH, ScoreKind.RISING, False),
        (REAL_TIME, ScoreKind.FINAL, False),
    ],
)
def test_a_drain_a_micro_batch_and_a_final_score_close_no_window_between_boundaries(
    mode: str, kind: ScoreKind, draining: bool
) -> None:
    job = Job()
    job.begin(mode, kind, draining=draining)
    job.read = {0: 5, 1: 7}
    assert job.look() == []
    job.begin()
    assert job.look() != []


@pytest.mark.parametrize(
    ("state", "age", "said"),
    [
        (JobState.RUNNING, 1, T0),
        (JobState.DRAINING, 1, None),
        (JobState.STOPPED, 1, None),
        (JobState.RUNNING, 60, None),
    ],
)
def test_only_an_ingest_that_keeps_up_says_what_it_is_complete_through(
    tmp_path: Path, state: JobState, age: int, said: datetime | None
) -> None:
    report = JobReport(
        job="ingest:logins", at=datetime.now(UTC) - timedelta(seconds=age), state=state, complete_through=T0
    )
    lag = FeederLag(Settings(state=tmp_path), [Feeder("ingest:logins", "logins", is_ingest=True)])
    lag._reports = SimpleNamespace(latest=lambda: {report.job: report})  # type: ignore[assignment]
    assert lag.complete_through() == said


def test_nothing_is_asked_while_no_finding_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    job, now = Job(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    job.read = {0: 5, 1: 7}
    now[0] = 100.0
    assert job.look() != [], "after a start something may wait"
    now[0] = 200.0
    job.ingested = T0 + timedelta(minutes=1)
    assert len(job.look()) == 1
    now[0], job.sent_count = 202.0, 2.0
    assert len(job.look()) == 2
