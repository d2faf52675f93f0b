"""Write for people what became of a case. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tocsin.cases.case_report import CaseOutcome


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
