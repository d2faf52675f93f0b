"""Compare what was found in each way with what a case expects, and the ways with one another. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tocsin.cases.case_language import Case, ExpectedFinding
from tocsin.cases.case_report import CaseFinding, CaseProblem, Way, clock, entity_text, joined_problems, window_text

_SAME = 1e-9
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
    parts += [f"score {expected.score:g}"] if expected.score is not None else []
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
