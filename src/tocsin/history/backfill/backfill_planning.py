"""Decide which days of a detector need a backfill, and which can have none and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta

from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import Windowed, reach
from tocsin.history.backfill.backfill_ledger import BackfillLedger, End, Made
from tocsin.history.places import end

_DAY = timedelta(days=1)
MISSING, AGAIN, ANOTHER_VERSION = "never run", "failed the last time", "run by version {version}"
RESEALED, OTHER_TABLE, OTHER_RULES = "sealed again since", "another query of table '{name}'", "judged by other rules"


@dataclass(frozen=True)
class Sealed:
    """The readable days of a detector's source.

    Attributes:
        versions, rows: the published version of each day that is over, and how many events it has.
        why_not: says of any other day why it cannot be read.
        no_table: says why a table can have no rows for the events of a day, by its name; empty where it can.
        tables: says how a table that is made of history is declared, by its name; empty for any other.
        rules: digest of the rules by which findings are judged now.
    """

    versions: Mapping[date, str]
    rows: Mapping[date, int] = field(default_factory=dict)
    why_not: Callable[[date], str] = lambda _: "is not published"
    no_table: Callable[[str, date], str] = lambda *_: ""
    tables: Callable[[str], str] = lambda _: ""
    rules: str | None = None


@dataclass(frozen=True)
class BackfillPlan:
    """The work to be done: days that need a run, the oldest first, and why; of `blocked` days, what is missing.

    A gate has stopped the findings of `held` days, and nothing of them has changed since.
    """

    days: dict[date, str]
    blocked: dict[date, str]
    held: tuple[date, ...] = ()


def plan(ledger: BackfillLedger, spec: DetectorSpec, sealed: Sealed, days: Iterable[date]) -> BackfillPlan:
    """Choose those of `days` that need a run of the detector as `spec` declares it now."""
    due: dict[date, str] = {}
    blocked: dict[date, str] = {}
    held = []
    for day in sorted(days):
        own = made_of(day, spec, sealed)
        why = obstacle(day, spec, sealed)
        if own is None or why:
            blocked[day] = why
            continue
        reason = _reason(ledger, day, own, sealed.rules)
        if reason is None:
            held += [day] if day in ledger.attempts else []
        else:
            due[day] = reason
    return BackfillPlan(due, blocked, tuple(held))


def made_of(day: date, spec: DetectorSpec, sealed: Sealed) -> Made | None:
    """Say what a run of `day` is made of; None where a day that it reads is not published."""
    versions = sealed.versions
    days = inputs(day, spec, min(versions, default=day))
    if not versions.keys() >= {*days}:
        return None
    tables = {name: declared for name in spec.tables if (declared := sealed.tables(name))}
    return Made(version=spec.version, inputs={one: versions[one] for one in days}, tables=tables)


def inputs(day: date, spec: Windowed, first: date = date.min) -> list[date]:
    """List the days that the windows, or the state, of `day` look into; no state goes back further than `first`."""
    further = -(-reach(spec, end(day)) // _DAY)  # rounded up
    days = [day + _DAY * number for number in range(further + 1)]
    back = -(-(spec.looks_back if isinstance(spec, DetectorSpec) else timedelta(0)) // _DAY)
    return [*(one for number in range(back, 0, -1) if (one := day - _DAY * number) >= first), *days]


def reason_blocked(day: date, spec: Windowed, sealed: Sealed) -> str:
    """Say why the windows of `day` cannot be computed: what is not published of the days that they look into."""
    read = inputs(day, spec, min(sealed.versions, default=day))
    days = [one for one in read if one not in sealed.versions]
    if days == [day]:
        return sealed.why_not(day)
    return f"needs {', and '.join(f'{one}, which {sealed.why_not(one)}' for one in days)}"


def obstacle(day: date, spec: DetectorSpec, sealed: Sealed) -> str:
    """Say why `day` cannot be computed whole now: days that it reads, or a table that it joins; empty if it can."""
    if made_of(day, spec, sealed) is None:
        return reason_blocked(day, spec, sealed)
    return next((why for name in spec.tables if (why := sealed.no_table(name, day))), "")


def _reason(ledger: BackfillLedger, day: date, made: Made, rules: str | None) -> str | None:
    attempt, published = ledger.attempts.get(day), ledger.published.get(day)
    if attempt is not None and attempt.end is End.HELD and _is_alike(attempt.made, made):
        return None if attempt.rules in (None, rules) else f"held, then {OTHER_RULES}"
    if published is not None and _is_alike(published.made, made) and attempt is None:
        return None
    if attempt is not None and attempt.end is End.FAILED:
        return AGAIN
    if published is None or _is_alike(published.made, made):
        return MISSING if attempt is None else f"held, then {_change(attempt.made, made)}"
    return _change(published.made, made)


def _is_alike(before: Made | None, now: Made) -> bool:
    """Return whether both are made of the same; days that retention has removed since make no difference."""
    first = min(now.inputs, default=date.min)
    kept = {} if before is None else {day: name for day, name in before.inputs.items() if day >= first}
    return (
        before is not None
        and (before.version, kept) == (now.version, dict(now.inputs))
        and before.tables in (None, now.tables)
    )


def _change(before: Made | None, now: Made) -> str:
    if before is not None and before.version != now.version:
        return ANOTHER_VERSION.format(version=before.version)
    if before is not None and before.tables not in (None, now.tables):
        changed = min(set((before.tables or {}).items()) ^ set((now.tables or {}).items()))
        return OTHER_TABLE.format(name=changed[0])
    return RESEALED
