"""The mails of a failed backfill, made by Airflow's own notifier."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tocsin.backfill.ledger import Attempt, Backfills, End
from tocsin.provision.paths import here
from tocsin.settings import Settings

DAY = date(2026, 1, 31)
OWNERS = {"bursts": "ann@example.com", "quiet": "bob@example.com", "travel": "ann@example.com"}


class Mails:
    """An installation in which a run has failed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings(project=folder, state=folder / "state")

    def lose(self, detector: str, end: End, why: str, run_id: str = "mine") -> None:
        report = f"quality/findings.{detector}/{DAY}/1.html" if end is End.HELD else None
        attempt = Attempt(end=end, why=why, run_id=run_id, made=None, at=datetime.now(UTC), report=report)
        Backfills(self.settings, detector).note(DAY, attempt)

    def sent(self, *refused: str) -> dict[str, Any]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TOCSIN"))}
        own = {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__API__BASE_URL": "http://airflow",
            "TOCSIN_PROJECT": str(self.folder),
            "TOCSIN_STATE": str(self.settings.state),
        }
        program = Path(__file__).with_name("mail_backfill.py")
        command = [str(here().airflow_venv / "bin" / "python"), str(program), "mine", json.dumps(OWNERS), *refused]
        done = subprocess.run(command, env=kept | own, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture
def mails(tmp_path: Path) -> Mails:
    return Mails(tmp_path)


def test_each_owner_gets_one_mail_of_the_own_detectors_only(mails: Mails) -> None:
    mails.lose("bursts", End.HELD, "1 check failed: <not_too_many>")
    mails.lose("travel", End.FAILED, "no room")
    mails.lose("quiet", End.FAILED, "of the night before", run_id="other")
    (mail,) = mails.sent()["sent"]
    assert mail["to"] == "ann@example.com"
    assert mail["subject"] == "[tocsin] backfill of bursts, travel: 2 days not published"
    assert "held: 1 check failed: &lt;not_too_many&gt;" in mail["html"]
    assert '"http://airflow/tocsin/quality/findings.bursts/2026-01-31/1.html"' in mail["html"]
    assert "no room" in mail["html"]
    assert "quiet" not in mail["html"]
    assert '"http://airflow/run"' in mail["html"]


def test_when_no_day_was_come_to_every_owner_hears_why(mails: Mails) -> None:
    sent = mails.sent()["sent"]
    assert [mail["to"] for mail in sent] == ["ann@example.com", "bob@example.com"]
    assert {mail["subject"] for mail in sent} == {"[tocsin] history__logins: catch_up failed"}
    assert "Error code is: &lt;2&gt;" in sent[0]["html"]


def test_a_mail_that_cannot_leave_keeps_no_other_back(mails: Mails) -> None:
    told = mails.sent("ann@example.com")
    assert ([mail["to"] for mail in told["sent"]], told["failed"]) == (["bob@example.com"], "refused")
