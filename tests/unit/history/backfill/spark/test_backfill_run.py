"""A detector that runs as a stream alone, in a backfill beside another; what Spark and gate would say is given."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rig.samples.backfills import finding
from tests.rig.samples.project import copy_project
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.settings import Settings
from tocsin.detect.spark.plan import StreamOnly
from tocsin.history.backfill.backfill_ledger import Backfills, End
from tocsin.history.backfill.spark import backfill_run as module
from tocsin.history.backfill.spark.backfill_run import BackfillOutcome, backfill
from tocsin.history.backfill.spark.day_findings import Found
from tocsin.quality.verdict import Severity

DAYS = [datetime.now(UTC).date() - timedelta(days=back) for back in (4, 3, 2)]
NAMES = ("sessions", "failed_logins")


class History:
    """Published days, of which `sessions` cannot be computed, and `failed_logins` finds one burst each."""

    def __init__(self) -> None:
        self.versions = dict.fromkeys(DAYS[:2], "v1")
        self.asked: list[tuple[str, tuple[date, ...]]] = []

    @property
    def rows(self) -> dict[date, int]:
        return dict.fromkeys(self.versions, 10)

    def findings(self, _: Any, spec: DetectorSpec, days: Sequence[date], __: str) -> Found:
        self.asked.append((spec.name, tuple(days)))
        if spec.name == "sessions":
            raise StreamOnly.one(spec.path, "has a session window", key="detect")
        return Found({day: [finding("u", day)] for day in days}, 1.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    copy_project(tmp_path)
    shutil.copy(tmp_path / "detectors" / "failed_logins.py", tmp_path / "detectors" / "sessions.py")
    return Settings(project=tmp_path, state=tmp_path / "state")


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    made = History()
    monkeypatch.setattr(module, "Days", lambda *_: made)
    monkeypatch.setattr(module, "running_batch", lambda *_: nullcontext())
    passes = SimpleNamespace(publishable=True, report=None, severity=Severity.PASS)
    monkeypatch.setattr(module, "FindingGate", lambda *_: SimpleNamespace(judge=lambda _: passes))
    return made


@pytest.fixture
def run(settings: Settings, history: History) -> Callable[..., BackfillOutcome]:
    return lambda run_id, *days: backfill(settings, NAMES, days, run_id)


def test_it_is_asked_once_publishes_nothing_and_the_other_goes_on(
    settings: Settings, history: History, run: Callable[..., BackfillOutcome]
) -> None:
    outcome = run("first")
    assert history.asked == [("sessions", tuple(DAYS[:2])), ("failed_logins", tuple(DAYS[:2]))]
    assert set(outcome.published) == {("failed_logins", day) for day in DAYS[:2]}
    assert set(outcome.held) == {("sessions", day) for day in DAYS[:2]}
    assert (outcome.failed, outcome.blocked) == ({}, {})
    ledger = Backfills(settings, "sessions").read()
    assert ledger.published == {}
    assert {day: (one.end, one.run_id) for day, one in ledger.attempts.items()} == dict.fromkeys(
        DAYS[:2], (End.HELD, "first")
    )


def test_of_a_new_day_nobody_is_told_again(
    settings: Settings, history: History, run: Callable[..., BackfillOutcome]
) -> None:
    run("first")
    assert run("second").held == {}
    assert len(history.asked) == 2, "and Spark is not asked again"
    history.versions[DAYS[2]] = "v1"
    outcome = run("third")
    assert set(outcome.published) == {("failed_logins", DAYS[2])}
    assert outcome.held == {}
    assert Backfills(settings, "sessions").read().attempts[DAYS[2]].run_id == "first", "so no mail of this run has it"


def test_who_asks_for_days_is_told_and_so_is_the_owner_of_another_version(
    settings: Settings, run: Callable[..., BackfillOutcome]
) -> None:
    run("first")
    assert set(run("by hand", DAYS[1]).held) == {("sessions", DAYS[1])}
    path = settings.project / "detectors" / "sessions.py"
    path.write_text(path.read_text().replace("email=50", "email=60"))
    assert set(run("next").held) == {("sessions", day) for day in DAYS[:2]}
