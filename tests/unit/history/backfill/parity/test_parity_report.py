import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from tests.rig.samples.findings import V1, found
from tocsin.history.backfill.parity.comparison import DifferenceReason, compare
from tocsin.history.backfill.parity.parity_report import KEPT, ParityReport, keep, latest, read, summed

DAY = date(2026, 11, 19)


def report(count: int, unexplained: int) -> ParityReport:
    """With `count` differences, of which the last ones are unexplained."""
    comparison = compare([], [found(60, 10 * number) for number in range(count)])
    differences = [
        one if number >= count - unexplained else one.because(DifferenceReason.LATE, "late")
        for number, one in enumerate(comparison.differences)
    ]
    return ParityReport(
        detector="failed_logins",
        day=DAY,
        run="20261120T043000000Z",
        version=V1,
        compared_at=datetime(2026, 11, 20, 5, tzinfo=UTC),
        **summed(comparison, differences),
    )


def test_a_report_is_kept_by_day_and_a_later_one_replaces_it(tmp_path: Path) -> None:
    keep(tmp_path, report(3, 2))
    keep(tmp_path, report(3, 1))
    kept = read(tmp_path, "failed_logins", DAY)
    assert kept == report(3, 1)
    assert kept is not None
    assert (kept.differing, kept.unexplained, kept.reasons) == (
        3,
        1,
        {DifferenceReason.LATE: 2, DifferenceReason.UNEXPLAINED: 1},
    )
    assert latest(tmp_path, "failed_logins") == [DAY]


def test_the_days_that_were_compared_last_are_first_and_nothing_else_is_a_day(tmp_path: Path) -> None:
    assert latest(tmp_path, "failed_logins") == []
    for back in (3, 0, 2):
        keep(tmp_path, report(0, 0).model_copy(update={"day": DAY - timedelta(days=back)}))
        os.utime(tmp_path / "parity" / "failed_logins" / f"{DAY - timedelta(days=back)}.json", (back, back))
    for name in ("2026-13-01.json", ".2026-11-18.json.0a1b", "20261118.json", "2026-11-18.txt", "notes"):
        (tmp_path / "parity" / "failed_logins" / name).write_text("{}")
    assert latest(tmp_path, "failed_logins") == [DAY - timedelta(days=back) for back in (3, 2, 0)]


def test_what_is_not_there_or_broken_is_no_report(tmp_path: Path) -> None:
    assert read(tmp_path, "failed_logins", DAY) is None
    keep(tmp_path, report(1, 0))
    (tmp_path / "parity" / "failed_logins" / f"{DAY}.json").write_text("{")
    assert read(tmp_path, "failed_logins", DAY) is None


def test_of_many_differences_all_are_counted_and_those_without_a_reason_are_shown_first() -> None:
    made = report(KEPT + 5, 2)
    assert (made.differing, len(made.differences)) == (KEPT + 5, KEPT)
    assert [one.reason for one in made.differences[:3]] == [
        DifferenceReason.UNEXPLAINED,
        DifferenceReason.UNEXPLAINED,
        DifferenceReason.LATE,
    ]


def test_without_differences_there_are_no_reasons() -> None:
    made = report(0, 0)
    assert (made.reasons, made.differences, made.unexplained) == ({}, (), 0)
