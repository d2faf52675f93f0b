"""Decide which days of a detector need a backfill, and which can have none and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta

from tocsin.backfill.backfill_ledger import BackfillLedger, End, Made
from tocsin.history.places import end
from tocsin.model.detector import DetectorSpec, reach

_DAY = timedelta(days=1)
MISSING, AGAIN, ANOTHER_VERSION = "never run", "failed the last time", "run by version {version}"
RESEALED = "sealed again since"


@dataclass(frozen=True)
class Sealed:
    """The readable days of a detector's source.

    Attributes:
        versions: the published version of each day that is over.
        rows: how many events each of them has.
        why_not: says of any other day why it cannot be read.
    """

    versions: Mapping[date, str]
    rows: Mapping[date, int] = field(default_factory=dict)
    why_not: Callable[[date], str] = lambda _: "is not published"


@dataclass(frozen=True)
class BackfillPlan:
    """The work to be done.

    Attributes:
        days: that need a run, the oldest first, and why.
        blocked: days that cannot be computed whole now, and what is missing.
        held: days whose findings a gate has stopped and of which nothing has changed since.
    """

    days: dict[date, str]
    blocked: dict[date, str]
    held: tuple[date, ...] = ()


def plan(ledger: BackfillLedger, spec: DetectorSpec, sealed: Sealed, days: Iterable[date]) -> BackfillPlan:
    """Choose those of `days` that need a run.

    Args:
        ledger: of the detector.
        spec: of the detector as it is now.
        sealed: what can be read of its source.
        days: to look at.
    """
    due: dict[date, str] = {}
    blocked: dict[date, str] = {}
    held = []
    for day in sorted(days):
        own = made_of(day, spec, sealed.versions)
        if own is None:
            blocked[day] = _reason_blocked(
                day, [one for one in inputs(day, spec) if one not in sealed.versions], sealed
            )
            continue
        reason = _reason(ledger, day, own)
        if reason is None:
            held += [day] if day in ledger.attempts else []
        else:
            due[day] = reason
    return BackfillPlan(due, blocked, tuple(held))


def made_of(day: date, spec: DetectorSpec, sealed: Mapping[date, str]) -> Made | None:
    """Of what a run of `day` is made; None where a day that it reads is not published."""
    days = inputs(day, spec)
    return Made(version=spec.version, inputs={one: sealed[one] for one in days}) if sealed.keys() >= {*days} else None


def inputs(day: date, spec: DetectorSpec) -> list[date]:
    """The days that the windows of `day` look into."""
    further = -(-reach(spec, end(day)) // _DAY)  # rounded up
    return [day + _DAY * number for number in range(further + 1)]


def chunks(days: Iterable[date], rows: Mapping[date, int], most: int) -> Iterator[tuple[date, ...]]:
    """`days` in runs of neighbours that read at most `most` rows together; a day with more is alone."""
    chunk: list[date] = []
    total = 0
    for day in sorted(days):
        count = rows.get(day, 0)
        if chunk and (day - chunk[-1] != _DAY or total + count > most):
            yield tuple(chunk)
            chunk, total = [], 0
        chunk.append(day)
        total += count
    if chunk:
        yield tuple(chunk)


def _reason(ledger: BackfillLedger, day: date, made: Made) -> str | None:
    attempt, published = ledger.attempts.get(day), ledger.published.get(day)
    if attempt is not None and attempt.end is End.HELD and attempt.made == made:
        return None
    if published is not None and published.made == made and attempt is None:
        return None
    if attempt is not None and attempt.end is End.FAILED:
        return AGAIN
    if published is None:
        return MISSING if attempt is None else f"held, then {_change(attempt.made, made)}"
    return _change(published.made, made)


def _change(before: Made | None, now: Made) -> str:
    if before is not None and before.version != now.version:
        return ANOTHER_VERSION.format(version=before.version)
    return RESEALED


def _reason_blocked(day: date, days: list[date], sealed: Sealed) -> str:
    if days == [day]:
        return sealed.why_not(day)
    return f"needs {', and '.join(f'{one}, which {sealed.why_not(one)}' for one in days)}"
