"""A `step` that looks rows of a table up: those of the time of each event, in all ways of running it alike."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tocsin.cases.case_report import Way
from tocsin.cases.spark.case_run import CaseRun
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError

SOURCE = """title = "Purchases"
owner = "a@example.com"
format = "json"
key = "customer"
event_time = "at"
[schema]
customer = "string"
at = "timestamp"
amount = "double"
"""
TABLE = """title = "Segments"
owner = "a@example.com"
topic = "segments"
key = "customer"
[schema]
customer = "string"
{column} = "string"
"""
DETECTOR = '''"""Purchases in a row that together exceed what is allowed in the segment.

Catches: it. Misses: others. When it fires, look first at: it.
"""

from dataclasses import dataclass

from tocsin import Case, Event, Levels, StepFinding, at, detector, email


@dataclass(frozen=True)
class Spent:
    total: float = 0.0


@detector(source="purchases", tables=["segments"], entity="customer", window=None, forget_after="1 hour",
          levels=Levels(email=1), owner="a@example.com", runbook="docs/r.md", stage="live")
def step(key: str, state: Spent, event: Event) -> tuple[Spent, list[StepFinding]]:
    if event.segment is None:
        return state, []
    total = state.total + event.amount
    allowed = {"student": 10.0, "family": 100.0}[event.segment]
    return Spent(total), [StepFinding(total / allowed, {"since": str(event.segments_since)})]


ROWS = at("11:00:00", customer="ann", segment="student").then(at("12:05:00", customer="ann", segment="family"))
SPENDS = at("12:04:00", customer="ann", amount=11.0)
CASES = [
    Case("a student", events=SPENDS, expect=[email(customer="ann", window="12:04:00", score=1.1)],
         tables={"segments": ROWS}),
    Case("a family, a minute later", events=SPENDS.then(at("12:05:00", customer="ann", amount=11.0)).then(
         at("12:06:00", customer="ann", amount=79.0)),
         expect=[email(customer="ann", window="12:04:00", score=1.1),
                 email(customer="ann", window="12:06:00", score=1.01)], tables={"segments": ROWS}),
    Case("of no segment", events=at("12:00:00", customer="bob", amount=999.0), expect=[], tables={"segments": ROWS}),
]
'''


def project(folder: Path, column: str = "segment") -> Path:
    files = {"sources/purchases.toml": SOURCE, "tables/segments.toml": TABLE.format(column=column),
             "detectors/spent.py": DETECTOR}  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.usefixtures("quick_batches")
def test_stream_and_history_find_the_row_of_the_time_of_each_event(spark: SparkSession, tmp_path: Path) -> None:
    run = CaseRun(spark, read_catalog(project(tmp_path / "project")), "spent", tmp_path / "run")
    outcome = run.run([Way.BATCH, Way.SHUFFLED, Way.RESTARTED], lambda: pytest.fail("it has no real-time mode"))
    assert outcome.faults == []
    assert [(case.name, problem) for case in outcome.cases for problem in case.problems] == []


def test_a_column_that_event_and_table_both_have_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    catalog = read_catalog(project(tmp_path / "project", column="amount"))
    with pytest.raises(ConfigError, match="the events have a column 'amount' already"):
        CaseRun(spark, catalog, "spent", tmp_path / "run")
