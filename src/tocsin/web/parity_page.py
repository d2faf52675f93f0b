"""Show the comparisons of stream and backfill that `tocsin parity` has stored: read from files alone."""

from __future__ import annotations

import time
from datetime import date
from pathlib import Path

from tocsin.declare.model.finding_text import entity_text
from tocsin.declare.model.sizes import printable
from tocsin.history.backfill.parity.comparison import Difference, DifferenceReason, ReportedFinding
from tocsin.history.backfill.parity.parity_report import ParityReport, latest, read
from tocsin.web.page_shapes import ComparedDay, Parity, ParityDifference, ReportedSide

FEW_DAYS = 7
FEW_DIFFERENCES = 5  # so many of one day are shown


class Comparisons:
    """The stored comparisons of each detector; read again only when one has come in."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._parities: dict[str, tuple[int, Parity]] = {}

    def of(self, detector: str) -> Parity:
        """The days that were compared last. Never raises: what cannot be read says so."""
        try:
            stamp = self._stamp(detector)
            entry = self._parities.get(detector)
            if entry is None or entry[0] != stamp:
                entry = self._parities[detector] = (stamp, _parity(self._state, detector))
        except OSError as error:
            return Parity(now=time.time(), detector=detector, fault=printable(error))
        return entry[1].model_copy(update={"now": time.time()})

    def unexplained(self, detector: str) -> int:
        """Count the findings that differ without a reason on these days."""
        return sum(day.unexplained for day in self.of(detector).days)

    def _stamp(self, detector: str) -> int:
        """Changes whenever a report comes in: each is put in its place whole."""
        folder = self._state / "parity" / detector
        return folder.stat().st_mtime_ns if folder.exists() else 0


def _parity(state: Path, detector: str) -> Parity:
    days = latest(state, detector)
    compared: list[ComparedDay] = []
    unexplained_rows: list[ParityDifference] = []
    for day in days[:FEW_DAYS]:
        report = _report(state, detector, day)
        compared.append(_compared(day, report))
        if isinstance(report, ParityReport):
            unexplained = [
                difference for difference in report.differences if difference.reason is DifferenceReason.UNEXPLAINED
            ]
            unexplained_rows += [_unexplained_row(day, difference) for difference in unexplained[:FEW_DIFFERENCES]]
    earlier = len(days) - len(compared)
    return Parity(now=0, detector=detector, days=compared, earlier=earlier, unexplained=unexplained_rows)


def _report(state: Path, detector: str, day: date) -> ParityReport | str:
    try:
        return read(state, detector, day) or "what was kept cannot be read; compare the day again"
    except OSError as error:
        return printable(error)


def _compared(day: date, report: ParityReport | str) -> ComparedDay:
    if isinstance(report, str):
        return ComparedDay(day=str(day), fault=report)
    return ComparedDay(
        day=str(day),
        same=report.same,
        reasons={str(reason): count for reason, count in report.reasons.items()},
        unexplained=report.unexplained,
        compared_at=report.compared_at.timestamp(),
    )


def _unexplained_row(day: date, difference: Difference) -> ParityDifference:
    return ParityDifference(
        day=str(day),
        entity=printable(entity_text(difference.entity)),
        start=difference.start.timestamp(),
        end=difference.end.timestamp(),
        stream=_side(difference.stream),
        batch=_side(difference.batch),
        why=printable(difference.why),
    )


def _side(finding: ReportedFinding | None) -> ReportedSide | None:
    return (
        None
        if finding is None
        else ReportedSide(level=printable(finding.level), score=finding.score, at_least=finding.at_least)
    )
