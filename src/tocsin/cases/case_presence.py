"""Find the detectors that lack cases, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tocsin.declare.code.case_code import CASES, case_kinds
from tocsin.declare.code.python_syntax import parse
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import Fault


def has_cases(spec: DetectorSpec) -> bool:
    """Return whether the file of `spec` has a case."""
    return any(case_kinds(_tree(spec)))


def faults_of_cases(specs: Iterable[DetectorSpec]) -> list[Fault]:
    """List the detectors of one source in stage shadow or live without a case that fires, or without a silent one."""
    faults: list[Fault] = []
    for spec in specs:
        if not (spec.stage.runs and spec.has_one_source):  # cases are timelines of one source
            continue
        fires, is_silent = case_kinds(_tree(spec))
        lacks = [] if fires else ["one that fires, expect=[email(...)]"]
        lacks += [] if is_silent else ["one that stays silent, expect=[]"]
        if lacks:
            what = f"needs at least {' and '.join(lacks)}; docs/write/testing.md shows how"
            faults.append(Fault(str(spec.path), what, key=CASES))
    return faults


def _tree(spec: DetectorSpec) -> ast.Module:
    return parse(spec.path.read_text(encoding="utf-8"))
