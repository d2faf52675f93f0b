"""From files of the past to published findings: every bad day is told by itself, and harms no other."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.project import copy_project
from tocsin.backfill.backfill_ledger import BackfillLedger, Backfills, End
from tocsin.history.places import Places, begin
from tocsin.project.setting_blocks import HistorySettings
from tocsin.project.settings import Settings
from tocsin.provision.java import find_java
from tocsin.provision.paths import here
from tocsin.supervision.runners.job_command import job_environment

DETECTOR, SLIDING = "failed_logins", "sliding"
TODAY = datetime.now(UTC).date()
DAYS = [TODAY - timedelta(days=back) for back in (4, 3, 2)]


@dataclass
class Installation:
    """A project with its own history, and the programs as people and Airflow start them."""

    settings: Settings

    @property
    def ledger(self) -> BackfillLedger:
        return Backfills(self.settings, DETECTOR).read()

    def found(self, day: date, detector: str = DETECTOR) -> dict[str, float]:
        """The score of each user who was found on `day`, by the published findings."""
        backfills = Backfills(self.settings, detector)
        findings = backfills.findings(day, backfills.read().published[day])
        return {one.entity["user_id"]: one.score for one in findings}

    def tocsin(self, *words: str) -> str:
        code, said = self._run([str(here().venv / "bin" / "tocsin"), *words])
        assert code == 0, said[-3000:]
        return said

    def backfill(self, *words: str) -> tuple[int, str]:
        return self._run([str(here().venv / "bin" / "python"), str(here().root / "spark_jobs" / "backfill.py"), *words])

    def _run(self, command: Sequence[str]) -> tuple[int, str]:
        environment = job_environment(self.settings, find_java().home)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    project = tmp_path / "project"
    copy_project(project, "sources", "detectors", "expectations")
    history = HistorySettings(grace=timedelta(seconds=1), buckets=4)
    made = Installation(Settings(project=project, state=tmp_path / "state", history=history))
    paths = [_written(tmp_path, number, day) for number, day in enumerate(DAYS)]
    made.tocsin("history", "import", "--source", "logins", *paths)
    made.tocsin("history", "seal", "--source", "logins")
    return made


def _written(folder: Path, number: int, day: date) -> str:
    """A file of a day on which `day-<number>` fails 60 + number times before midnight, and `across` around it."""
    rows: list[dict[str, str]] = []
    for user, count, second in [*_bursts(number), *(("quiet", 1, 3600 * hour) for hour in range(24))]:
        for one in range(count):
            moment = begin(day) + timedelta(seconds=second, milliseconds=50 * one)
            rows.append(
                {
                    "timestamp": moment.isoformat(),
                    "user_id": user,
                    "action": "login failed",
                    "ip_address": f"10.0.0.{one % 9}",
                }
            )
    path = folder / f"logins-{day}.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["timestamp"]))
    return str(path)


def _bursts(number: int) -> list[tuple[str, int, int]]:
    """User, failures, and the second of the day at which they begin."""
    across = [("across", 30, 0), ("across", 30, 86_395)]
    return [("limit", 50, 0), ("worst", 101, 60), (f"day-{number}", 60 + number, 86_390), *across]


def _truth(number: int) -> dict[str, float]:
    return {"worst": 101, f"day-{number}": 60 + number}


def test_days_are_run_once_and_again_when_something_changes(installation: Installation) -> None:
    detector = installation.settings.project / "detectors" / f"{DETECTOR}.py"
    sliding = detector.read_text().replace('window="10 seconds"', 'window="1 minute",\n    slide="30 seconds"')
    detector.with_stem(SLIDING).write_text(sliding)
    code, said = installation.backfill(DETECTOR, SLIDING, "--run-id=night")
    assert code == 0, said[-3000:]
    assert [installation.found(day) for day in DAYS] == [_truth(number) for number in range(3)]
    slid = [installation.found(day, SLIDING) for day in DAYS[:2]]
    assert slid == [{"across": 60, **_truth(number)} for number in range(2)], "windows reach over midnight"
    assert f"needs {DAYS[2] + timedelta(days=1)}, which is not published" in said
    assert {one.run_id for one in installation.ledger.published.values()} == {"night"}
    before = installation.ledger

    code, said = installation.backfill(DETECTOR)
    assert (code, installation.ledger) == (0, before)
    assert "nothing to run" in said
    assert "WARN" not in said, "Spark is not even started"

    detector.write_text(detector.read_text().replace("email=50", "email=49"))
    plan = json.loads(installation.tocsin("backfill", "--detector", DETECTOR, "--json"))
    old = next(iter(before.published.values())).made.version
    assert [(one["day"], one["state"], one["why"]) for one in plan] == [
        (str(d), "due", f"run by version {old}") for d in DAYS
    ]
    said = installation.tocsin(
        "backfill", "--detector", DETECTOR, "--from", str(DAYS[1]), "--to", str(DAYS[1]), "--yes"
    )
    assert f"{DETECTOR} {DAYS[1]}: 3 findings, verdict pass" in said
    assert installation.found(DAYS[1]) == {"limit": 50, **_truth(1)}
    assert installation.ledger.published[DAYS[0]] == before.published[DAYS[0]], "the other days are as they were"


def test_a_bad_day_is_told_and_the_others_go_on(installation: Installation) -> None:
    places = Places.of(installation.settings, "logins")
    (folder,) = [path for day, _, path in places.version_folders() if day == DAYS[0]]
    for path in folder.glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:200])  # as a disk that fails leaves it
    suite = installation.settings.project / "expectations" / "logins.findings.json"
    text = suite.read_text()
    suite.write_text(text.replace('{"$PARAMETER": "most_findings * 3 + 100"}', "1"))
    code, said = installation.backfill(DETECTOR)
    assert code == 1, said[-3000:]
    ledger = installation.ledger
    assert ledger.published == {}
    assert {day: one.end for day, one in ledger.attempts.items()} == {
        DAYS[0]: End.FAILED,
        DAYS[1]: End.HELD,
        DAYS[2]: End.HELD,
    }
    assert "parquet" in ledger.attempts[DAYS[0]].why.lower()
    assert "not_too_many" in ledger.attempts[DAYS[1]].why

    suite.write_text(text)
    code, said = installation.backfill(DETECTOR)
    assert code == 1, "what was held waits for a change of its events or of the detector"
    assert installation.ledger.published == {}
    code, said = installation.backfill(DETECTOR, *(f"--day={day}" for day in DAYS[1:]), f"--day={TODAY}")
    assert code == 1
    assert f"day={TODAY}" in said
    assert "is not published" in said
    assert {day: installation.found(day) for day in installation.ledger.published} == {
        DAYS[1]: _truth(1),
        DAYS[2]: _truth(2),
    }
    assert set(installation.ledger.attempts) == {DAYS[0]}
