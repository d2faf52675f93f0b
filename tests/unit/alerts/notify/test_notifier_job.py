"""The notifier as a job: it says that it goes on, round by round, and counts what jobs report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.rig.waiting import awaited
from tocsin.alerts.notify import notifier_job
from tocsin.alerts.notify.channel import ChannelAway
from tocsin.alerts.notify.notifier import Notifier
from tocsin.alerts.notify.notifier_job import CountedReports, DeadMansSwitch, NotifierJob, SupervisorWatch
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import list_usage
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.names import NOTIFIER
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reporter import Reporter


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker to wait for, and no pause between two rounds."""
    monkeypatch.setattr("tocsin.platform.kafka.reporter.RecordWriter", Mock())
    monkeypatch.setattr("tocsin.alerts.notify.notifier_job.POLL_SECONDS", 0.01)


def test_the_job_goes_on_with_each_round_also_when_there_is_nothing_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, stop, rounds = Settings(state=tmp_path), threading.Event(), threading.Semaphore(0)
    reporter = Reporter(settings, NOTIFIER)
    monkeypatch.setattr(reporter, "goes_on", lambda *_: rounds.release())
    thread = threading.Thread(target=NotifierJob(settings, reporter, stop).run)
    thread.start()
    went_on = [rounds.acquire(timeout=60) for _ in range(3)]
    stop.set()
    thread.join()
    reporter.close()
    assert went_on == [True] * 3


def test_a_mail_that_hangs_in_the_first_round_after_a_restart_is_a_standstill_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, stop, hangs = Settings(state=tmp_path), threading.Event(), threading.Event()
    monkeypatch.setattr(Notifier, "has_work", lambda _: True)
    monkeypatch.setattr(Notifier, "send_due", lambda *_: hangs.wait())
    reporter = Reporter(settings, NOTIFIER)
    thread = threading.Thread(target=NotifierJob(settings, reporter, stop).run)
    thread.start()
    stood_still = awaited(lambda: reporter.report().stalled_seconds > 0.2, 60)
    stop.set()
    hangs.set()
    thread.join()
    reporter.close()
    assert stood_still


@pytest.mark.parametrize(
    ("trouble", "state", "calls"),
    [
        (None, JobState.RUNNING, ["looks", "sign"]),
        (ChannelAway("SMTP server: refused"), JobState.WAITING, ["looks"]),
        (TransientError("alerts DB: refused"), JobState.WAITING, ["looks", "notices"]),
    ],
    ids=["well", "mail server away", "alerts DB away"],
)
def test_each_round_looks_at_the_supervisor_and_tidies_and_gives_a_sign_of_life_if_it_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception | None, state: JobState, calls: list[str]
) -> None:
    """Messages about jobs leave from their files while the outbox is away."""
    settings, stop, called = Settings(state=tmp_path), threading.Event(), list[str]()

    def send(notifier: Notifier, *_: object) -> None:
        if trouble is not None:
            notifier.away = str(trouble) if isinstance(trouble, ChannelAway) else ""
            raise trouble

    def tidy(_: Notifier) -> dict[str, int]:
        stop.set()
        return {"pending": 3}

    monkeypatch.setattr(Notifier, "send_due", send)
    monkeypatch.setattr(Notifier, "tidy", tidy)
    monkeypatch.setattr(SupervisorWatch, "look", lambda _: called.append("looks"))
    monkeypatch.setattr(DeadMansSwitch, "worked", lambda _: called.append("sign"))
    monkeypatch.setattr("tocsin.alerts.notify.notifier_job.send_overdue", lambda _: called.append("notices"))
    reporter = Reporter(settings, NOTIFIER)
    NotifierJob(settings, reporter, stop).run()
    report = reporter.report()
    reporter.close()
    assert (report.state, report.reason, report.counts) == (state, str(trouble or ""), {"pending": 3})
    assert called == calls


# --- reports ----------------------------------------------------------------------------------------------------------


BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Topic:
    """A topic of reports that holds what a test appends, and can be away."""

    def __init__(self) -> None:
        self.new: list[JobReport] = []
        self.known: dict[str, JobReport] = {}
        self.is_away, self.asked = False, 0

    def append(self, cpu_seconds: float) -> None:
        at = BEGAN + timedelta(seconds=10 + cpu_seconds)
        self.new.append(
            JobReport(job="indexer", at=at, started_at=BEGAN, state=JobState.RUNNING, cpu_seconds=cpu_seconds)
        )

    def reader(self, settings: Settings, take: Callable[[JobReport], None], *, timeout_seconds: float) -> Topic:
        self.take = take
        return self

    def latest(self) -> dict[str, JobReport]:
        self.asked += 1
        if self.is_away:
            raise TransientError("Kafka is away")
        for report in self.new:
            self.take(report)
            self.known[report.job] = report
        self.new = []
        return dict(self.known)

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()
    monkeypatch.setattr(notifier_job, "ReportReader", made.reader)
    return made


def counted(sqlite: Database) -> list[float]:
    return [usage.cpu_seconds for usage in list_usage(sqlite, BEGAN.date())]


def test_what_is_read_for_its_state_is_counted_too_and_once(topic: Topic, sqlite: Database) -> None:
    reports = CountedReports(Settings(), sqlite)
    topic.append(4)
    assert reports.latest()["indexer"].cpu_seconds == 4
    assert counted(sqlite) == []
    reports.count()
    reports.count()
    assert counted(sqlite) == [4]
    topic.append(9)
    reports.count()
    assert counted(sqlite) == [9]
    reports.close()


def test_while_kafka_is_away_what_was_read_before_is_counted_and_it_is_not_asked_each_time(
    topic: Topic, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = CountedReports(Settings(), sqlite)
    topic.append(4)
    reports.latest()
    topic.is_away = True
    reports.count()
    assert counted(sqlite) == [4]
    with pytest.raises(TransientError, match="Kafka is away"):
        reports.latest()
    assert topic.asked == 2, "not again within 5 seconds"
    reports._backoff.reset()
    topic.is_away = False
    assert reports.latest()["indexer"].cpu_seconds == 4


def test_a_database_that_cannot_be_written_loses_nothing(
    topic: Topic, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = CountedReports(Settings(), sqlite)
    topic.append(4)
    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", Mock(side_effect=TransientError("the disk is full")))
        with pytest.raises(TransientError):
            reports.count()
    reports.count()
    assert counted(sqlite) == [4]
