"""Drift: a day beside the same weekday of the weeks before. Reads profiles, never data. Pure.

A figure is unusual when it is further from the median than 3.5 robust standard deviations (1.4826 times the median
absolute deviation): the modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993). Eight
values that happen to agree would make any difference unusual, so the band has a least width: a tenth, or three times
the square root of a count, by which counts of independent things scatter.

A column of which most values differ holds identifiers or random numbers: their number is that of the rows, and their
median says nothing. Neither is watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import sqrt
from statistics import median

from tocsin.quality.day_profile import Profile
from tocsin.quality.suites.suite import shown
from tocsin.quality.verdict import Check, CheckStage, Severity

WEEKS = 8
"""So many weeks are looked back."""

FEWEST = 4
"""With fewer known days, nothing is usual yet."""

DEVIATIONS = 3.5
_ROBUST = 1.4826
_LEAST_SHARE = 0.1
_LEAST_RATIO = 0.02
_HALF = 0.5
_MOSTLY_DIFFERENT = 0.5
_SCATTER = 3.0
_COUNTS = ("rows", "distinct")
_OF_VALUES = ("distinct", "median")

_IN_QUARANTINE = "quarantine_ratio"
_OF_DAY = ("rows", "duplicate_ratio", "late_ratio", _IN_QUARANTINE)
_OF_COLUMN = ("null_ratio", "distinct", "median", "true_ratio", "violation_ratio")
_MEANING = {
    "rows": "More or fewer events than usual: a sender is new, gone or repeats itself",
    "null_ratio": "A field is filled more or less often than usual: a sender has changed its format",
    "distinct": "More or fewer different values than usual",
    "violation_ratio": "A rule for rows is broken more or less often than usual",
}


@dataclass(frozen=True)
class Usual:
    """The median of one figure, and the band around it."""

    middle: float
    low: float
    high: float


def weekdays_before(day: date) -> list[date]:
    """The same weekday of the eight weeks before, the latest first."""
    return [day - timedelta(weeks=week) for week in range(1, WEEKS + 1)]


def usual_figures(before: Iterable[Profile]) -> dict[str, Usual]:
    """Compute what is usual, by the name of the figure; without those of which fewer than four days are known."""
    values: dict[str, list[float]] = {}
    for profile in before:
        for name in profile.figures:
            number = profile.number(name)
            if number is not None:
                values.setdefault(name, []).append(number)
    return {name: band(name, known) for name, known in values.items() if len(known) >= FEWEST}


def band(name: str, values: Sequence[float]) -> Usual:
    """Compute what is usual of figure `name` with these values; a ratio's band is at least 0.02 wide to each side.

    The band of a count is at least three times its square root wide. Medians of a column may be negative.
    """
    middle, metric = median(values), name.rpartition(".")[2]
    spread = DEVIATIONS * _ROBUST * median(abs(value - middle) for value in values)
    is_ratio = name.endswith("ratio")
    room = max(spread, _LEAST_RATIO if is_ratio else abs(middle) * _LEAST_SHARE)
    if metric in _COUNTS:
        room = max(room, _SCATTER * sqrt(abs(middle)))
    low, high = middle - room, middle + room
    return Usual(middle, low if metric == "median" else max(low, 0.0), min(high, 1.0) if is_ratio else high)


def drift_checks(profile: Profile, usual: dict[str, Usual], half: Severity = Severity.CRITICAL) -> list[Check]:
    """One check for each figure in which drift is seen; none as long as nothing is usual.

    Drift warns. Only a volume below half of what is usual is worse: as bad as `half` says. Of a day on
    which nothing came in the share in quarantine is null, which is no drift.
    """
    names = [name for name in profile.figures if name in usual and _watched(name, usual)]
    names = [name for name in names if name != _IN_QUARANTINE or profile.number(name) is not None]
    checks = [_check(profile, name, usual[name]) for name in names]
    if "rows" in usual:
        checks.insert(0, _half(profile, usual["rows"], half))
    return checks


def _watched(name: str, usual: dict[str, Usual]) -> bool:
    column, _, metric = name.rpartition(".")
    if not column:
        return metric in _OF_DAY
    return metric in _OF_COLUMN and not (metric in _OF_VALUES and _is_random(column, usual))


def _is_random(column: str, usual: dict[str, Usual]) -> bool:
    """Return whether most values of `column` usually differ."""
    distinct, rows = usual.get(f"{column}.distinct"), usual.get("rows")
    return distinct is not None and rows is not None and distinct.middle > rows.middle * _MOSTLY_DIFFERENT


def _check(profile: Profile, name: str, usual: Usual) -> Check:
    number = profile.number(name)
    metric = name.rpartition(".")[2]
    return Check(
        name=f"usual {name}",
        stage=CheckStage.DRIFT,
        about=name,
        severity=Severity.WARNING,
        passed=number is not None and usual.low <= number <= usual.high,
        observed=shown(number),
        limit=f"{shown(usual.low)} to {shown(usual.high)}",
        meaning=_MEANING.get(metric, "Unlike the same weekday in the weeks before"),
    )


def _half(profile: Profile, usual: Usual, severity: Severity) -> Check:
    rows = profile.number("rows") or 0.0
    return Check(
        name="half of the usual rows",
        stage=CheckStage.DRIFT,
        about="rows",
        severity=severity,
        passed=rows >= usual.middle * _HALF,
        observed=shown(rows),
        limit=f"at least {shown(usual.middle * _HALF)}",
        meaning="Most events are missing, so findings of this day would be missing too",
    )
