from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.history import version
from tocsin.airflow.tasks.run_days import asked_day, due_days, outcomes, sealed
from tocsin.backfill.backfill_ledger import Attempt, Backfills, End, Made, Published
from tocsin.backfill.backfill_status import BackfillDay, BackfillState
from tocsin.history.day_versions import write_version
from tocsin.history.places import Places
from tocsin.history.seal_runs import begin_sealing
from tocsin.project.settings import Settings
from tocsin.quality.unsealed_days import note
from tocsin.quality.verdict import Check, CheckStage, Severity, Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord

FIRST, SECOND = date(2026, 1, 30), date(2026, 1, 31)
MADE = Made(version="v1", inputs={})
NOW = datetime(2026, 2, 1, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path / "state")


def publish(settings: Settings, detector: str, day: date, run_id: str, severity: str = "pass") -> None:
    about = Published(
        run="", run_id=run_id, made=MADE, at=NOW, findings=0, sha256="", severity=severity, report=f"{day}.html"
    )
    Backfills(settings, detector).publish(day, [], about)


def fail(settings: Settings, detector: str, day: date, run_id: str, end: End = End.FAILED) -> None:
    report = "held.html" if end is End.HELD else None
    Backfills(settings, detector).note(
        day, Attempt(end=end, why="because", run_id=run_id, made=MADE, at=NOW, report=report)
    )


@pytest.mark.parametrize(
    ("run_type", "key", "param", "day"),
    [
        ("scheduled", "2026-01-31", None, None),
        ("backfill", "2026-01-31", None, "2026-01-31"),
        ("backfill", "2026-01-31", "2026-01-01", "2026-01-31"),
        ("manual", None, "2026-01-01", "2026-01-01"),
        ("manual", None, None, None),
        ("manual", None, "", None),
        ("manual", "2026-01-31", None, "2026-01-31"),
    ],
)
def test_a_run_is_about_its_day_or_about_all_that_are_due(
    run_type: str, key: str | None, param: str | None, day: str | None
) -> None:
    assert asked_day(run_type, key, param) == day


def test_due_days_are_read_as_the_command_writes_them() -> None:
    stand = [
        BackfillDay(detector="d", day=FIRST, state=BackfillState.DUE, why="was never run"),
        BackfillDay(detector="d", day=SECOND, state=BackfillState.DONE),
        BackfillDay(detector="d", day=date(2026, 2, 1), state=BackfillState.BLOCKED, why="is not published"),
    ]
    told = f"[{', '.join(one.model_dump_json() for one in stand)}]"
    assert due_days(told) == {"2026-01-30": "was never run"}


def test_a_run_tells_of_its_own_days_only(settings: Settings) -> None:
    publish(settings, "a", FIRST, "mine", "warning")
    publish(settings, "a", SECOND, "other")
    fail(settings, "b", FIRST, "other")
    fail(settings, "b", SECOND, "mine", End.HELD)
    told = outcomes(settings, ["a", "b", "never_run"], "mine")
    assert [(one.subject, one.day, one.published, one.report) for one in told] == [
        ("a", FIRST, True, "2026-01-30.html"),
        ("b", SECOND, False, "held.html"),
    ]
    assert [one.said for one in told] == ["published, 0 findings, verdict warning", "held: because"]


def test_a_second_try_that_publishes_leaves_nothing_to_tell_of_the_first(settings: Settings) -> None:
    fail(settings, "a", FIRST, "mine")
    publish(settings, "a", FIRST, "mine")
    assert [one.published for one in outcomes(settings, ["a"], "mine")] == [True]


def test_what_counts_from_before_is_not_told_as_published_by_a_try_that_failed(settings: Settings) -> None:
    publish(settings, "a", FIRST, "mine")
    fail(settings, "a", FIRST, "mine")
    assert [one.published for one in outcomes(settings, ["a"], "mine")] == [False]


def seal(settings: Settings, day: date, name: str, sealed_at: datetime, severity: str | None) -> str:
    """A version of `day` that was judged like that; the path of its report."""
    report = Records(settings.state).place("logins", day, name)
    published = sealed_at if severity in ("pass", "warning") else None
    own = {"sealed_at": sealed_at, "report": str(report)}
    made = version(name, severity=severity, published=published).model_copy(update=own)
    write_version(Places.of(settings, "logins"), day, made)
    return str(report)


def test_a_night_tells_of_each_day_that_it_has_sealed_or_could_not(settings: Settings) -> None:
    third, fourth = SECOND + timedelta(days=1), SECOND + timedelta(days=2)
    seal(settings, fourth, "v1", datetime.now(UTC) - timedelta(hours=1), "critical")
    note(settings.state, "logins", FIRST - timedelta(days=1), "in the night before")
    begin_sealing(settings, "logins", "night")
    note(settings.state, "logins", SECOND, "a landed file is gone")
    note(settings.state, "logins", third, "no room")
    good = seal(settings, FIRST, "v2", datetime.now(UTC), "warning")
    seal(settings, SECOND, "v2", datetime.now(UTC), None)
    by_hand = seal(settings, third, "v2", datetime.now(UTC), "pass")
    told = sealed(settings, "logins", "night")
    assert [(one.subject, one.day, one.published, one.said, one.report) for one in told] == [
        ("logins", FIRST, True, "published, 1 event, verdict warning", good),
        ("logins", SECOND, False, "failed: a landed file is gone", None),
        ("logins", third, True, "published, 1 event, verdict pass", by_hand),
    ]
    assert sealed(settings, "logins", "another night") == []


def test_a_refused_day_is_told_with_the_rules_that_broke(settings: Settings) -> None:
    begin_sealing(settings, "logins", "night")
    report = seal(settings, FIRST, "v2", datetime.now(UTC), "critical")
    seal(settings, SECOND, "v2", datetime.now(UTC), "critical")
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
    verdict = Verdict(subject="logins", day=FIRST, run_id="v2", judged_at=NOW, checks=(check,), report=Path(report))
    Records(settings.state).write(VerdictRecord(verdict=verdict), "page")
    first, second = sealed(settings, "logins", "night")
    assert first.said == (
        "refused: logins on 2026-01-30 is not published: 1 of 1 check failed. "
        "Critical: events_arrived: rows is 0, allowed is at least 1. Nothing arrives."
    )
    assert (first.published, first.report) == (False, report)
    assert second.said == "refused: its verdict cannot be read any more; seal the day again"
