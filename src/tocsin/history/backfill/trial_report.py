"""Say how two versions of a detector differ on history. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime

from pydantic import BaseModel

from tocsin.declare.model.detector import Levels
from tocsin.declare.model.finding import Finding, canonical_entity
from tocsin.declare.model.sizes import in_full

Key = tuple[str, datetime | None, datetime | None, str]


class OpenPart(BaseModel, frozen=True):
    """The part of the current day that was run, by its events in Kafka.

    Attributes:
        day: in UTC.
        since: windows that begin from then on; the begin of the day unless Kafka has removed events of it.
        until: windows that end by then: they are closed.
    """

    day: date
    since: datetime
    until: datetime


class TrialChange(BaseModel, frozen=True):
    """One finding that only one of two versions makes, or both make in another way.

    Attributes:
        entity, window_start, window_end: which one.
        before, after: level and score by each version; null where it finds nothing.
    """

    entity: dict[str, str]
    window_start: datetime | None
    window_end: datetime | None
    before: str | None
    after: str | None


class DayDiff(BaseModel, frozen=True):
    """The findings of two versions on one UTC day: alike, gone, new, and with another level or only another score."""

    day: date
    same: int = 0
    gone: int = 0
    new: int = 0
    other_level: int = 0
    other_score: int = 0


class Diff(BaseModel, frozen=True):
    """Two versions of a detector on the same days.

    Attributes:
        detector, before, after: its name, and what the versions are called.
        days: how many.
        by_day: each of them, the oldest first.
        open: which part of the current day is among them; null if none.
        left_out: days that were asked for and cannot run, and why.
        same: findings that both make alike.
        changes: all others, by window, then by entity.
    """

    detector: str
    before: str
    after: str
    days: int
    by_day: list[DayDiff]
    open: OpenPart | None = None
    left_out: dict[date, str] = {}
    same: int
    changes: list[TrialChange]


def declared_limits(levels: Levels) -> dict[str, float]:
    """The limits that there are, by level."""
    return {level: limit for level, limit in vars(levels).items() if limit is not None}


def changes(
    before: Mapping[date, Sequence[Finding]], after: Mapping[date, Sequence[Finding]]
) -> tuple[list[DayDiff], list[TrialChange]]:
    """Count by day the findings that are alike and those that are not, and list all of the latter.

    Findings are matched by what they are about, not by their identity: a version under another name has others.
    """
    days, found = [], []
    for day in sorted(before.keys() | after.keys()):
        old, new = _by_key(before.get(day, ())), _by_key(after.get(day, ()))
        counts: Counter[str] = Counter()
        for key in sorted(old.keys() | new.keys(), key=_order):
            was, now = old.get(key), new.get(key)
            kind = _kind(was, now)
            counts[kind] += 1
            if kind != "same":
                found.append(_change(was, now))
        days.append(DayDiff(day=day, **counts))
    return days, found


def _kind(was: Finding | None, now: Finding | None) -> str:
    """Name the field of `DayDiff` that counts this."""
    if was is None or now is None:
        return "new" if was is None else "gone"
    if was.level != now.level:
        return "other_level"
    return "same" if was.score == now.score else "other_score"


def _change(was: Finding | None, now: Finding | None) -> TrialChange:
    finding = was or now
    assert finding is not None
    return TrialChange(
        entity=finding.entity,
        window_start=finding.window_start,
        window_end=finding.window_end,
        before=_score_of(was),
        after=_score_of(now),
    )


def _by_key(findings: Iterable[Finding]) -> dict[Key, Finding]:
    return {(canonical_entity(f.entity), f.window_start, f.window_end, f.discriminator): f for f in findings}


def _order(key: Key) -> tuple[str, str, str]:
    entity, start, _, event = key
    return ("" if start is None else start.isoformat(), entity, event)


def _score_of(finding: Finding | None) -> str | None:
    return None if finding is None else f"{finding.level} {in_full(finding.score)}"
