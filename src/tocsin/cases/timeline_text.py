"""Write the timeline of a case for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from tocsin.cases.case_events import DeclaredEvent, span_of, starts_of
from tocsin.cases.case_report import clock, window_text
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import end_of, first_number, start

_MOST = 20


def timeline_lines(events: Sequence[DeclaredEvent]) -> list[str]:
    """Write `events`, sorted by time; those that repeat at one distance in one line."""
    lines = [_line(run) for run in _runs(events)]
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more lines"]


def window_lines(events: Sequence[DeclaredEvent], spec: DetectorSpec) -> list[str]:
    """Write the windows of `spec` that a case of `events` looks at, with the number of events in each."""
    if spec.window is None:
        return []
    counts = Counter(begin for event in events if not event.is_tick for begin in starts_of(event.time, spec))
    if spec.expect is not None:
        numbers = (first_number(spec, moment) for moment in span_of(events, spec))
        counts.update({start(spec, number): 0 for number in range(*numbers)})
    lines = [f"{window_text(begin, end_of(spec, begin))}  {count} events" for begin, count in sorted(counts.items())]
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more windows"]


def _runs(events: Sequence[DeclaredEvent]) -> Iterator[list[DeclaredEvent]]:
    run: list[DeclaredEvent] = []
    for event in events:
        if run and not _continues(run, event):
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _continues(run: list[DeclaredEvent], event: DeclaredEvent) -> bool:
    if (run[-1].is_tick, _columns(run[-1])) != (event.is_tick, _columns(event)):
        return False
    return len(run) == 1 or event.time - run[-1].time == run[1].time - run[0].time


def _line(run: list[DeclaredEvent]) -> str:
    said = ", ".join(f"{name}={value!r}" for name, value in _columns(run[0]).items())
    text = f"{clock(run[0].time)}  {'tick' if run[0].is_tick else said}"
    if len(run) == 1:
        return text
    step: timedelta = run[1].time - run[0].time
    every = f" every {step.total_seconds():g} s until {clock(run[-1].time)}" if step else " at once"
    return f"{text}  x {len(run)}{every}"


def _columns(event: DeclaredEvent) -> Mapping[str, Any]:
    return {name: value for name, value in event.columns.items() if value not in (None, "", event.time)}
