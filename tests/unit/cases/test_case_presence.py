"""A detector that runs needs a case that fires and one that is silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rig.samples.cases import SPEC
from tocsin.cases.mutation import faults_of_cases, has_cases
from tocsin.declare.model.detector import Stage

FIRES, SILENT = "Case('a', events=x, expect=[email()])", "Case('b', events=x, expect=[])"


@pytest.mark.parametrize(
    ("cases", "lacks"),
    [
        (f"CASES = [{FIRES}, {SILENT}]", ""),
        (f"CASES = [{FIRES}]", "needs at least one that stays silent, expect=[];"),
        (f"CASES = [{SILENT}]", "needs at least one that fires, expect=[email(...)];"),
        ("", "needs at least one that fires, expect=[email(...)] and one that stays silent, expect=[];"),
    ],
)
def test_what_is_lacking_is_told(tmp_path: Path, cases: str, lacks: str) -> None:
    path = tmp_path / "d.py"
    path.write_text(cases)
    for stage in Stage:
        faults = [str(fault) for fault in faults_of_cases([replace(SPEC, path=path, stage=stage)])]
        assert len(faults) == (1 if lacks and stage.runs else 0)
        assert all(f"{path}: CASES: {lacks}" in fault for fault in faults)
    assert has_cases(replace(SPEC, path=path)) == bool(cases)
