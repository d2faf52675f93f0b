"""Define what a run of cases has found out, as its process sends it and `tocsin test --json` writes it.

Times are UTC, as the case writes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel

from tocsin.cases.case_language import Case, ExpectedFinding
from tocsin.declare.model.finding import Finding, next_rung
from tocsin.declare.model.sizes import in_full

_SAME = 1e-9


class Way(StrEnum):
    """The ways in which events reach a detector."""

    BATCH = "batch"
    ONE_BATCH = "one-batch"
    EACH_EVENT = "each-event"
    SHUFFLED = "shuffled"
    RESTARTED = "restarted"
    REAL_TIME = "real-time"


class CaseFinding(BaseModel, frozen=True):
    """A finding of a case.

    Attributes:
        start, end: of its window; both the time of the event for a detector of single events.
    """

    finding_id: str
    entity: dict[str, str]
    level: str
    score: float
    at_least: bool = False
    start: datetime | None = None
    end: datetime | None = None

    @classmethod
    def of(cls, finding: Finding, moved: timedelta) -> CaseFinding:
        """Take what `finding` says of a case that was `moved` in time."""
        start, end = finding.window_start or finding.event_time_max, finding.window_end or finding.event_time_max
        return cls(
            **finding.model_dump(include={"finding_id", "entity", "level", "score", "at_least"}),
            start=start and start - moved,
            end=end and end - moved,
        )

    def agrees(self, other: CaseFinding) -> bool:
        """Return whether level and score are those of `other`, which is exact; `at_least` is a lower bound."""
        if self.level != other.level:
            return False
        if self.at_least:
            return self.score <= other.score < next_rung(int(self.score))
        return math.isclose(self.score, other.score, rel_tol=_SAME, abs_tol=_SAME)

    def __str__(self) -> str:
        least = "at least " if self.at_least else ""
        return f"{self.level}  {self.place}  score {least}{in_full(self.score)}"

    @property
    def place(self) -> str:
        """Write its entity and its window for people."""
        return f"{entity_text(self.entity)}  {window_text(self.start, self.end)}".strip()


class CaseProblem(BaseModel, frozen=True):
    """One difference in a case."""

    way: Way
    others: tuple[Way, ...] = ()
    expected: str = ""
    found: str = ""
    why: str = ""


class CaseOutcome(BaseModel):
    """What became of one case.

    Attributes:
        file, line: where it is written; of a generated one, the case that it is made of.
    """

    name: str
    file: str
    line: int
    is_generated: bool = False
    timeline: list[str] = []
    windows: list[str] = []
    found: list[CaseFinding] = []
    problems: list[CaseProblem] = []


class WayOutcome(BaseModel):
    """How one way went: the seconds that it took, or why it was not taken."""

    way: Way
    seconds: float = 0.0
    skipped: str = ""


class MutantOutcome(BaseModel):
    """A change of the detector that a case should notice.

    Attributes:
        killed_by: name of the first case that fails with it, or why it cannot run; empty if it survived.
    """

    line: int
    change: str
    killed_by: str = ""


class DetectorOutcome(BaseModel):
    """What became of the cases of one detector."""

    detector: str
    faults: list[str] = []
    cases: list[CaseOutcome] = []
    ways: list[WayOutcome] = []
    mutants: list[MutantOutcome] = []
    notes: list[str] = []

    @property
    def failed(self) -> list[CaseOutcome]:
        """The cases that did not pass."""
        return [case for case in self.cases if case.problems]

    @property
    def survivors(self) -> list[MutantOutcome]:
        """The mutants that no case noticed."""
        return [mutant for mutant in self.mutants if not mutant.killed_by]

    @property
    def is_well(self) -> bool:
        """Return whether all passed and no mutant survived."""
        return not (self.faults or self.failed or self.survivors)


class TestReport(BaseModel):
    """What became of all detectors."""

    __test__ = False  # pytest takes it for a class of tests

    detectors: list[DetectorOutcome]
    seconds: float


def case_lines(detector: str, case: CaseOutcome) -> Iterator[str]:
    """Write a case that failed: its timeline, its windows, and what differs."""
    made = ", made from the limits and the case there" if case.is_generated else ""
    yield f"FAILED {detector}: {case.name} ({case.file}:{case.line}{made})"
    for head, texts in (("events", case.timeline), ("windows", case.windows)):
        for number, text in enumerate(texts):
            yield f"  {'' if number else head:<9}{text}"
    for problem in case.problems:
        yield f"  {', '.join([problem.way, *problem.others])}:"
        if problem.why:
            yield f"    {problem.why}"
        else:
            yield f"    expected {problem.expected or 'nothing'}"
            yield f"    found    {problem.found or 'nothing'}"


def entity_text(entity: dict[str, str]) -> str:
    """Write an entity for people."""
    return ", ".join(f"{name}={value}" for name, value in entity.items())


def clock(moment: datetime) -> str:
    """Write a time for people: without what is zero, and with its day if that is none of the first week."""
    text = f"{moment:%H:%M:%S.%f}".rstrip("0").rstrip(".")
    return text if moment.date().isoformat() == "2026-01-05" else f"{moment:%Y-%m-%d} {text}"


def window_text(start: datetime | None, end: datetime | None) -> str:
    """Write a window, or the time of an event, for people."""
    if start is None or end is None or start == end:
        return clock(start) if start else ""
    return f"{clock(start)} to {clock(end)}"


def joined_problems(problems: Iterable[CaseProblem]) -> list[CaseProblem]:
    """Say once what was seen in several ways."""
    same: dict[tuple[str, str, str], CaseProblem] = {}
    for problem in problems:
        key = (problem.expected, problem.found, problem.why)
        known = same.get(key)
        same[key] = problem if known is None else known.model_copy(update={"others": (*known.others, problem.way)})
    return list(same.values())


@dataclass(frozen=True)
class FileRequest:
    """A detector, in any stage, to run on a file.

    Attributes:
        is_events: the lines are records of the events topic, not of the raw one.
        records: the source whose records its lines are, where flows make events of several.
    """

    detector: str
    file: Path
    most: int
    is_events: bool = False
    records: str = ""


class LeftOutRows(BaseModel):
    """Rows of a file that are no events for one reason.

    Attributes:
        rows: the numbers of the first of them, from 1 on; of lines, their line numbers.
    """

    reason: str
    count: int
    rows: list[int] = []


class FileReport(BaseModel):
    """What a detector finds in a file.

    Attributes:
        left_out: the others, the most frequent reason first; a row may have several reasons.
        days_left_out: days whose events were left out, since a table that is joined has no rows for them, and why.
        failed_in_step: events that a `step` raised on, which left them out.
    """

    detector: str
    version: str
    source: str
    rows: int = 0
    events: int = 0
    left_out: list[LeftOutRows] = []
    days_left_out: dict[date, str] = {}
    first: datetime | None = None
    last: datetime | None = None
    total: int = 0
    urgent: int = 0
    findings: list[Finding] = []
    failed_in_step: int = 0
    seconds: float = 0.0


CaseFindings = Mapping[str, CaseFinding]


def judge(case: Case, ways: Mapping[Way, CaseFindings]) -> list[CaseProblem]:
    """List what is wrong with the findings of `case`: each way by what it expects, and by the first way."""
    problems: list[CaseProblem] = []
    reference: CaseFindings | None = None
    for way, found in ways.items():
        problems += [CaseProblem(way=way, expected=wanted, found=other) for wanted, other in _unexpected(case, found)]
        if reference is None:
            first, reference = way, found
        else:
            problems += [problem.model_copy(update={"way": way}) for problem in _differences(first, reference, found)]
    return joined_problems(problems)


def expected_text(expected: ExpectedFinding) -> str:
    """Write an expectation for people."""
    start = expected.start
    parts = [expected.level, entity_text({name: str(value) for name, value in expected.entity.items()})]
    parts += [f"window at {clock(start)}"] if start is not None else []
    parts += [f"score {in_full(expected.score)}"] if expected.score is not None else []
    return "  ".join(parts)


def is_met(case: Case, found: CaseFindings) -> bool:
    """Return whether `found` is what `case` expects."""
    return not _unexpected(case, found)


def _unexpected(case: Case, found: CaseFindings) -> list[tuple[str, str]]:
    """Pair what `case` expects and is not there with what is there instead."""
    left = dict(found)
    missing: list[ExpectedFinding] = []
    # The most exact first, so that one that leaves the window open does not take the finding of another.
    for expected in sorted(case.expect, key=lambda expected: (expected.window is None) + (expected.score is None)):
        match = next((id_ for id_, finding in left.items() if _matches(expected, finding)), None)
        if match is None:
            missing.append(expected)
        else:
            del left[match]
    pairs: list[tuple[str, str]] = []
    for expected in missing:
        near = next((id_ for id_, finding in left.items() if _is_of(expected, finding)), None)
        pairs.append((expected_text(expected), str(left.pop(near)) if near is not None else ""))
    return pairs + [("", str(finding)) for finding in left.values()]


def _is_of(expected: ExpectedFinding, found: CaseFinding) -> bool:
    return found.entity == {name: _as_text(value) for name, value in expected.entity.items()}


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _matches(expected: ExpectedFinding, found: CaseFinding) -> bool:
    if not _is_of(expected, found) or expected.level != found.level:
        return False
    if expected.start is not None and expected.start != found.start:
        return False
    if expected.score is None:
        return True
    exact = found.model_copy(update={"score": expected.score, "at_least": False})
    return found.agrees(exact) or math.isclose(found.score, expected.score, rel_tol=_SAME)


def _differences(first: Way, reference: CaseFindings, found: CaseFindings) -> list[CaseProblem]:
    problems: list[CaseProblem] = []
    for id_ in sorted({*reference, *found}):
        here, there = found.get(id_), reference.get(id_)
        if here is not None and there is not None and here.agrees(there):
            continue
        expected = f"{there or f'nothing for {_which(here)}'} (as in {first})"
        problems.append(CaseProblem(way=first, expected=expected, found=str(here) if here else ""))
    return problems


def _which(found: CaseFinding | None) -> str:
    return "" if found is None else f"{entity_text(found.entity)} {window_text(found.start, found.end)}".strip()
