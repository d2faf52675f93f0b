"""What a query has read between two boundaries: never more than it has, and nothing where that cannot be told."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rig.samples.checkpoints import P0, P1, TOPIC
from tocsin.declare.feeding import Feeder
from tocsin.declare.model.detector import ScoreKind
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.settings import Settings
from tocsin.detect.spark.detection import ClosedWindows
from tocsin.platform.heartbeat import beat
from tocsin.platform.kafka.topic_set import Place, Position, place_of
from tocsin.spark.query.drain import FeederLag
from tocsin.spark.query.read_positions import SETTLE_SECONDS, UNSENT_SECONDS, Reading, ReadPositions
from tocsin.spark.query.work import MICRO_BATCH, REAL_TIME

T0 = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW, LATENESS = timedelta(seconds=10), timedelta(seconds=10)
LEFT = {("old", P0): 90.0, ("old", P1): 30.0}
FIRST = {P0: 10, P1: 0}


def reading() -> Reading:
    """Of a batch of a minute that began at 0 s with offsets 95 and 30, where the one before had polled 100 and 30."""
    one = Reading()
    one.begin({P0: 95, P1: 30}, FIRST, LEFT, 60.0)
    return one


def settled(one: Reading, leads: dict[tuple[str, Place], float], now: float, *, is_unsent: bool = False) -> Any:
    one.look(leads, is_unsent, now)
    return one.look(leads, is_unsent, now + 1.01 * SETTLE_SECONDS)


def test_nothing_is_known_before_a_batch_begins() -> None:
    assert Reading().look(LEFT, False, 0.0) == {}


def test_what_was_polled_counts_once_it_has_settled() -> None:
    one, polled = reading(), LEFT | {("new", P0): 95.0}
    assert one.look(polled, False, 1.0) == {P0: 95, P1: 30}
    assert one.look(polled, False, 1.0 + SETTLE_SECONDS / 2) == {P0: 95, P1: 30}
    assert one.look(polled, False, 1.01 + SETTLE_SECONDS) == {P0: 105, P1: 30}


def test_what_the_batch_before_had_polled_says_nothing() -> None:
    """Its consumer goes on with the next batch, which reads five records again."""
    one = reading()
    assert settled(one, LEFT, 1.0) == {P0: 95, P1: 30}
    assert settled(one, LEFT | {("old", P0): 87.0}, 2.0) == {P0: 97, P1: 30}


def test_nothing_is_said_around_a_boundary() -> None:
    one, polled = reading(), LEFT | {("old", P0): 95.0}
    assert settled(one, polled, 58.0) == {P0: 105, P1: 30}
    assert settled(one, polled, 59.6) == {}
    assert settled(one, polled, 70.0) == {}
    one.begin({P0: 101, P1: 30}, FIRST, polled, 130.0)
    assert settled(one, polled, 70.5) == {P0: 101, P1: 30}


def test_what_the_broker_has_not_acknowledged_takes_longer() -> None:
    one, polled = reading(), LEFT | {("old", P0): 95.0}
    assert settled(one, polled, 1.0, is_unsent=True) == {P0: 95, P1: 30}
    assert one.look(polled, True, 1.01 + UNSENT_SECONDS) == {P0: 105, P1: 30}


def test_records_that_retention_removes_meanwhile_make_it_say_less() -> None:
    """The lead is counted from a later first record then, and this one still from the earlier."""
    one = reading()
    assert settled(one, LEFT | {("old", P1): 5.0}, 1.0)[P1] <= 35


def test_a_partition_that_was_added_is_not_known() -> None:
    assert (added := place_of(TOPIC, 2)) not in settled(reading(), LEFT | {("new", added): 4.0}, 1.0)


def test_nothing_is_said_of_micro_batches() -> None:
    between = ReadPositions(SimpleNamespace(names=("events.logins",)), "spark")  # type: ignore[arg-type]  # asked for nothing
    between.begin({P0: 5}, 0.0)
    assert between.offsets() == {}


def test_a_batch_begins_with_the_leads_of_all_consumers_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One missed then would look as if it had read on what the batch before had only polled."""
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    names = ["client-id=a,topic=events_logins,partition=0"]
    topics = SimpleNamespace(names=("events.logins",), bounds=lambda: (FIRST, {}))
    between = ReadPositions(topics, "spark")  # type: ignore[arg-type]  # asked for nothing else
    between._clients._beans = SimpleNamespace(find=lambda _: list(names), read=lambda *_: 5.0)  # type: ignore[assignment]  # the JVM
    assert len(between._clients.leads()) == 1
    names.append("client-id=b,topic=events_logins,partition=1")
    assert len(between._clients.leads()) == 1, "looked for a moment ago"
    between.begin({}, 60.0)
    assert len(between._reading._base) == 2


def test_the_heartbeat_of_an_ingest_on_this_machine_is_read_instead_of_its_report(tmp_path: Path) -> None:
    lag = FeederLag(Settings(state=tmp_path), [Feeder("ingest:logins", ("logins",), is_ingest=True)])
    now = datetime.now(UTC)
    report = JobReport(job="ingest:logins", at=now, state=JobState.RUNNING, complete_through=T0)
    lag._reports = SimpleNamespace(latest=lambda: {report.job: report})  # type: ignore[assignment]
    later = T0 + timedelta(seconds=3)
    beat(tmp_path, report.model_copy(update={"complete_through": later}))
    assert lag.complete_through() == later
    beat(tmp_path, report.model_copy(update={"complete_through": later, "at": now - timedelta(seconds=60)}))
    assert lag.complete_through() == T0, "it is on another machine now"


@pytest.fixture(autouse=True)
def _each_look_is_a_second_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", itertools.count(0.0, 1.0).__next__)


class Job:
    """What `ClosedWindows` sees of a run and of the ingest; the test moves it."""

    def __init__(self) -> None:
        self.ingested: datetime | None = T0
        self.ends, self.read, self.sent_count = {P0: 5, P1: 7}, {P0: 5, P1: 6}, 1.0
        self.told: list[datetime] = []
        self.read_positions = SimpleNamespace(offsets=lambda: self.read, sent=lambda: self.sent_count)
        self.topics = SimpleNamespace(bounds=lambda: ({P0: 0, P1: 0}, dict(self.ends)))
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
    job.read = {P0: 5, P1: 7}
    assert job.look() == [T0 - LATENESS]
    assert job.look() == [T0 - LATENESS], "said once"
    job.ingested, job.ends = T0 + timedelta(seconds=1), {P0: 6, P1: 7}
    assert job.look() == [T0 - LATENESS], "what came since is not read yet"
    job.read = {P0: 6, P1: 7}
    assert job.look()[1:] == [T0 + timedelta(seconds=1) - LATENESS]


def test_an_ingest_that_lags_closes_no_window() -> None:
    job = Job()
    job.look()
    job.ingested, job.read = None, {P0: 5, P1: 7}
    assert job.look() == []


@pytest.mark.parametrize("read", [{}, {P0: 5}])
def test_what_is_unknown_closes_no_window(read: Position) -> None:
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
    job.read = {P0: 5, P1: 7}
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
    lag = FeederLag(Settings(state=tmp_path), [Feeder("ingest:logins", ("logins",), is_ingest=True)])
    lag._reports = SimpleNamespace(latest=lambda: {report.job: report})  # type: ignore[assignment]
    assert lag.complete_through() == said


def test_several_sources_are_complete_through_what_the_slowest_is(tmp_path: Path) -> None:
    reports = {
        f"ingest:{name}": JobReport(job=f"ingest:{name}", at=datetime.now(UTC), state=JobState.RUNNING,
                                    complete_through=T0 + timedelta(seconds=seconds))
        for name, seconds in (("logins", 5), ("resets", 2))
    }  # fmt: skip
    chains = [[Feeder(job, (job.partition(":")[2],), is_ingest=True)] for job in reports]
    lag = FeederLag(Settings(state=tmp_path), *chains)
    lag._reports = SimpleNamespace(latest=lambda: reports)  # type: ignore[assignment]
    assert lag.complete_through() == T0 + timedelta(seconds=2)
    reports["ingest:logins"] = reports["ingest:logins"].model_copy(
        update={"state": JobState.DRAINING, "lag_seconds": 70}
    )
    assert (lag.complete_through(), lag()) == (None, timedelta(seconds=70))
    del reports["ingest:resets"]
    assert lag.complete_through() is None


def test_nothing_is_asked_while_no_finding_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    job, now = Job(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    job.read = {P0: 5, P1: 7}
    now[0] = 100.0
    assert job.look() != [], "after a start something may wait"
    now[0] = 200.0
    job.ingested = T0 + timedelta(minutes=1)
    assert len(job.look()) == 1
    now[0], job.sent_count = 202.0, 2.0
    assert len(job.look()) == 2
