"""Run the cases of detectors in pytest, one test for each case, as `tocsin test` does.

::

    import pytest

    from tocsin.testing import DetectorCase, RunCase, detector_cases, run_case


    @pytest.mark.parametrize("case", detector_cases("failed_logins"), ids=str)
    def test_failed_logins(case: DetectorCase, run_case: RunCase) -> None:
        run_case(case)

The cases of a detector run together, when the first of them is asked for; all detectors in one Spark session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from tocsin.cases.case_report import DetectorOutcome, Way, case_lines
from tocsin.declare.catalog import read_catalog
from tocsin.declare.code.case_code import case_names
from tocsin.declare.code.python_syntax import parse
from tocsin.declare.settings import load_settings

__all__ = ["DetectorCase", "RunCase", "detector_cases", "run_case"]


@dataclass(frozen=True)
class DetectorCase:
    """A case of a detector.

    Attributes:
        name: of the case; empty for all whose names do not stand in the file: those made from the limits.
    """

    project: Path
    detector: str
    name: str

    def __str__(self) -> str:
        return f"{self.detector}: {self.name or 'at the limits'}"


RunCase: TypeAlias = Callable[[DetectorCase], None]


def detector_cases(*names: str, project: Path | None = None) -> list[DetectorCase]:
    """List the cases of detectors, all of the project in `project` if none is named.

    Raises:
        ConfigError: there is no such detector, or its file is broken.
    """
    folder = load_settings(project).project
    catalog = read_catalog(folder)
    found: list[DetectorCase] = []
    for name in names or sorted(catalog.detectors):
        written = case_names(parse(catalog.detector(name).path.read_text(encoding="utf-8")))
        found += [DetectorCase(folder, name, case) for case in [*written, ""] if written]
    return found


@pytest.fixture(scope="session")
def run_case() -> Iterator[RunCase]:
    """Run one case; fails with its timeline, its windows and the differences."""
    from tocsin.cases.spark.case_lab import open_lab  # noqa: PLC0415 - a run without cases needs no Spark

    known: dict[tuple[Path, str], DetectorOutcome] = {}

    def run(case: DetectorCase) -> None:
        key = (case.project, case.detector)
        if key not in known:
            (known[key],) = lab.run(load_settings(case.project), [case.detector], list(Way)).detectors
        outcome = known[key]
        if outcome.faults:
            pytest.fail("\n".join(outcome.faults), pytrace=False)
        written = {one.name for one in detector_cases(case.detector, project=case.project)}
        wrong = [one for one in outcome.failed if one.name == case.name or (not case.name and one.name not in written)]
        if wrong:
            pytest.fail("\n".join(text for one in wrong for text in case_lines(outcome.detector, one)), pytrace=False)

    with open_lab(shares=True) as lab:
        yield run
