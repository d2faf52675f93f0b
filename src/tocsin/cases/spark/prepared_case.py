"""Prepare the cases of a detector: work out their timelines, and list everything that is wrong with them at once."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

from pyspark.sql import SparkSession

from tocsin.cases.case_events import DeclaredEvent, check_expectations, make_event, written_events
from tocsin.cases.case_language import DAY, Case, CaseEvent, ExpectedFinding, Timeline
from tocsin.cases.spark.case_query import CaseQuery, TableRow
from tocsin.declare.code.case_code import CASES
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import EPOCH, MICROSECOND
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.source import Source
from tocsin.declare.model.table import TableSpec
from tocsin.ingest.spark.envelope import add_event
from tocsin.ingest.spark.parse import parsed
from tocsin.spark.declared_function import load_declared

_RECORD = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " headers array<struct<key:string,value:binary>>"
)
_APPENDED = datetime.combine(DAY, time.max, UTC)
"""A line must not be ahead of its time: this is when all of them came in."""


@dataclass(frozen=True)
class PreparedCase:
    """A case that can run: as written, or generated, with its events in the order of their times."""

    case: Case
    events: Sequence[DeclaredEvent]
    is_generated: bool = False
    training: Sequence[DeclaredEvent] = ()


def read_cases(spec: DetectorSpec) -> list[Case]:
    """Read the cases in the file of `spec`.

    ConfigError if it cannot be run, there are none, or something else than cases is among them.
    """
    cases = load_declared(spec.path, CASES)
    if not cases:
        raise ConfigError.one(spec.path, "has no cases; docs/write/testing.md shows how to write some", key=CASES)
    if not isinstance(cases, list | tuple) or not all(isinstance(case, Case) for case in cases):
        raise ConfigError.one(spec.path, "must be a list of Case(...)", key=CASES)
    faults = [
        Fault(str(spec.path), f"there are {count} cases with the name '{name}'", key=CASES)
        for name, count in Counter(case.name for case in cases).items() if count > 1
    ]  # fmt: skip
    for case in cases:
        is_right = {
            "events": ("at(...), or a list of them", _is_timeline(case.events)),
            "expect": ("a list of email(...) and urgent(...)", _holds(case.expect, list | tuple, ExpectedFinding)),
            "train_on": ("at(...), or a list of them", case.train_on is None or _is_timeline(case.train_on)),
            "tables": (
                "a dict of at(...)",
                _holds(case.tables, dict, str) and _holds([*case.tables.values()], list, Timeline),
            ),
        }
        faults += [Fault(case.place.file, f"must be {shown}", key=what, line=case.place.line)
                   for what, (shown, right) in is_right.items() if not right]  # fmt: skip
    if faults:
        raise ConfigError(faults)
    return list(cases)


def _is_timeline(value: Any) -> bool:
    return isinstance(value, Timeline) or _holds(value, list | tuple, Timeline)


def _holds(values: Any, kind: Any, of: Any) -> bool:
    return isinstance(values, kind) and all(isinstance(value, of) for value in values)


def prepare(spark: SparkSession, cases: Iterable[Case], query: CaseQuery) -> list[PreparedCase]:
    """Work out `cases`; ConfigError with everything that is wrong with them."""
    faults: list[Fault] = []
    prepared: list[PreparedCase] = []
    for case in cases:
        try:
            events = _events(spark, case, query)
            found = check_expectations(case, query.spec, events, has_sessions=query.plan.has_sessions)
            faults += found + _table_faults(case, query)
            prepared.append(PreparedCase(case, events, training=_training(spark, case, query)))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    return prepared


def documents(cases: Sequence[PreparedCase], query: CaseQuery, lanes: Lanes) -> list[list[dict[str, Any]]]:
    """Write the events of each case as records of the events topic, each case in its lane."""
    made: list[list[dict[str, Any]]] = []
    offset = 0
    for lane, prepared in enumerate(cases):
        moved = lanes.offsets[lane]
        numbered = enumerate(prepared.events, offset)
        made.append([event.document(query.source, number, moved) for number, event in numbered])
        offset += len(prepared.events)
    return made


def table_rows(cases: Sequence[PreparedCase], query: CaseQuery, lanes: Lanes) -> dict[str, list[TableRow]]:
    """Make the rows of tables that the cases name; those of a case hold until its lane ends."""
    rows: dict[str, list[TableRow]] = {spec.name: [] for spec in query.table_specs}
    for lane, prepared in enumerate(cases):
        end = lanes.starts[lane + 1]
        for spec in query.table_specs:
            if spec.trains:
                training = [event.document(query.source, n, timedelta(0)) for n, event in enumerate(prepared.training)]
                row = {"detector": spec.trains, "day": "case", "hash": query.train(training)}
                rows[spec.name].append((row, lanes.starts[lane], end))
                continue
            timeline = prepared.case.tables.get(spec.name)
            written = [] if timeline is None else sorted(timeline.events(), key=lambda event: str(event.time))
            rows[spec.name] += _versions(spec, written, lanes.offsets[lane], end)
    return rows


def _versions(spec: TableSpec, written: Sequence[Any], moved: timedelta, end: Any) -> list[TableRow]:
    made: list[TableRow] = []
    until: dict[tuple[Any, ...], Any] = {}
    for event in reversed(written):
        key = tuple(event.columns.get(name) for name in spec.key)
        made.append((dict(event.columns), event.time + moved, until.get(key, end)))
        until[key] = event.time + moved
    return made


def _training(spark: SparkSession, case: Case, query: CaseQuery) -> Sequence[DeclaredEvent]:
    where, line = case.place.file, case.place.line
    if query.spec.model is None:
        if case.train_on is not None:
            raise ConfigError.one(where, "belongs to a detector with a model", key="train_on", line=line)
        return ()
    if case.train_on is None:
        what = "is missing: the model of a case is trained on a timeline, train_on=at(...).repeat(...)"
        raise ConfigError.one(where, what, key="train_on", line=line)
    return _events(spark, replace(case, events=case.train_on, expect=[]), query)


def _events(spark: SparkSession, case: Case, query: CaseQuery) -> list[DeclaredEvent]:
    written = written_events(case, query.spec)
    events = _read_lines(spark, [event for event in written if event.text is not None], query.source)
    faults: list[Fault] = []
    for event in written:
        try:
            events += [make_event(event, query.source, query.needed)] if event.text is None else []
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    return sorted(events, key=lambda event: event.time)


def _read_lines(spark: SparkSession, lines: Sequence[CaseEvent], source: Source) -> list[DeclaredEvent]:
    """Parse `lines`, in their order; those that the source ignores make no event.

    ConfigError names each line that would go to quarantine, and its reasons.
    """
    if not lines:
        return []
    rows = [(None, str(line.text).encode(), "raw", 0, number, _APPENDED, None) for number, line in enumerate(lines)]
    frame = add_event(parsed(spark.createDataFrame(rows, _RECORD), source), source)
    read = {row.offset: row for row in frame.select("offset", "reasons", "event").collect()}
    faults = [
        Fault(line.place.file, f"the line would go to quarantine ({read[number].reasons}): {str(line.text)[:200]}",
              line=line.place.line)
        for number, line in enumerate(lines) if read[number].reasons
    ]  # fmt: skip
    if faults:
        raise ConfigError(faults)
    events = ((line, read[number].event) for number, line in enumerate(lines))
    return [_event(line, json.loads(event), source) for line, event in events if event is not None]


def _event(line: CaseEvent, document: dict[str, object], source: Source) -> DeclaredEvent:
    columns = {
        name: datetime.fromisoformat(str(document[name])) if kind == "timestamp" and name in document
        else document.get(name)
        for name, kind in source.columns.items()
    }  # fmt: skip
    return DeclaredEvent(line.place, datetime.fromisoformat(str(document["event_time"])), columns)


def _table_faults(case: Case, query: CaseQuery) -> list[Fault]:
    specs = {spec.name: spec for spec in query.table_specs}
    faults = [
        Fault(case.place.file, f"is no table that {query.spec.name} joins", key=name, line=case.place.line,
              nearest=nearest(name, specs))
        for name in case.tables if name not in specs
    ]  # fmt: skip
    for name, spec in specs.items():
        for row in case.tables[name].events() if name in case.tables and not spec.trains else []:
            unknown = [column for column in row.columns if column not in spec.columns]
            missing = [column for column in spec.columns if column not in spec.optional | row.columns.keys()]
            where, line = row.place.file, row.place.line
            faults += [Fault(where, f"is no column of table '{name}'", key=column, line=line,
                             nearest=nearest(column, spec.columns)) for column in unknown]  # fmt: skip
            faults += [Fault(where, f"is missing in a row of table '{name}'", key=column, line=line)
                       for column in missing]  # fmt: skip
    return faults


_WEEK = timedelta(days=7)
Span = tuple[datetime, datetime]
"""The times of the first and of the last event of a case."""


@dataclass(frozen=True)
class Lanes:
    """The lanes of some cases.

    Attributes:
        starts: a time before all that happens in each lane, UTC, and at last one after all lanes.
    """

    starts: tuple[datetime, ...]
    offsets: tuple[timedelta, ...]

    def lane_of(self, moment: datetime) -> int:
        """Find the lane in which `moment` lies, a time after its offset was added."""
        return bisect_right(self.starts, moment) - 1

    @property
    def begin(self) -> datetime:
        """Give a time before all lanes."""
        return self.starts[0]

    @property
    def end(self) -> datetime:
        """Give a time after all lanes."""
        return self.starts[-1]


def moved_lanes(spans: Sequence[Span], spec: DetectorSpec, lateness: timedelta) -> Lanes:
    """Make a lane for each case, some weeks after the one before."""
    first = min((first for first, _ in spans), default=EPOCH)
    last = max((last for _, last in spans), default=EPOCH)
    unit = math.lcm(_WEEK // MICROSECOND, (spec.slide or spec.window or _WEEK) // MICROSECOND) * MICROSECOND
    margin = _margin(spec, lateness)
    width = unit * -(-(last - first + 2 * margin) // unit)
    offsets = tuple(number * width for number in range(len(spans)))
    return Lanes(tuple(first - margin + offset for offset in (*offsets, len(spans) * width)), offsets)


def own_lanes(spans: Sequence[Span], spec: DetectorSpec, lateness: timedelta) -> list[tuple[list[int], Lanes]]:
    """Leave each case where it is: lists of the numbers of those that go into one stream, with their lanes."""
    margin = _margin(spec, lateness)
    streams: list[list[int]] = []
    for number in sorted(range(len(spans)), key=lambda case: spans[case]):
        free = (numbers for numbers in streams if spans[numbers[-1]][1] + 2 * margin < spans[number][0])
        stream = next(free, None)
        if stream is None:
            streams.append([number])
        else:
            stream.append(number)
    return [(numbers, _own(numbers, spans, margin)) for numbers in streams]


def _own(numbers: Sequence[int], spans: Sequence[Span], margin: timedelta) -> Lanes:
    starts = tuple(spans[number][0] - margin for number in numbers)
    return Lanes((*starts, spans[numbers[-1]][1] + margin), (timedelta(0),) * len(numbers))


def _margin(spec: DetectorSpec, lateness: timedelta) -> timedelta:
    return 2 * (spec.memory_span + lateness) + timedelta(days=1)
