"""Mutants: each is one change of the detector, none of its cases. And which cases a detector must have."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rig.samples.cases import SPEC
from tocsin.cases.mutation import faults_of_cases, has_cases, mutants_of
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.detector import Stage

ROOT = Path(__file__).parents[3]
FILE = '''"""Slow routes."""

from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email


@detector(source="requests", entity="route", window="10 seconds", levels=Levels(email=1.5, urgent=3),
          owner="a@example.com", runbook="r", stage="live")
def detect(events):
    slow = events.where(F.col("ms") > 100).filter("status < 500 AND route != '/x'")
    counted = slow.groupBy("window", "route").agg(
        F.count("*").alias("score"), F.max("event_time").alias("event_time_max")
    )
    return counted.where("score >= 0")  # either way


CASES = [Case("a > b", events=at("12:00:00"), expect=[email(route="/a")])]
'''


def test_the_changes_and_their_lines() -> None:
    assert [(one.line, one.change) for one in mutants_of(FILE)] == [
        (8, "email=0.5 instead of 1.5"),
        (8, "email=2.5 instead of 1.5"),
        (8, "urgent=2 instead of 3"),
        (8, "urgent=4 instead of 3"),
        (8, 'window="20 seconds" instead of "10 seconds"'),
        (11, "\"status <= 500 AND route != '/x'\" instead of \"status < 500 AND route != '/x'\""),
        (11, ">= instead of > in F.col('ms') > 100"),
        (11, "without .filter(\"status < 500 AND route != '/x'\")"),
        (11, "without .where(F.col('ms') > 100)"),
        (13, "1 if there is any instead of F.count('*')"),
        (15, "without .where('score >= 0')"),
    ]


def test_a_mutant_differs_by_its_change_alone(tmp_path: Path) -> None:
    plain = ast.unparse(ast.parse(FILE[: FILE.index("CASES")].replace("Case, Levels, at, detector, email",
                                                                       "Levels, detector")))  # fmt: skip
    for mutant in mutants_of(FILE):
        changed = [(old, new) for old, new in zip(plain.splitlines(), mutant.text.splitlines(), strict=True)
                   if old != new]  # fmt: skip
        assert len(changed) == 1, mutant.change


@pytest.mark.parametrize("path", sorted((ROOT / "detectors").glob("*.py")), ids=lambda path: path.stem)
def test_each_mutant_of_a_shipped_detector_is_a_detector(path: Path, tmp_path: Path) -> None:
    mutants = mutants_of(path.read_text())
    assert len(mutants) >= 4
    versions = set()
    for mutant in mutants:
        (tmp_path / path.name).write_text(mutant.text)
        versions.add(read_spec(tmp_path / path.name).version)
    assert len(versions) == len(mutants)
    assert read_spec(path).version not in versions


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
