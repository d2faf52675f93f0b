from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.history import DAY, NOON, version
from tocsin.declare.settings import Settings
from tocsin.history.day_versions import write_version
from tocsin.history.places import Places
from tocsin.history.seal_runs import begin_sealing, read_sealing, seal_outcomes, sealed_since
from tocsin.quality.unsealed_days import note
from tocsin.quality.verdict import Check, CheckStage, Severity, Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord

BEFORE = DAY - timedelta(days=1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path / "state")


def test_a_retry_is_the_same_run_and_the_next_run_begins_anew(settings: Settings) -> None:
    before = datetime.now(UTC)
    first = begin_sealing(settings, "logins", "night")
    assert before <= first.began_at <= datetime.now(UTC)
    assert begin_sealing(settings, "logins", "night") == first
    assert read_sealing(settings, "orders", "night") is None
    after = begin_sealing(settings, "logins", "the next night")
    assert after.began_at > first.began_at
    assert read_sealing(settings, "logins", "night") is None


def test_only_the_latest_version_of_a_day_tells_whether_it_was_sealed_since(settings: Settings) -> None:
    places = Places.of(settings, "logins")

    def seal(day: date, name: str, hours: int, severity: str) -> None:
        sealed_at = NOON + timedelta(hours=hours)
        made = version(name, severity=severity).model_copy(update={"sealed_at": sealed_at})
        write_version(places, day, made)

    seal(BEFORE, "v1", -1, "critical")
    seal(DAY, "v1", 0, "critical")
    seal(DAY, "v2", 1, "pass")
    found = sealed_since(settings, "logins", NOON)
    assert {day: one.version for day, one in found.items()} == {DAY: "v2"}
    assert sealed_since(settings, "logins", NOON + timedelta(hours=2)) == {}


def seal(settings: Settings, day: date, name: str, sealed_at: datetime, severity: str | None) -> str:
    """A version of `day` that was judged like that; the path of its report."""
    report = Records(settings.state).place("logins", day, name)
    published = sealed_at if severity in ("pass", "warning") else None
    own = {"sealed_at": sealed_at, "report": str(report)}
    made = version(name, severity=severity, published=published).model_copy(update=own)
    write_version(Places.of(settings, "logins"), day, made)
    return str(report)


def test_a_night_tells_of_each_day_that_it_has_sealed_or_could_not(settings: Settings) -> None:
    third, fourth = DAY + timedelta(days=1), DAY + timedelta(days=2)
    seal(settings, fourth, "v1", datetime.now(UTC) - timedelta(hours=1), "critical")
    note(settings.state, "logins", BEFORE - timedelta(days=1), "in the night before")
    begin_sealing(settings, "logins", "night")
    note(settings.state, "logins", DAY, "a landed file is gone")
    note(settings.state, "logins", third, "no room")
    good = seal(settings, BEFORE, "v2", datetime.now(UTC), "warning")
    seal(settings, DAY, "v2", datetime.now(UTC), None)
    by_hand = seal(settings, third, "v2", datetime.now(UTC), "pass")
    told = seal_outcomes(settings, "logins", "night")
    assert [(one.subject, one.day, one.published, one.said, one.report) for one in told] == [
        ("logins", BEFORE, True, "published, 1 event, verdict warning", good),
        ("logins", DAY, False, "failed: a landed file is gone", None),
        ("logins", third, True, "published, 1 event, verdict pass", by_hand),
    ]
    assert seal_outcomes(settings, "logins", "another night") == []


def test_a_refused_day_is_told_with_the_rules_that_broke(settings: Settings) -> None:
    begin_sealing(settings, "logins", "night")
    report = seal(settings, BEFORE, "v2", datetime.now(UTC), "critical")
    seal(settings, DAY, "v2", datetime.now(UTC), "critical")
    check = Check(
        name="events_arrived",
        stage=CheckStage.DAY,
        about="rows",
        severity=Severity.CRITICAL,
        passed=False,
        observed="0",
        limit="at least 1",
        meaning="Nothing arrives",
    )
    verdict = Verdict(subject="logins", day=BEFORE, run_id="v2", judged_at=NOON, checks=(check,), report=Path(report))
    Records(settings.state).write(VerdictRecord(verdict=verdict), "page")
    first, second = seal_outcomes(settings, "logins", "night")
    assert first.said == (
        "refused: logins on 2026-11-18 is not published: 1 of 1 check failed. "
        "Critical: events_arrived: rows is 0, allowed is at least 1. Nothing arrives."
    )
    assert (first.published, first.report) == (False, report)
    assert second.said == "refused: its verdict is unreadable; seal the day again."
