"""Make cases at the limits of a detector whose score counts events, from a case that fires. Pure.

At a limit it must be silent, or stay at the level below; with one event more it fires. What lies on both sides of the
edge of a window does not add up, and neither do two entities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tocsin.cases.case_events import DeclaredEvent, starts_of
from tocsin.cases.case_language import Case, ExpectedFinding, Timeline
from tocsin.cases.case_report import CaseFinding
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import end_of
from tocsin.declare.model.source import Source

Written = tuple[Case, Sequence[DeclaredEvent]]
MOST_EVENTS = 2_000
"""A limit above it gets no cases."""


def boundary_cases(
    spec: DetectorSpec, source: Source, cases: Sequence[Written], found: Sequence[Mapping[str, CaseFinding]]
) -> tuple[list[Written], list[str]]:
    """Make cases from the first of `cases`, with its findings in `found`, that shows which event counts for one.

    Returns them, and what was left out.
    """
    step = spec.slide or spec.window
    if spec.window is None or step is None or spec.window % step:
        return [], ["no boundary cases: windows of different length hold an event"]
    base = next(
        (base for written, by_id in zip(cases, found, strict=True) if (base := _base(spec, written, by_id))), None
    )
    if base is None:
        return [], ["no boundary cases: in no case that fires is the score the number of like events of one entity"]
    made, notes = [], []
    for level in ("email", "urgent"):
        limit = getattr(spec.levels, level)
        if limit is None or limit < 0:
            continue
        if limit >= MOST_EVENTS:
            notes.append(f"no boundary cases for level {level}: its limit is above {MOST_EVENTS:,} events")
            continue
        made += base.at_limit(int(limit), level)
    lowest = spec.levels.lowest
    if 1 <= lowest < MOST_EVENTS:
        made += base.not_added_up(int(lowest), source)
    return made, notes


def _base(spec: DetectorSpec, written: Written, found: Mapping[str, CaseFinding]) -> _Base | None:
    case, events = written
    for finding in found.values():
        inside = [
            event for event in events if finding.start and finding.end and finding.start <= event.time < finding.end
        ]
        for event in inside:
            like = [other for other in inside if _columns_of(other) == _columns_of(event)]
            is_of = all(str(event.columns.get(name)) == value for name, value in finding.entity.items())
            if is_of and len(like) == finding.score and finding.start is not None:
                return _Base(spec, case, event, starts_of(finding.start, spec)[0])
    return None


class _Base:
    def __init__(self, spec: DetectorSpec, case: Case, event: DeclaredEvent, start: datetime) -> None:
        self._spec, self._case, self._event, self._start = spec, case, event, start
        self._step: timedelta = spec.slide or spec.window or timedelta(0)

    def at_limit(self, limit: int, level: str) -> list[Written]:
        cases = [
            self._case_of(f"{limit} events: at the limit of {level}", self._spread(self._event, self._start, limit))
        ]
        above = self._spread(self._event, self._start, limit + 1)
        return [*cases, self._case_of(f"{limit + 1} events: just above the limit of {level}", above)]

    def not_added_up(self, limit: int, source: Source) -> list[Written]:
        half, rest = (limit + 1) // 2, limit + 1 - (limit + 1) // 2
        cases: list[Written] = []
        if self._step == self._spec.window:
            edge = self._spread(self._event, self._start, half)
            edge += self._spread(self._event, end_of(self._spec, self._start), rest)
            cases.append(self._case_of(f"{limit + 1} events on both sides of the edge of a window", edge))
        other = self._other(source)
        if other is not None:
            both = self._spread(self._event, self._start, half) + self._spread(other, self._start, rest)
            cases.append(
                self._case_of(f"{limit + 1} events of two entities", sorted(both, key=lambda event: event.time))
            )
        return cases

    def _spread(self, event: DeclaredEvent, start: datetime, count: int) -> list[DeclaredEvent]:
        step = end_of(self._spec, start) - start if self._step == self._spec.window else self._step
        return [_moved(event, start + step * number / (count + 1)) for number in range(count)]

    def _other(self, source: Source) -> DeclaredEvent | None:
        for name in self._spec.entity:
            value: Any = self._event.columns.get(name)
            if isinstance(value, bool) or name == source.event_time:
                continue
            if isinstance(value, str | int):
                changed = f"{value}-2" if isinstance(value, str) else value + 1
                return replace(self._event, columns={**self._event.columns, name: changed})
        return None

    def _case_of(self, name: str, events: list[DeclaredEvent]) -> Written:
        place, counts = self._case.place, dict[tuple[datetime, tuple[str, ...]], int]()
        for event in events:
            entity = tuple(str(event.columns.get(column)) for column in self._spec.entity)
            for start in starts_of(event.time, self._spec):
                counts[start, entity] = counts.get((start, entity), 0) + 1
        expect = [
            ExpectedFinding(place, level, dict(zip(self._spec.entity, entity, strict=True)), start.isoformat(), count)
            for (start, entity), count in counts.items() if (level := self._spec.levels.reached(count))
        ]  # fmt: skip
        timeline = Timeline(place, lambda: [])
        return Case(name, events=timeline, expect=expect, tables=self._case.tables, place=place), events


def _columns_of(event: DeclaredEvent) -> dict[str, Any]:
    return {name: value for name, value in event.columns.items() if value != event.time}


def _moved(event: DeclaredEvent, time: datetime) -> DeclaredEvent:
    columns = {name: time if value == event.time else value for name, value in event.columns.items()}
    return replace(event, time=time, columns=columns)
