"""Backfills as people and Airflow start them, in the session of the tests: every bad day is told by itself."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import seal_day
from tests.spark.sealing import login
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import BackfillLedger, Backfills, End
from tocsin.history.places import Places
from tocsin.job import main
from tocsin.platform import logs
from tocsin.platform.state_file import write_whole

DETECTOR, SLIDING = "failed_logins", "sliding"
TODAY = datetime.now(UTC).date()
DAYS = [TODAY - timedelta(days=back) for back in (4, 3, 2)]


@dataclass
class Installation:
    """A project with its own history, the programs on it, and the sessions that they would have started."""

    settings: Settings
    starts: list[str]
    capsys: pytest.CaptureFixture[str]

    @property
    def ledger(self) -> BackfillLedger:
        return Backfills(self.settings, DETECTOR).read()

    def found(self, day: date, detector: str = DETECTOR) -> dict[str, float]:
        """The score of each user who was found on `day`, by the published findings."""
        backfills = Backfills(self.settings, detector)
        findings = backfills.findings(day, backfills.read().published[day])
        return {one.entity["user_id"]: one.score for one in findings}

    def tocsin(self, *words: str) -> str:
        result = invoke(words)
        assert result.exit_code == 0, result.output[-3000:]
        return result.stdout

    def backfill(self, *words: str) -> tuple[int, str]:
        """Exit code and log of `spark_jobs/backfill.py`."""
        self.capsys.readouterr()
        code = main(["backfill", *words])
        return code, "".join(self.capsys.readouterr())


@pytest.fixture
def installation(
    starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Installation:
    project = tmp_path / "project"
    copy_project(project, "sources", "detectors", "expectations")
    monkeypatch.setenv("TOCSIN_PROJECT", str(project))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(logs, "configure", lambda _job: None)
    settings = Settings(project=project, state=tmp_path / "state")
    for number, day in enumerate(DAYS):
        seal_day(settings, day, _logins(number, day))
    return Installation(settings, starts, capsys)


def _logins(number: int, day: date) -> Iterator[dict[str, Any]]:
    """A day on which `day-<number>` fails 60 + number times before midnight, and `across` around it."""
    offset = number * 100_000
    for user, count, second in [*_bursts(number), *(("quiet", 1, 3600 * hour) for hour in range(24))]:
        for one in range(count):
            offset += 1
            yield login(offset, second + 0.05 * one, day=day, user_id=user)


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
    assert len(installation.starts) == 1, "Spark is not even started"

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
        write_whole(path, path.read_bytes()[:200])  # as a disk that fails leaves it
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

    code, said = installation.backfill(DETECTOR)
    assert code == 1, "what was held waits for a change of its events, of the detector, or of the rule"
    assert installation.ledger.published == {}
    suite.write_text(text)
    code, said = installation.backfill(DETECTOR)
    assert installation.ledger.published.keys() == set(DAYS[1:])
    code, said = installation.backfill(DETECTOR, f"--day={DAYS[1]}", f"--day={TODAY}")
    assert code == 1
    assert f"day={TODAY}" in said
    assert "is not published" in said
    assert {day: installation.found(day) for day in installation.ledger.published} == {
        DAYS[1]: _truth(1),
        DAYS[2]: _truth(2),
    }
    assert set(installation.ledger.attempts) == {DAYS[0]}
