"""Run the cases of a detector on its mutants: each must fail one."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tocsin.cases.case_report import MutantOutcome
from tocsin.cases.case_verdicts import is_met
from tocsin.cases.mutation import mutants_of
from tocsin.cases.spark.case_query import CaseQuery
from tocsin.cases.spark.case_run import CaseRun
from tocsin.model.errors import ConfigError
from tocsin.project.catalog import Catalog
from tocsin.project.declaration import read_spec


def run_mutants(spark: SparkSession, catalog: Catalog, run: CaseRun, folder: Path) -> list[MutantOutcome]:
    """Run the cases of `run`, the generated ones too, as a batch on each mutant; `folder` is for its file."""
    spec = run.query.spec
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / spec.path.name
    outcomes: list[MutantOutcome] = []
    for mutant in mutants_of(spec.path.read_text(encoding="utf-8")):
        path.write_text(mutant.text, encoding="utf-8")
        outcome = MutantOutcome(line=mutant.line, change=mutant.change)
        outcome.killed_by = _killer(spark, catalog, run, path)
        outcomes.append(outcome)
    return outcomes


def _killer(spark: SparkSession, catalog: Catalog, run: CaseRun, path: Path) -> str:
    """Name the first case that fails with the file `path`, or say why it cannot run; "" if it passes all."""
    try:
        query = CaseQuery(spark, read_spec(path), catalog)
        found = run.batch(run.cases, query)
    except ConfigError as error:
        return f"it is refused: {error.faults[0].what}"
    except Exception as error:  # a mutant that raises is noticed
        return f"it raises {type(error).__name__}"
    return next((one.case.name for one, by_id in zip(run.cases, found, strict=True) if not is_met(one.case, by_id)), "")
