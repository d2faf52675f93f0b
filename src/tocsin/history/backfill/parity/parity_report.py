"""The result for one detector and day, kept as `<state>/parity/<detector>/<day>.json`; a later look replaces it."""

from __future__ import annotations

import contextlib
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, computed_field

from tocsin.history.backfill.parity.comparison import Comparison, Difference, DifferenceReason
from tocsin.history.backfill.trial_report import OpenPart
from tocsin.platform import state_file

KEPT = 1000
"""So many differences are written out, those without a reason first; all of them are counted."""


class ParityReport(BaseModel, frozen=True, extra="ignore"):
    """The comparison of stream and backfill on one day.

    Attributes:
        detector, day: the UTC day on which the windows begin.
        run, version: of the backfill; of the current day `run` is empty.
        open: which part of the current day was compared, by its events in Kafka; null for a day with a backfill.
        compared_at: UTC.
        stream, batch: how many findings each side has.
        same: how many are in both and agree.
        reasons: how many differ, by reason.
        differing, unexplained: how many differ in all, and without a reason.
        differences: at most `KEPT` of them.
    """

    detector: str
    day: date
    run: str
    version: str
    compared_at: datetime
    stream: int
    batch: int
    same: int
    reasons: dict[DifferenceReason, int]
    differences: tuple[Difference, ...]
    open: OpenPart | None = None

    @computed_field  # type: ignore[prop-decorator]  # mypy has no decorated properties
    @property
    def unexplained(self) -> int:
        """See above."""
        return self.reasons.get(DifferenceReason.UNEXPLAINED, 0)

    @computed_field  # type: ignore[prop-decorator]  # likewise
    @property
    def differing(self) -> int:
        """See above."""
        return sum(self.reasons.values())


def summed(comparison: Comparison, differences: list[Difference]) -> dict[str, Any]:
    """The fields of a report that follow from the comparison and its `differences` with their reasons."""
    reasons = {reason: sum(one.reason is reason for one in differences) for reason in DifferenceReason}
    ordered = sorted(differences, key=lambda one: one.reason is not DifferenceReason.UNEXPLAINED)
    return {
        "stream": comparison.stream,
        "batch": comparison.batch,
        "same": comparison.same,
        "reasons": {reason: count for reason, count in reasons.items() if count},
        "differences": tuple(ordered[:KEPT]),
    }


def keep(state: Path, report: ParityReport) -> None:
    """Keep `report` in the state folder; OSError if it cannot be written, and what was kept before is still there."""
    state_file.write(_file(state, report.detector, report.day), ParityReport, report)


def read(state: Path, detector: str, day: date) -> ParityReport | None:
    """Read the latest report; None if there is none that can be understood, OSError if the file cannot be read."""
    return state_file.read(_file(state, detector, day), ParityReport, None)


def latest(state: Path, detector: str) -> list[date]:
    """List the days of which a report is kept, the last compared first; OSError if the folder cannot be read."""
    folder = state / "parity" / detector
    files = list(folder.iterdir()) if folder.exists() else []
    written = {day: path.stat().st_mtime_ns for path in files if (day := _day(path)) is not None}
    return sorted(written, key=lambda day: (written[day], day), reverse=True)


def forget(state: Path, detector: str, before: date) -> None:
    """Remove the reports of days before `before`; OSError if one cannot be removed: the next time does it."""
    folder = state / "parity" / detector
    for path in list(folder.glob("*.json")):
        day = _day(path)
        if day is not None and day < before:
            path.unlink()
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


def _day(path: Path) -> date | None:
    """The day whose report lies at `path`; None for a file that is none, such as a draft."""
    with contextlib.suppress(ValueError):
        day = date.fromisoformat(path.stem)
        return day if path.name == f"{day}.json" else None
    return None


def _file(state: Path, detector: str, day: date) -> Path:
    return state / "parity" / detector / f"{day}.json"
