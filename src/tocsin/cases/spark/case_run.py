"""Run all cases of one detector in all ways, and judge what was found."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tocsin.cases.boundaries import boundary_cases
from tocsin.cases.case_events import DeclaredEvent, span_of, starts_of
from tocsin.cases.case_language import CodePlace
from tocsin.cases.case_report import (
    CaseFinding,
    CaseOutcome,
    CaseProblem,
    DetectorOutcome,
    Way,
    WayOutcome,
    clock,
    expected_text,
    judge,
    window_text,
)
from tocsin.cases.spark.case_query import CaseQuery, LatestFindings
from tocsin.cases.spark.prepared_case import (
    Lanes,
    PreparedCase,
    documents,
    moved_lanes,
    own_lanes,
    prepare,
    read_cases,
    table_rows,
)
from tocsin.cases.spark.stream_ways import RealTimeWay, StreamWays
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import EPOCH, end_of, first_number, start
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.sizes import in_full
from tocsin.detect.spark.plan import StreamOnly
from tocsin.platform.failures import in_a_line
from tocsin.spark.query.work import REAL_TIME

Documents = list[list[dict[str, Any]]]

_LONG = (Way.EACH_EVENT, Way.REAL_TIME)
"""The ways that begin first: one has the most micro-batches, the other waits more than it works."""
_AT_ONCE = 1 + (os.cpu_count() or 1)
"""So many ways run side by side: one of them often waits, for a trigger or for the broker."""
_STOP_SECONDS = 0.2


class CaseRun:
    """The cases of one detector, in one Spark session."""

    def __init__(self, spark: SparkSession, catalog: Catalog, name: str, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self.query = CaseQuery(spark, catalog.detector(name), catalog)
        self.cases = prepare(spark, read_cases(self.query.spec), self.query)
        self.outcome = DetectorOutcome(detector=name)

    def run(self, ways: Iterable[Way], real_time: Callable[[], RealTimeWay]) -> DetectorOutcome:
        """Run all cases in `ways`, which run side by side; `real_time` starts what real-time mode needs."""
        self._add_boundaries()
        asked = list(ways)
        for cases, lanes in _streams(self.cases, self.query):
            if not self._run_stream(cases, lanes, asked, real_time):
                break
        order = {prepared.case.name: number for number, prepared in enumerate(self.cases)}
        self.outcome.cases.sort(key=lambda outcome: order[outcome.name])
        return self.outcome

    def _run_stream(
        self, cases: Sequence[PreparedCase], lanes: Lanes, asked: Sequence[Way], real_time: Callable[[], RealTimeWay]
    ) -> bool:
        made = _laid_out(cases, self.query, lanes)
        with ThreadPoolExecutor(_AT_ONCE) as threads:  # they share the detector's function, which runs in one at a time
            in_turn = sorted(asked, key=lambda way: way not in _LONG)
            began = {way: threads.submit(self._timed, way, made, lanes, real_time) for way in in_turn}
            try:
                wait(began.values())
            except KeyboardInterrupt:
                while wait([run for run in began.values() if not run.cancel()], _STOP_SECONDS).not_done:
                    for query in self._spark.streams.active:
                        query.stop()
                raise
        found: dict[Way, LatestFindings] = {}
        for way in asked:
            try:
                found[way], seconds = began[way].result()
                self._note(WayOutcome(way=way, seconds=seconds))
            except _Skipped as skipped:
                self._note(WayOutcome(way=way, skipped=str(skipped)))
            except ConfigError:
                raise
            except Exception as error:  # whatever the code of a detector raises is told of its cases
                self._blame(way, cases, made, in_a_line(error))
                return False
        self._judge(cases, lanes, found)
        return True

    def _note(self, outcome: WayOutcome) -> None:
        before = next((known for known in self.outcome.ways if known.way == outcome.way), None)
        if before is None:
            self.outcome.ways.append(outcome)
        else:
            self.outcome.ways[self.outcome.ways.index(before)] = outcome.model_copy(
                update={"seconds": before.seconds + outcome.seconds}
            )

    def batch(self, cases: Sequence[PreparedCase], query: CaseQuery) -> list[dict[str, CaseFinding]]:
        """Find in `cases` by batches; the findings of each."""
        found: dict[int, dict[str, CaseFinding]] = {}
        for together, lanes in _streams(cases, query):
            made = _laid_out(together, query, lanes)
            by_case = _by_case(query.batch([event for case in made for event in case]), lanes)
            found.update(zip(map(id, together), by_case, strict=True))
        return [found[id(case)] for case in cases]

    def _add_boundaries(self) -> None:
        if not self.query.plan.score.counts or self.query.plan.has_sessions or self.query.spec.window is None:
            self.outcome.notes.append("no boundary cases: only a score that counts events in windows has such limits")
            return
        try:
            found = self.batch(self.cases, self.query)
        except Exception:  # the first way tells it better
            return
        made, why = boundary_cases(
            self.query.spec, self.query.source, [(prepared.case, prepared.events) for prepared in self.cases], found
        )
        self.cases = [*self.cases, *(PreparedCase(case, events, is_generated=True) for case, events in made)]
        self.outcome.notes += why

    def _timed(
        self, way: Way, made: Documents, lanes: Lanes, real_time: Callable[[], RealTimeWay]
    ) -> tuple[LatestFindings, float]:
        begin = time.monotonic()
        return self._run_way(way, made, lanes, real_time), time.monotonic() - begin

    def _run_way(self, way: Way, made: Documents, lanes: Lanes, real_time: Callable[[], RealTimeWay]) -> LatestFindings:
        if way is Way.BATCH:
            try:
                return self.query.batch([event for case in made for event in case])
            except StreamOnly as error:
                raise _Skipped(error.faults[0].what) from None
        if way is Way.REAL_TIME:
            if self.query.plan.mode != REAL_TIME:
                raise _Skipped(self.query.plan.reason)
            return real_time().run(self.query, made)
        # Each stream has a folder of its own: Spark may still write into that of the one before, whose query has ended.
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=way.value, dir=self._folder, ignore_cleanup_errors=True) as folder:
            streams = StreamWays(self._spark, self.query, lanes, Path(folder))
            run: Callable[[Documents], LatestFindings] = getattr(streams, way.name.lower())
            return run(made)

    def _judge(self, cases: Sequence[PreparedCase], lanes: Lanes, found: dict[Way, LatestFindings]) -> None:
        by_way = {way: _by_case(findings, lanes) for way, findings in found.items()}
        missed: list[tuple[PreparedCase, CaseOutcome]] = []
        for lane, prepared in enumerate(cases):
            ways = {way: findings[lane] for way, findings in by_way.items()}
            first = next(iter(ways.values()), {})
            outcome = self._outcome(prepared)
            outcome.found = list(first.values())
            outcome.problems = judge(prepared.case, ways)
            self.outcome.cases.append(outcome)
            if any(_is_missing(problem, prepared) for problem in outcome.problems):
                missed.append((prepared, outcome))
        if missed and self.query.spec.expect is None:
            self._note_scores(missed)

    def _note_scores(self, missed: Sequence[tuple[PreparedCase, CaseOutcome]]) -> None:
        """Say what the highest score is where a finding is missing."""
        try:
            found = self.batch([prepared for prepared, _ in missed], self.query.without_limits())
        except Exception:  # what is missing is told already
            return
        for (prepared, outcome), scored in zip(missed, found, strict=True):
            highest = max(scored.values(), key=lambda finding: finding.score, default=None)
            said = "nothing; no window or event has a score"
            if highest is not None:
                said = f"nothing; the highest score is {in_full(highest.score)}, {highest.place}"
            outcome.problems = [
                problem.model_copy(update={"found": said}) if _is_missing(problem, prepared) else problem
                for problem in outcome.problems
            ]

    def _outcome(self, prepared: PreparedCase) -> CaseOutcome:
        place: CodePlace = prepared.case.place
        return CaseOutcome(
            name=prepared.case.name,
            file=place.file,
            line=place.line,
            is_generated=prepared.is_generated,
            timeline=timeline_lines(prepared.events),
            windows=[] if self.query.plan.has_sessions else window_lines(prepared.events, self.query.spec),
        )

    def _blame(self, way: Way, cases: Sequence[PreparedCase], made: Documents, error: str) -> None:
        for lane, prepared in enumerate(cases):
            outcome = self._outcome(prepared)
            why = self._failure(made[lane])
            if why:
                event = self._culprit(made[lane])
                if event is not None:
                    why += f"; an event of line {prepared.events[event].place.line} alone does it"
                outcome.problems = [CaseProblem(way=way, why=why)]
            self.outcome.cases.append(outcome)
        if not self.outcome.failed:
            self.outcome.faults.append(f"{self.query.spec.path}: {way}: {error}")

    def _culprit(self, events: list[dict[str, Any]]) -> int | None:
        """Find an event that lets the query fail alone, by halves; None if it takes several."""
        first, last = 0, len(events)
        while last - first > 1:
            middle = (first + last) // 2
            if self._failure(events[first:middle]):
                last = middle
            elif self._failure(events[middle:last]):
                first = middle
            else:
                return None
        return first

    def _failure(self, events: list[dict[str, Any]]) -> str:
        try:
            self.query.batch(events)
        except Exception as error:  # as above
            return in_a_line(error)
        return ""


def _is_missing(problem: CaseProblem, prepared: PreparedCase) -> bool:
    """Return whether nothing was found in the place of what a case expects."""
    return not (problem.found or problem.why) and problem.expected in map(expected_text, prepared.case.expect)


class _Skipped(Exception):
    """The detector never runs this way; says why."""


def _streams(cases: Sequence[PreparedCase], query: CaseQuery) -> list[tuple[Sequence[PreparedCase], Lanes]]:
    if not query.reads_calendar:
        return _moved(cases, query)
    streams = own_lanes([_span(case) for case in cases], query.spec, query.source.lateness)
    return [([cases[number] for number in numbers], lanes) for numbers, lanes in streams]


def _moved(cases: Sequence[PreparedCase], query: CaseQuery) -> list[tuple[Sequence[PreparedCase], Lanes]]:
    return [(cases, moved_lanes([_span(case) for case in cases], query.spec, query.source.lateness))] if cases else []


def _span(prepared: PreparedCase) -> tuple[datetime, datetime]:
    times = [event.time for event in prepared.events] or [EPOCH]  # all its lines may be ignored
    return times[0], times[-1]


def _laid_out(cases: Sequence[PreparedCase], query: CaseQuery, lanes: Lanes) -> Documents:
    query.set_tables(table_rows(cases, query, lanes))
    if query.spec.expect is not None:
        spans = (span_of(case.events, query.spec) for case in cases)
        moved = zip(lanes.offsets, spans, strict=True)
        query.spans = [(first + offset, after + offset) for offset, (first, after) in moved]
    return documents(cases, query, lanes)


def _by_case(found: LatestFindings, lanes: Lanes) -> list[dict[str, CaseFinding]]:
    cases: list[dict[str, CaseFinding]] = [{} for _ in lanes.offsets]
    for id_, finding in found.findings.items():
        lane = lanes.lane_of(finding.moment)
        cases[lane][id_] = CaseFinding.of(finding, lanes.offsets[lane])
    return cases


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
