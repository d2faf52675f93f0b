"""Sum up a run that keeps nothing: how much a detector would find, and how two versions differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime

from pydantic import BaseModel

from tocsin.model.finding import Finding, canonical_entity

TOP = 10

Key = tuple[str, datetime | None, datetime | None, str]


class DayCount(BaseModel, frozen=True):
    """One UTC day: its events, and the findings and alerts that the detector would have made of them."""

    day: date
    events: int
    findings: int
    urgent: int
    alerts: int


class TopEntity(BaseModel, frozen=True):
    """One of the entities with most findings."""

    entity: dict[str, str]
    findings: int
    highest_score: float


class Backtest(BaseModel, frozen=True):
    """A detector on days of history.

    Attributes:
        detector, version: which one.
        days: the oldest first.
        top: the entities with most findings.
        cpu_seconds, seconds: that it took, without the start of Spark.
    """

    detector: str
    version: str
    days: list[DayCount]
    top: list[TopEntity]
    cpu_seconds: float
    seconds: float


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


class Diff(BaseModel, frozen=True):
    """Two versions of a detector on the same days.

    Attributes:
        detector, before, after: its name, and what the versions are called.
        days: how many.
        same: findings that both make alike.
        changes: all others, by window, then by entity.
    """

    detector: str
    before: str
    after: str
    days: int
    same: int
    changes: list[TrialChange]

    @property
    def only_before(self) -> int:
        """Findings that are gone."""
        return sum(one.after is None for one in self.changes)

    @property
    def only_after(self) -> int:
        """Findings that are new."""
        return sum(one.before is None for one in self.changes)


def top_entities(findings: Iterable[Finding]) -> list[TopEntity]:
    """The `TOP` entities with most findings, of equal ones that with the highest score first."""
    counts: Counter[str] = Counter()
    best: dict[str, Finding] = {}
    for one in findings:
        name = canonical_entity(one.entity)
        counts[name] += 1
        if name not in best or one.score > best[name].score:
            best[name] = one
    order = sorted(counts, key=lambda name: (-counts[name], -best[name].score, name))
    return [
        TopEntity(entity=best[name].entity, findings=counts[name], highest_score=best[name].score)
        for name in order[:TOP]
    ]


def changes(before: Iterable[Finding], after: Iterable[Finding]) -> tuple[int, list[TrialChange]]:
    """Count the findings that are alike, and list all that are not.

    Findings are matched by what they are about, not by their identity: a version under another name has others.
    """
    old, new = _by_key(before), _by_key(after)
    found, same = [], 0
    for key in sorted(old.keys() | new.keys(), key=_order):
        was, now = old.get(key), new.get(key)
        if was is not None and now is not None and (was.level, was.score) == (now.level, now.score):
            same += 1
            continue
        finding = was or now
        assert finding is not None
        found.append(
            TrialChange(
                entity=finding.entity,
                window_start=finding.window_start,
                window_end=finding.window_end,
                before=_score_of(was),
                after=_score_of(now),
            )
        )
    return same, found


def day_counts(
    found: Mapping[date, Sequence[Finding]], events: Mapping[date, int], alerts: Mapping[date, int]
) -> list[DayCount]:
    """One row a day, the oldest first; `alerts` lacks days without any."""
    return [
        DayCount(
            day=day,
            events=events[day],
            findings=len(found[day]),
            urgent=sum(one.level == "urgent" for one in found[day]),
            alerts=alerts.get(day, 0),
        )
        for day in sorted(found)
    ]


def _by_key(findings: Iterable[Finding]) -> dict[Key, Finding]:
    return {(canonical_entity(f.entity), f.window_start, f.window_end, f.discriminator): f for f in findings}


def _order(key: Key) -> tuple[str, str, str]:
    entity, start, _, event = key
    return ("" if start is None else start.isoformat(), entity, event)


def _score_of(finding: Finding | None) -> str | None:
    return None if finding is None else f"{finding.level} {finding.score:g}"
