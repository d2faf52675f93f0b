"""Reports are read once, for their latest state and for what each job takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tocsin.alerts.notify import notifier_job
from tocsin.alerts.notify.notifier_job import CountedReports
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import list_usage
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.settings import Settings

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


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(Settings(state=tmp_path).alerts_database)
    made.migrate()
    yield made
    made.close()


def counted(database: Database) -> list[float]:
    return [usage.cpu_seconds for usage in list_usage(database, BEGAN.date())]


def test_what_is_read_for_its_state_is_counted_too_and_once(topic: Topic, database: Database) -> None:
    reports = CountedReports(Settings(), database)
    topic.append(4)
    assert reports.latest()["indexer"].cpu_seconds == 4
    assert counted(database) == []
    reports.count()
    reports.count()
    assert counted(database) == [4]
    topic.append(9)
    reports.count()
    assert counted(database) == [9]
    reports.close()


def test_while_kafka_is_away_what_was_read_before_is_counted_and_it_is_not_asked_each_time(
    topic: Topic, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = CountedReports(Settings(), database)
    topic.append(4)
    reports.latest()
    topic.is_away = True
    reports.count()
    assert counted(database) == [4]
    with pytest.raises(TransientError, match="Kafka is away"):
        reports.latest()
    assert topic.asked == 2, "not again within 5 seconds"
    reports._backoff.reset()
    topic.is_away = False
    assert reports.latest()["indexer"].cpu_seconds == 4


def test_a_database_that_cannot_be_written_loses_nothing(
    topic: Topic, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = CountedReports(Settings(), database)
    topic.append(4)
    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", lambda _: _refuse())
        with pytest.raises(TransientError):
            reports.count()
    reports.count()
    assert counted(database) == [4]


def _refuse() -> None:
    raise TransientError("the disk is full")
