from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from tocsin.airflow.days import asked_day, due_days, outcomes
from tocsin.backfill.ledger import Attempt, Backfills, End, Made, Published
from tocsin.backfill.standing import BackfillDay, BackfillState
from tocsin.settings import Settings

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
    assert [(one.detector, one.day, one.published, one.report) for one in told] == [
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
