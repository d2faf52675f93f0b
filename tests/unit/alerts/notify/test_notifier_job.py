"""The notifier as a job: it says that it goes on, round by round."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.rig.waiting import awaited
from tocsin.alerts.notify.channel import ChannelAway
from tocsin.alerts.notify.notifier import Notifier
from tocsin.alerts.notify.notifier_job import DeadMansSwitch, NotifierJob, SupervisorWatch
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobState
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
