"""Decide which days need sealing, and which wait and for what. Pure: the ledger, the versions and the clock decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from tocsin.history.day_versions import DayVersion, Unsealed
from tocsin.history.landing_ledger import LandingLedger
from tocsin.history.places import end


@dataclass(frozen=True)
class SealPlan:
    """The days to seal now, the oldest first, and why other days with landed events wait.

    Those in `too_old` lie further back than history is kept.
    """

    ready: tuple[date, ...]
    waiting: dict[date, str]
    too_old: tuple[date, ...]


@dataclass(frozen=True)
class SealFacts:
    """The facts that a plan follows from; `now` is UTC.

    Attributes:
        versions: all whole ones, by day, the oldest first.
        grace: how long a day is waited for after its end.
        kept: for how long history is kept (`history_days`).
        rules: digest of the rules by which days are judged now.
    """

    ledger: LandingLedger
    versions: Mapping[date, Sequence[DayVersion]]
    published: Mapping[date, str]
    now: datetime
    grace: timedelta
    kept: timedelta
    unsealed: Mapping[date, Unsealed] = field(default_factory=dict)
    rules: str | None = None

    @property
    def retention(self) -> Retention:
        """Say which days are history."""
        return Retention.of(self.ledger, self.versions, self.published, self.now, self.kept)


@dataclass(frozen=True)
class Retention:
    """The days that are history: younger than `edge`, or imported since then, by `imported` (UTC).

    `edge` is midnight `history_days` before now, or before the end of the newest published day with events if that is
    earlier: a clock that is ahead removes nothing. It is the earliest time as long as no such day is published.
    """

    edge: datetime
    imported: Mapping[date, datetime] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        ledger: LandingLedger,
        versions: Mapping[date, Sequence[DayVersion]],
        published: Mapping[date, str],
        now: datetime,
        kept: timedelta,
    ) -> Retention:
        """Derive it from what there is at the moment `now`; days are kept for `kept`."""
        known = [(day, one) for day, name in published.items() for one in versions.get(day, ()) if one.version == name]
        counting = [day for day, version in known if version.facts.rows]
        never = datetime.min.replace(tzinfo=now.tzinfo)
        edge = oldest_kept(min(now, end(max(counting))), kept) if counting else never
        imports = [(day, e.ended) for day, entries in ledger.by_day.items() for e in entries if e.imported is not None]
        imported: dict[date, datetime] = {}
        for day, ended in imports:
            imported[day] = max(ended, imported.get(day, ended))
        return cls(edge, imported)

    def has(self, day: date) -> bool:
        """Return whether `day` is history."""
        return end(day) > self.edge or (day in self.imported and self.imported[day] > self.edge)

    @property
    def first(self) -> date:
        """The first day that may be history."""
        return min([self.edge.date(), *(day for day in self.imported if self.has(day))])


def plan(facts: SealFacts) -> SealPlan:
    """The days that need sealing.

    A day needs it when something has landed for it that its latest version has not, when that version was sealed before
    the day was over, or when it was not brought to its end. It is ready once `grace` has passed since its end and
    Kafka was read beyond that, as the ticks tell; a day of imported events alone needs no ticks. What the gate has
    refused is sealed again when more lands or the rules by which it was judged have changed, and any day when an import
    that is in it was withdrawn. A day without events is sealed, too, if readings covered it from begin to end: empty
    is not missing.
    """
    ready, waiting, too_old, retention = [], {}, [], facts.retention
    for day in sorted({*facts.ledger.by_day, *_covered(facts)}):
        if not _open(day, facts):
            continue
        if not retention.has(day):
            too_old.append(day)
        elif (reason := _reason_to_wait(day, facts)) is not None:
            waiting[day] = reason
        else:
            ready.append(day)
    return SealPlan(tuple(ready), waiting, tuple(too_old))


def overdue(facts: SealFacts, planned: SealPlan) -> dict[date, str]:
    """The days that ended since the last night and still wait, and why: their ingest is behind, or does not run."""
    since = {day: facts.now - facts.grace - end(day) for day in planned.waiting}
    return {day: why for day, why in planned.waiting.items() if timedelta() <= since[day] < timedelta(days=1)}


def missing(facts: SealFacts, days: Iterable[date]) -> tuple[date, ...]:
    """The days between the first and the last of `days` of which there is nothing, as far as they are history.

    Those since the first reading of Kafka are not among them: they are empty, or the next reading will say so.
    """
    there = set(days)
    if not there:
        return ()
    followed = facts.ledger.first.began.date() if facts.ledger.first is not None else date.max
    day = max(min(there), oldest_kept(facts.now, facts.kept).date())
    gaps = []
    while day < max(there) and day <= followed:
        if day not in there and end(day) + facts.grace <= facts.now:
            gaps.append(day)
        day += timedelta(days=1)
    return tuple(gaps)


def oldest_kept(now: datetime, period: timedelta) -> datetime:
    """The moment before which days are no longer history."""
    return (now - period).replace(hour=0, minute=0, second=0, microsecond=0)


def _covered(facts: SealFacts) -> Iterator[date]:
    """Days that Kafka was read for from begin to end, as far as they are history."""
    first, through = facts.ledger.first, facts.ledger.read_through
    if first is None or through is None:
        return
    day = max(first.began, facts.retention.edge).date() + timedelta(days=1)
    while end(day) + facts.grace <= min(through, facts.now):
        yield day
        day += timedelta(days=1)


def _open(day: date, facts: SealFacts) -> bool:
    latest = facts.versions.get(day, ())[-1:]
    if latest and not latest[0].runs.isdisjoint(facts.ledger.withdrawn.get(day, ())):
        return True
    if not latest or not latest[0].whole or not facts.ledger.runs(day) <= latest[0].runs:
        return True
    settled = (latest[0].refused and latest[0].rules in (None, facts.rules)) or latest[0].published_at is not None
    return not settled and facts.published.get(day) != latest[0].version


def _reason_to_wait(day: date, facts: SealFacts) -> str | None:
    over = end(day) + facts.grace
    if facts.now < over:
        return f"waiting until {over:%Y-%m-%d %H:%M} UTC"
    entries = facts.ledger.by_day.get(day, ())
    if entries and all(entry.imported is not None for entry in entries):
        return None
    through = facts.ledger.read_through
    if through is None:
        return "no tick was read from Kafka yet, so the day may be incomplete; is its ingest running?"
    if through < over:
        return f"Kafka was read up to {through:%Y-%m-%d %H:%M:%S} UTC, and the day may last until {over:%H:%M}"
    return None


def chunks(
    days: Iterable[date], rows: Mapping[date, int], most: int, *, neighbours: bool
) -> Iterator[tuple[date, ...]]:
    """Put `days` together up to `most` rows, of `rows` each (none counts as 0); a day with more is alone.

    With `neighbours` a chunk has no gap between its days.
    """
    chunk: list[date] = []
    total = 0
    for day in sorted(days):
        count = rows.get(day, 0)
        is_apart = neighbours and chunk and day - chunk[-1] != timedelta(days=1)
        if chunk and (is_apart or total + count > most):
            yield tuple(chunk)
            chunk, total = [], 0
        chunk.append(day)
        total += count
    if chunk:
        yield tuple(chunk)
