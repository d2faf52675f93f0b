"""Show the comparisons of stream and backfill that `tocsin parity` has stored: read from files alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from tocsin.history.backfill.parity.comparison import Difference, DifferenceReason
from tocsin.history.backfill.parity.parity_report import ParityReport, latest, read
from tocsin.platform.state_file import Followed

FEW_DAYS = 7
FEW_DIFFERENCES = 5  # so many of one day are shown


@dataclass(frozen=True)
class Parity:
    """The comparisons of stream and backfill of one detector that were made last.

    Attributes:
        days: by UTC day, the day that was compared last first; a text says why a stored one cannot be read. Of the
            differences of a report only some are left, all of them without a reason.
    """

    detector: str
    days: Mapping[date, ParityReport | str] = field(default_factory=dict)
    earlier: int = 0
    fault: str = ""

    @property
    def unexplained(self) -> int:
        """How many findings differ without a reason on these days."""
        return sum(report.unexplained for report in self.reports)

    @property
    def differences(self) -> list[Difference]:
        """Some of them."""
        return [difference for report in self.reports for difference in report.differences]

    @property
    def reports(self) -> list[ParityReport]:
        """Those that can be read."""
        return [report for report in self.days.values() if isinstance(report, ParityReport)]


class Comparisons:
    """The stored comparisons of each detector; read again only when one has come in."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._parities: dict[str, Followed[Parity]] = {}

    def of(self, detector: str) -> Parity:
        """The days that were compared last. Never raises: what cannot be read says so."""
        if detector not in self._parities:
            folder = self._state / "parity" / detector  # changes with each report: it is put in its place whole
            self._parities[detector] = Followed(lambda: [folder], lambda: _parity(self._state, detector))
        try:
            return self._parities[detector].read()
        except OSError as error:
            return Parity(detector, fault=str(error))


def _parity(state: Path, detector: str) -> Parity:
    days = latest(state, detector)
    return Parity(detector, {day: _report(state, detector, day) for day in days[:FEW_DAYS]}, len(days[FEW_DAYS:]))


def _report(state: Path, detector: str, day: date) -> ParityReport | str:
    try:
        report = read(state, detector, day)
    except OSError as error:
        return str(error)
    if report is None:
        return "what was kept cannot be read; compare the day again"
    few = [one for one in report.differences if one.reason is DifferenceReason.UNEXPLAINED][:FEW_DIFFERENCES]
    return report.model_copy(update={"differences": tuple(few)})
