"""Begin and end `spark_jobs/backfill.py`: arguments, exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date

import structlog

from tocsin.backfill.backfill_ledger import held_by
from tocsin.backfill.spark.backfill_run import BackfillOutcome, backfill
from tocsin.model.names import backfill_job
from tocsin.project.settings import load_settings
from tocsin.runtime import logs, private, process_exit
from tocsin.runtime.process_exit import ExitCode
from tocsin.sparkjob.entry import code_of

log = structlog.get_logger()


def main(arguments: list[str] | None, *, doc: str) -> int:
    """Backfill what `arguments` name; returns the `ExitCode` of the worst day.

    The worst first: UNWRITABLE, FAILED, REFUSED, WARNED, OK; days of earlier tries of the run count as well. LOCKED
    means that other backfills work on each of the detectors.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("detectors", nargs="+", metavar="DETECTOR", help="of one source")
    parser.add_argument(
        "--day", action="append", type=date.fromisoformat, default=[], help="run it even if it is up to date"
    )
    parser.add_argument("--run-id", default="", help="put into each finding")
    given = parser.parse_args(arguments)
    logs.configure(backfill_job(given.detectors[0]))
    return process_exit.told(code_of(lambda: _run(given.detectors, given.day, given.run_id)))


def _run(detectors: Sequence[str], days: Sequence[date], run_id: str) -> int:
    settings = load_settings()
    private.protect(settings.state)
    outcome = backfill(settings, detectors, days, run_id)
    outcome.held |= held_by(settings, detectors, run_id)
    for (detector, day), why in outcome.blocked.items():
        log.info("day skipped", detector=detector, day=str(day), why=why)
    if not (outcome.published or outcome.held or outcome.failed):
        log.info("nothing to run")
    return exit_code(outcome, asked=bool(days))


def exit_code(outcome: BackfillOutcome, *, asked: bool) -> ExitCode:
    """Return the code of the worst day; days that were `asked` for and cannot be run are a failure."""
    if outcome.disk:
        return ExitCode.UNWRITABLE
    if outcome.failed or (asked and outcome.blocked):
        return ExitCode.FAILED
    if outcome.held:
        return ExitCode.REFUSED
    warned = any(one.severity == "warning" for one in outcome.published.values())
    return ExitCode.WARNED if warned else ExitCode.OK
