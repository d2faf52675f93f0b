"""History by the clock: which commands run when, and that none of them holds up another."""

import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import landed
from tests.rig.waiting import await_that, patient
from tocsin.alerts.notify.channel import Message
from tocsin.alerts.notify.notices import NoticeFiles
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import load_settings
from tocsin.dev.unattended import history_rounds
from tocsin.dev.unattended.history_rounds import HistoryRounds, next_round
from tocsin.history.landing_ledger import record
from tocsin.history.places import Places

SEAL = "history seal --source logins"
BACKFILL = "backfill --yes --detector failed_logins"
NOON, NIGHT = datetime(2026, 11, 20, 12, 10, tzinfo=UTC), datetime(2026, 11, 20, 2, 10, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-20T{text}+00:00")


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HistoryRounds:
    """Rounds of a project with the source `logins`; every command is noted, and fails."""
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    project = tmp_path / "project"
    project.mkdir()
    copy_project(project)
    note = f"import sys; print(*sys.argv[1:], file=open({str(tmp_path / 'ran')!r}, 'a')); sys.exit(1)"
    return HistoryRounds(load_settings(project), [sys.executable, "-c", note])


def ran(rounds: HistoryRounds, moment: datetime) -> list[str]:
    settings = rounds._settings
    rounds.round(read_catalog(settings.project), moment)
    path = settings.project.parent / "ran"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


@pytest.mark.parametrize(
    ("after", "then"), [("11:59:00", "12:10:00"), ("12:09:59", "12:10:00"), ("12:10:00", "13:10:00")]
)
def test_a_round_begins_at_ten_past_each_hour(after: str, then: str) -> None:
    assert next_round(at(after)) == at(then)
    assert next_round(datetime(2026, 11, 20, 23, 10, 1, tzinfo=UTC)) == datetime(2026, 11, 21, 0, 10, tzinfo=UTC)


def test_a_source_has_its_night_once_kafka_was_read_behind_it_and_each_hour_until_then(rounds: HistoryRounds) -> None:
    assert ran(rounds, NOON) == [SEAL, BACKFILL], "it was never read; all of it fails"
    assert ran(rounds, NOON + timedelta(hours=1)) == [SEAL, BACKFILL]
    entry = landed(rounds._settings, "run-1", 3).model_copy(update={"began": NIGHT + timedelta(minutes=1)})
    record(Places.of(rounds._settings, "logins"), entry)
    assert ran(rounds, NOON) == []
    assert ran(rounds, NIGHT + timedelta(days=1)) == [SEAL, BACKFILL]
    next(rounds._settings.state.rglob("run-1.json")).write_text("torn")
    assert ran(rounds, NOON) == [SEAL, BACKFILL], "whose failure is mailed; other sources have their night"


def test_a_step_that_fails_is_mailed_once_until_it_has_succeeded(rounds: HistoryRounds) -> None:
    fine = HistoryRounds(rounds._settings, [sys.executable, "-c", ""])
    outbox = NoticeFiles(rounds._settings.state)
    for one in (rounds, rounds):
        one._step("history", "seal", "--source", "logins")
    (name,) = outbox.waiting()
    mail = outbox.read(name)
    assert mail is not None
    assert mail.subject == "[tocsin] history: `history seal` failed"
    assert "tocsin history seal --source logins" in mail.text
    rounds._command = fine._command
    rounds._step("history", "seal", "--source", "logins")
    assert rounds._failing == set()


def test_stopping_ends_the_step_that_runs_and_begins_no_other(rounds: HistoryRounds, tmp_path: Path) -> None:
    began = tmp_path / "began"
    script = f"open({str(began)!r}, 'a').write('x'); import time; time.sleep(600)"
    slow = HistoryRounds(rounds._settings, [sys.executable, "-c", script])
    slow.start()
    slow.start()
    await_that(began.exists, 20)
    at_first = time.monotonic()
    slow.stop()
    assert time.monotonic() - at_first < patient(9)
    await_that(lambda: all(thread.name != "history" for thread in threading.enumerate()), 10)
    assert began.read_text() == "x"


def test_a_step_that_hangs_is_ended_with_all_below_it_and_mailed_and_the_next_one_begins(
    rounds: HistoryRounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores SIGTERM, and so does its child."""
    monkeypatch.setattr(history_rounds, "_LONGEST_SECONDS", 2.0)
    monkeypatch.setattr(history_rounds, "_STOP_SECONDS", 0.2)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    script = (
        f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {deaf!r}]); "
        f"open({str(tmp_path / 'below')!r}, 'a').write(f'{{child.pid}} {{sys.argv[1]}}\\n'); {deaf}"
    )
    hung = HistoryRounds(rounds._settings, [sys.executable, "-c", script])
    hung._step("history", "seal", "--source", "logins")
    hung._step("backfill", "--yes")
    began = [line.split() for line in (tmp_path / "below").read_text().splitlines()]
    assert [word for _, word in began] == ["history", "backfill"]
    await_that(lambda: not any(psutil.pid_exists(int(pid)) for pid, _ in began))
    subjects = [
        mail.subject for name in NoticeFiles(rounds._settings.state).waiting() if (mail := read_mail(rounds, name))
    ]
    assert set(subjects) == {"[tocsin] history: `history seal` hung", "[tocsin] history: `backfill` hung"}


def read_mail(rounds: HistoryRounds, name: str) -> Message | None:
    return NoticeFiles(rounds._settings.state).read(name)
