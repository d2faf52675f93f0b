"""What the tab of a detector says of its stream and its backfills."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.samples.findings import NOON, V1, found, streamed
from tests.rig.samples.project import copy_project
from tocsin.declare.settings import Settings
from tocsin.history.backfill.parity.comparison import Difference, DifferenceReason, compare
from tocsin.history.backfill.parity.parity_report import ParityReport, keep, summed
from tocsin.web import page_data
from tocsin.web.page_data import Installation
from tocsin.web.parity_page import FEW_DAYS, FEW_DIFFERENCES, Comparisons

ROOT = Path(__file__).resolve().parents[3]
DETECTOR, DAY = "failed_logins", NOON.date()
COMPARED = datetime(2026, 11, 20, 5, tzinfo=UTC)


def kept(state: Path, differences: list[Difference], day: date = DAY, *, at: float = 0.0, same: int = 3) -> Path:
    """A comparison of `day` that was made at `at`."""
    comparison = compare([streamed(60, 10 * number) for number in range(same)], [])
    report = ParityReport(
        detector=DETECTOR, day=day, run="r", version=V1, compared_at=COMPARED, **summed(comparison, differences)
    )
    keep(state, report.model_copy(update={"same": same}))
    file = state / "parity" / DETECTOR / f"{day}.json"
    os.utime(file, (at, at))
    return file


def differing(count: int) -> list[Difference]:
    """One that is late, and `count` without a reason, of which the stream has the first alone."""
    late, alone, *others = compare(
        [streamed(60, user="late"), streamed(70, 10, user="x\x1b[31m")],
        [found(80, user="late"), *(found(110, 10 * number) for number in range(2, count + 1))],
    ).differences
    return [
        late.because(DifferenceReason.LATE, "late"),
        *(one.because(DifferenceReason.UNEXPLAINED, "why") for one in (alone, *others)),
    ]


def test_nothing_was_compared_yet(tmp_path: Path) -> None:
    told = Comparisons(tmp_path).of(DETECTOR)
    assert (told.days, told.unexplained, told.fault, told.detector) == ({}, 0, "", DETECTOR)


def test_a_day_tells_how_many_agree_and_how_many_differ_for_which_reason(tmp_path: Path) -> None:
    kept(tmp_path, differing(2))
    told = Comparisons(tmp_path).of(DETECTOR)
    assert [one.why for one in told.differences] == ["why", "why"], "a reason that is known needs no look"
    assert (list(told.days), told.unexplained) == ([DAY], 2)
    (report,) = told.reports
    assert (report.same, report.compared_at, report.reasons) == (3, COMPARED, {"late": 1, "unexplained": 2})


def test_of_the_unexplained_ones_some_are_told_in_full(tmp_path: Path) -> None:
    kept(tmp_path, differing(FEW_DIFFERENCES + 3))
    told = Comparisons(tmp_path).of(DETECTOR)
    assert (len(told.differences), told.unexplained) == (FEW_DIFFERENCES, FEW_DIFFERENCES + 3)


def test_of_sixty_days_those_that_were_compared_last_are_told(tmp_path: Path) -> None:
    days = [DAY - timedelta(days=back) for back in range(60)]
    for back, day in enumerate(days):
        kept(tmp_path, differing(2), day, at=1_000 - back)
    kept(tmp_path, differing(4), days[50], at=2_000)
    told = Comparisons(tmp_path).of(DETECTOR)
    assert list(told.days) == [days[50], *days[: FEW_DAYS - 1]]
    assert told.earlier == 60 - FEW_DAYS
    assert told.unexplained == 4 + 2 * (FEW_DAYS - 1)


@pytest.mark.parametrize("what", ["{", "null", "folder"])
def test_a_broken_day_says_so_and_hides_no_other(tmp_path: Path, what: str) -> None:
    kept(tmp_path, differing(1), at=1)
    file = kept(tmp_path, [], DAY - timedelta(days=1), at=2)
    if what == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_text(what)
    told = Comparisons(tmp_path).of(DETECTOR)
    assert isinstance(told.days[DAY - timedelta(days=1)], str)
    assert told.unexplained == 1


def test_what_cannot_be_read_at_all_is_told(tmp_path: Path) -> None:
    (tmp_path / "parity").mkdir()
    (tmp_path / "parity" / DETECTOR).write_text("no folder")
    told = Comparisons(tmp_path).of(DETECTOR)
    assert ("Not a directory" in told.fault, told.unexplained) == (True, 0)


def test_a_new_comparison_is_seen_and_nothing_is_read_twice(tmp_path: Path) -> None:
    kept(tmp_path, differing(1), at=1)
    comparisons = Comparisons(tmp_path)
    assert comparisons.of(DETECTOR).unexplained == 1
    assert comparisons.of(DETECTOR).days is comparisons.of(DETECTOR).days
    kept(tmp_path, differing(3), at=2)
    assert comparisons.of(DETECTOR).unexplained == 3


def test_a_row_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_data, "read_usage", lambda settings: {})
    project = tmp_path / "project"
    copy_project(project)
    state = tmp_path / "state"
    kept(state, differing(2))
    page = Installation(Settings(project=project, state=state))
    unexplained = {row.job: row.unexplained for row in page.jobs({}).rows}
    assert {job: count for job, count in unexplained.items() if count} == {"detector:failed_logins": 2}
