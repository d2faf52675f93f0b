"""Which days of a detector need a backfill, and which can have none and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from tocsin.backfill.ledger import End, Ledger, Made

_DAY = timedelta(days=1)
MISSING, AGAIN, ANOTHER_VERSION = "was never run", "failed the last time", "was run by version {version}"
RESEALED = "was sealed again since"


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        days: that need a run, the oldest first, and why.
        made: of what the findings of each of them will be made.
        blocked: days that cannot be computed whole now, and what is missing.
        held: days whose findings a gate has stopped and of which nothing has changed since.
    """

    days: dict[date, str]
    made: dict[date, Made]
    blocked: dict[date, str]
    held: tuple[date, ...] = ()


def reach(window: timedelta | None, slide: timedelta | None) -> timedelta:
    """How far beyond its day the windows of a day look: nothing where each ends by midnight.

    Windows begin at multiples of their slide since 1970, as Spark's do: those that follow one another (`slide` None)
    and divide a day end with it.
    """
    if window is None or (slide in (None, window) and _DAY % window == timedelta(0)):
        return timedelta(0)
    return window


def plan(ledger: Ledger, version: str, sealed: Mapping[date, str], ahead: timedelta, days: Iterable[date]) -> Plan:
    """What of `days` needs a run.

    Args:
        ledger: of the detector.
        version: of the detector as it is now.
        sealed: the published version of each day of its source that is over.
        ahead: how far beyond a day its windows look, see `reach`.
        days: to look at.
    """
    due: dict[date, str] = {}
    made: dict[date, Made] = {}
    blocked: dict[date, str] = {}
    held = []
    for day in sorted(days):
        lacking = [one for one in _inputs(day, ahead) if one not in sealed]
        if lacking:
            blocked[day] = _lacks(day, lacking)
            continue
        own = Made(version=version, inputs={one: sealed[one] for one in _inputs(day, ahead)})
        reason = _reason(ledger, day, own)
        if reason is None:
            held += [day] if day in ledger.attempts else []
        else:
            due[day], made[day] = reason, own
    return Plan(due, made, blocked, tuple(held))


def made_of(day: date, version: str, sealed: Mapping[date, str], ahead: timedelta) -> Made | None:
    """Of what a run of `day` is made; None where a day that it reads is not published."""
    days = list(_inputs(day, ahead))
    return Made(version=version, inputs={one: sealed[one] for one in days}) if all(d in sealed for d in days) else None


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


def _reason(ledger: Ledger, day: date, made: Made) -> str | None:
    attempt, published = ledger.attempts.get(day), ledger.published.get(day)
    if attempt is not None and attempt.end is End.HELD and attempt.made == made:
        return None
    if published is not None and published.made == made and attempt is None:
        return None
    if attempt is not None and attempt.end is End.FAILED:
        return AGAIN
    if published is None:
        return MISSING if attempt is None else f"was held, and {_change(attempt.made, made)}"
    return _change(published.made, made)


def _change(before: Made | None, now: Made) -> str:
    if before is not None and before.version != now.version:
        return ANOTHER_VERSION.format(version=before.version)
    return RESEALED


def _inputs(day: date, ahead: timedelta) -> Iterator[date]:
    yield day
    further = day + _DAY
    while ahead > timedelta(0):
        yield further
        further, ahead = further + _DAY, ahead - _DAY


def _lacks(day: date, lacking: list[date]) -> str:
    if lacking == [day]:
        return "is not published"
    return f"needs {' and '.join(map(str, lacking))}, which {'is' if len(lacking) == 1 else 'are'} not published"
