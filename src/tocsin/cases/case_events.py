"""Make events of a source of what a case says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tocsin.cases.case_language import Case, CaseEvent, CodePlace, moment
from tocsin.declare.model.detector import DetectorSpec, Span
from tocsin.declare.model.durations import (
    EPOCH,
    MICROSECOND,
    closed_before,
    end_of,
    last_number,
    start,
    step_of,
    window_of,
)
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.source import Source, tick_value

_BOUNDS = {"int": 2**31, "bigint": 2**63}


@dataclass(frozen=True)
class DeclaredEvent:
    """One event of a case; `time` is UTC."""

    place: CodePlace
    time: datetime
    columns: Mapping[str, Any]
    is_tick: bool = False

    def document(self, source: Source, offset: int, moved: timedelta) -> dict[str, Any]:
        """Write it as a record of the events topic, the `offset`th, `moved` in time."""
        if self.is_tick:
            tick: dict[str, Any] = json.loads(tick_value(self.time + moved))
            return tick
        time = iso(self.time + moved)
        columns = {
            name: iso(value + moved) if isinstance(value, datetime) else value for name, value in self.columns.items()
        }
        return {
            **{"raw_topic": f"raw.{source.name}", "raw_partition": 0, "raw_offset": offset, "event_time": time},
            **{"ingested_at": time, "source": source.name, "schema_version": source.schema_version},
            **{name: value for name, value in columns.items() if value is not None},
        }


def iso(time: datetime) -> str:
    """Write a time as events have it."""
    return f"{time:%Y-%m-%dT%H:%M:%S.%fZ}"


def written_events(case: Case, spec: DetectorSpec) -> list[CaseEvent]:
    """Work out the timeline of `case`; ConfigError if it is faulty or has no events. Ticks alone do to find silence."""
    events = case.written()
    if not events or (spec.expect is None and all(event.is_tick for event in events)):
        raise case.place.fault(f"case '{case.name}' has no events")
    return events


def span_of(events: Sequence[DeclaredEvent], spec: DetectorSpec) -> Span:
    """Find the windows of `spec` that a case is about: they begin from the first of these times up to the second.

    From the window of the first of `events`, sorted by time, to the last that holds an event or has ended by a tick.
    """
    if not events:
        return EPOCH, EPOCH  # all its lines are ignored
    begun = [starts_of(event.time, spec)[0] for event in events]
    ends = [
        closed_before(spec, event.time) if event.is_tick else begin + MICROSECOND
        for event, begin in zip(events, begun, strict=True)
    ]
    return begun[0], max(ends)


def starts_of(moment: datetime, spec: DetectorSpec) -> list[datetime]:
    """List the starts of the windows of `spec`, which has some, that hold `moment`, the last one first."""
    last, most = last_number(spec, moment), -(-window_of(spec) // step_of(spec))
    begun = (start(spec, last - number) for number in range(most))
    return [begin for begin in begun if moment < end_of(spec, begin)]


def make_event(written: CaseEvent, source: Source, used: Iterable[str]) -> DeclaredEvent:
    """Make an event of `source` of what a case says; ConfigError with all that is wrong with its columns.

    A column that is not named has the time of the event if it is the source's `event_time`, and is null else; one that
    the source requires and the detector reads, so is in `used`, must be named.
    """
    assert written.time is not None, "a raw line is read by its source"
    if written.is_tick:
        return DeclaredEvent(written.place, written.time, {}, is_tick=True)
    faults = [_unknown(written.place, name, source) for name in written.columns if name not in source.columns]
    values: dict[str, Any] = {}
    for name, kind in source.columns.items():
        try:
            values[name] = _value(name, kind, written, source, name in used)
        except ValueError as error:
            faults.append(Fault(written.place.file, str(error), key=name, line=written.place.line))
    if faults:
        raise ConfigError(faults)
    return DeclaredEvent(written.place, written.time, values)


def check_expectations(
    case: Case, spec: DetectorSpec, events: Sequence[DeclaredEvent], *, has_sessions: bool
) -> list[Fault]:
    """List what is wrong with what `case` expects, given its `events`."""
    faults: list[Fault] = []
    for expected in case.expect:
        place = expected.place
        levels = [level for level in ("email", "urgent") if getattr(spec.levels, level) is not None]
        if expected.level not in levels:
            what = f"'{expected.level}' is no level of {spec.name} (it has: {', '.join(levels)})"
            faults.append(Fault(place.file, what, line=place.line, nearest=nearest(str(expected.level), levels)))
        if set(expected.entity) != set(spec.entity):
            what = f"names the entity by {', '.join(expected.entity) or 'nothing'}; "
            what += f"the entity of {spec.name} is {', '.join(spec.entity)}"
            faults.append(Fault(place.file, what, line=place.line))
        try:
            begin = expected.start
        except ConfigError as error:
            faults += error.faults
            continue
        if begin is not None and not has_sessions and (what := _contradiction(begin, spec, events)):
            faults.append(Fault(place.file, what, line=place.line))
    return faults


def _contradiction(begin: datetime, spec: DetectorSpec, events: Sequence[DeclaredEvent]) -> str:
    """Say why `events` have no finding whose window begins at `begin`; "" if they can."""
    times = [event.time for event in events if not event.is_tick]
    if spec.window is None:
        return "" if begin in times else f"the case has no event at {begin:%H:%M:%S.%f}"
    if starts_of(begin, spec)[:1] != [begin]:
        where = f"at midnight in {spec.time_zone}" if spec.time_zone else "at multiples of "
        where += "" if spec.time_zone else f"{step_of(spec).total_seconds():g} s"
        return f"no window begins at {begin:%H:%M:%S}: windows begin {where}"
    end = end_of(spec, begin)
    if spec.expect is not None:
        first, after = span_of(events, spec)
        where = f"the case looks at windows that begin from {first:%H:%M:%S} and end by its last event or tick"
        return "" if first <= begin < after else f"{where}; add a tick at {end:%H:%M:%S}"
    if not times:
        return "the case has no event: each of its lines is one that its source ignores"
    if not any(begin <= time < end for time in times):
        first, last = min(times), max(times)
        return (f"the case has no event in the window {begin:%H:%M:%S} to {end:%H:%M:%S}; "
                f"its events are from {first:%H:%M:%S} to {last:%H:%M:%S}")  # fmt: skip
    return ""


def _unknown(place: CodePlace, name: str, source: Source) -> Fault:
    what = f"is no column of source '{source.name}' (it has: {', '.join(source.columns)})"
    return Fault(place.file, what, key=name, line=place.line, nearest=nearest(name, source.columns))


def _value(name: str, kind: str, written: CaseEvent, source: Source, is_used: bool) -> Any:
    if name not in written.columns:
        if name == source.event_time:
            return _event_time(kind, written, source)
        if is_used and name not in source.optional:
            raise ValueError(f"is missing: the detector reads it, and source '{source.name}' requires it")
        return None
    value = written.columns[name]
    if value is None:
        if name in source.optional:
            return None
        raise ValueError(f"is null, but source '{source.name}' requires it; such a line goes to quarantine")
    if kind == "timestamp":
        return moment(str(value), written.place)
    if not _fits(kind, value):
        raise ValueError(f"is {kind} in source '{source.name}', not {value!r}")
    return value


def _event_time(kind: str, written: CaseEvent, source: Source) -> Any:
    """Give the column that the event time is read from the value that it was read from, where that can be told."""
    assert written.time is not None
    if kind == "timestamp":
        return written.time
    seconds = written.time.timestamp()
    number = seconds * 1000 if source.event_time_format == "epoch-milliseconds" else seconds
    return {"string": iso(written.time), "double": number}.get(kind, int(number))


def _fits(kind: str, value: object) -> bool:
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind == "double":
        return isinstance(value, int | float)
    return isinstance(value, int) and -_BOUNDS[kind] <= value < _BOUNDS[kind]
