"""Decide what of a view is computed anew from sealed days, and from where on by the stream. Pure.

Each window has one owner: history those that start before a boundary, the stream those that start from it on. The
boundary lies as late as sealed days reach without a break, since the stream then has the least to read and Kafka's
retention is the furthest away. Without windows the boundary is one between events, and those that are on both sides of
it are told by their identity.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from tocsin.declare.model.view import ViewSpec
from tocsin.history.backfill.backfill_planning import Sealed, inputs, reason_blocked
from tocsin.history.places import begin, end

SEVERAL = "days of history are of one source, and it reads several. What Kafka no longer has is not in it"
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class RebuildPlan:
    """The parts of a rebuild.

    Attributes:
        days: that history computes, in order, each with the versions of the days that it is made of.
        since: windows that start from then on, or events without windows, are the stream's, UTC; None if all are, so
            that history computes nothing.
        lacking: days of which events are neither in history nor in Kafka, and why.
        why_none: why history computes nothing; empty if it does.
    """

    days: Mapping[date, str] = field(default_factory=dict)
    since: datetime | None = None
    lacking: Mapping[date, str] = field(default_factory=dict)
    why_none: str = ""


@dataclass(frozen=True)
class EventStock:
    """The events of a source that there are.

    Attributes:
        sealed: its readable days.
        imported: those of them with events that never were in Kafka.
        kafka_since: Kafka holds all events of then and later, UTC; None if it holds all that it ever had.
    """

    sealed: Sealed
    imported: Collection[date]
    kept_from: date
    kafka_since: datetime | None
    now: datetime


def plan_rebuild(spec: ViewSpec, stock: EventStock) -> RebuildPlan:
    """Plan the rebuild of the view `spec`, as declared."""
    if not is_from_history(spec):
        return RebuildPlan(why_none=SEVERAL)
    wanted = first_day(spec, stock.kept_from, stock.now)
    readable = [day for day in sorted(stock.sealed.versions) if day >= wanted]
    if not readable:
        return RebuildPlan(why_none="no day that it needs is sealed and published")
    first, kafka = begin(readable[0]), stock.kafka_since
    needed = [end(day) for day in readable if day in stock.imported]
    needed += [kafka] if kafka is not None and kafka > first else []
    if not needed:
        return RebuildPlan(why_none="Kafka still holds all events of the days that are sealed")
    since = _boundary(spec, stock, max(needed))
    own = [first.date() + _DAY * n for n in range(-(-(since - first) // _DAY))]
    cut = [day for day in own if end(day) > since or not _can_compute(spec, stock, day)]
    lacking = {day: _why(spec, stock, day, since) for day in cut}
    days = {day: "+".join(stock.sealed.versions[it] for it in inputs(day, spec)) for day in own if day not in lacking}
    if not days:
        return RebuildPlan(why_none=f"no day can be computed whole: {first.date()} {lacking[first.date()]}")
    return RebuildPlan(days, since, lacking)


def is_from_history(spec: ViewSpec) -> bool:
    """Return whether days of history can be read for the view, as declared: they are of one source."""
    return len(spec.sources) == 1


def first_day(spec: ViewSpec, kept_from: date, now: datetime) -> date:
    """Find the first day with rows that the view keeps: a window goes `keep` after its end."""
    length = spec.computed.window
    if spec.keep is None or length is None:
        return kept_from
    return max(kept_from, (now - spec.keep - length).date())


def _boundary(spec: ViewSpec, stock: EventStock, since: datetime) -> datetime:
    """Move `since`, from which on Kafka has all, as far as sealed days reach without a break."""
    while _can_compute(spec, stock, since.date()):
        since = end(since.date())
    return since


def _can_compute(spec: ViewSpec, stock: EventStock, day: date) -> bool:
    return stock.sealed.versions.keys() >= {*inputs(day, spec)}


def _why(spec: ViewSpec, stock: EventStock, day: date, since: datetime) -> str:
    why = reason_blocked(day, spec, stock.sealed)
    return why if end(day) <= since else f"Kafka has it from {since:%H:%M:%S} UTC on only, and it {why}"
