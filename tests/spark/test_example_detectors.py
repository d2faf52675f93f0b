"""The detectors in examples/: their cases hold, each mutant is noticed, and their tables are those of a recount."""

import json
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import pytest
from pyspark.sql import SparkSession

from tests.spark.raw_records import ROOT
from tocsin.cases.case_report import DetectorOutcome, Way
from tocsin.cases.mutation import has_cases
from tocsin.cases.spark.case_lab import run_mutants
from tocsin.cases.spark.case_run import CaseRun
from tocsin.cases.spark.stream_ways import RealTimeWay
from tocsin.declare.catalog import read_catalog
from tocsin.ingest.flows.spark.flow_plan import apply_flow
from tocsin.spark.declared_function import DeclaredFunction

EXAMPLES = {project.name: read_catalog(project) for project in sorted((ROOT / "examples").iterdir())}
DETECTORS = [
    (example, name)
    for example, catalog in EXAMPLES.items()
    for name, spec in catalog.detectors.items()
    if has_cases(spec)
]
STREAMS = [way for way in Way if way is not Way.REAL_TIME]  # tests/e2e has that one
CALLS = random.Random(20261125)


def no_broker() -> RealTimeWay:
    raise AssertionError("no way needs it")


def made(spark: SparkSession, example: str, name: str, folder: Path) -> CaseRun:
    return CaseRun(spark, EXAMPLES[example], name, folder / "run")


def problems(outcome: DetectorOutcome) -> list[object]:
    assert outcome.faults == []
    return [(case.name, one) for case in outcome.cases for one in case.problems]


@pytest.mark.parametrize(("example", "name"), DETECTORS)
def test_the_cases_hold(spark: SparkSession, tmp_path: Path, example: str, name: str) -> None:
    assert problems(made(spark, example, name, tmp_path).run([Way.BATCH], no_broker)) == []


@pytest.mark.long
@pytest.mark.parametrize(("example", "name"), DETECTORS)
def test_all_ways_agree_and_each_mutant_is_noticed(
    spark: SparkSession, tmp_path: Path, example: str, name: str
) -> None:
    run = made(spark, example, name, tmp_path)
    assert problems(run.run(STREAMS, no_broker)) == []
    mutants = run_mutants(spark, EXAMPLES[example], run, tmp_path / "mutants")
    assert mutants
    assert [(one.line, one.change) for one in mutants if not one.killed_by] == []


def test_the_usual_share_of_errors(spark: SparkSession) -> None:
    begin, calls = datetime(2026, 1, 1, tzinfo=UTC), []
    for day in range(5):
        for hour, path, count in ((9, "/cart", 40), (10, "/cart", 30), (9, "/new", 25 * (day > 2)), (9, "/rare", 19)):
            share = CALLS.random()
            for second in range(count):
                status = CALLS.choice((500, 503, None)) if CALLS.random() < share else CALLS.choice((200, 404, None))
                kind = "error" if status is None and CALLS.random() < 0.5 else "info"
                calls.append((path, begin + timedelta(days=day, hours=hour, seconds=second), kind, status))
    spark.createDataFrame(calls, "path string, event_time timestamp, at string, status int").createOrReplaceTempView(
        "events"
    )
    hours = defaultdict(list)
    for path, at, kind, status in calls:
        hours[path, at.hour, at.day].append(kind == "error" or (status or 0) >= 500)
    shares = defaultdict(list)
    for (path, hour, _), errors in hours.items():
        if len(errors) >= 20:
            shares[path, hour].append(sum(errors) / len(errors))
    found = spark.sql(str(EXAMPLES["slow_routes"].table("usual_errors").sql)).collect()
    expected = {place: median(days) for place, days in shares.items() if len(days) >= 3}
    assert {(row.path, row.hour): row.usual for row in found} == pytest.approx(expected)
    assert set(expected) == {("/cart", 9), ("/cart", 10)}


def test_templates_leave_out_what_has_digits(spark: SparkSession) -> None:
    lines = {
        "could not charge card 4711 of c17: timeout of 3 s": "could not charge card <*> of <*>: timeout of <*> s",
        "GET /items/4711?page=2 from 10.0.0.1:80, id=7f3c-00": "GET <*>?page=<*> from <*>, id=<*>",
        "no digits, here: (none)": "no digits, here: (none)",
        "x" * 300: "x" * 200,
        "Ελλάδα 1": "Ελλάδα <*>",
        "": "",
    }
    catalog = EXAMPLES["log_surges"]
    events = spark.createDataFrame([(json.dumps({"line": line}),) for line in lines], "value string")
    spec = catalog.flow("templates")
    flow = DeclaredFunction(spec.path, "flow")
    rows = apply_flow(flow, spec, catalog.sources_of(spec), lambda _: events).select("line", "template").collect()
    assert {row.line: row.template for row in rows} == lines
