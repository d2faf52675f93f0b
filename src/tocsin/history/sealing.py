"""Land the new events of a source and seal the days that need it, or the given ones, in one Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from typing import Any

import structlog

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.model.names import sealing_job
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.day_status import known
from tocsin.history.day_table import DayTable
from tocsin.history.history_retention import tidy
from tocsin.history.landing_ledger import LandingLedger
from tocsin.history.seal_planning import overdue, plan
from tocsin.history.spark.landing import land_new
from tocsin.history.spark.seal import SealedDay, Sealer
from tocsin.history.verdict_index import write_index
from tocsin.job import Batch
from tocsin.platform.failures import in_a_line, is_disk
from tocsin.platform.lock import try_lead
from tocsin.platform.process_exit import ExitCode
from tocsin.platform.progress import report_progress
from tocsin.quality.spark.day_gate import DayGate
from tocsin.quality.verdict import Severity
from tocsin.spark.batch_session import running_batch

Afterwards = Callable[[Settings, Source], None]
"""Called once the days are sealed, unless the disk is full."""

log = structlog.get_logger()


@dataclass
class SealingOutcome:
    """The outcome of the days of one run.

    Attributes:
        sealed: in the order in which they were sealed.
        disk: whether one failed because the disk is full or cannot be written.
        refused_before: days that an earlier try of the same run has sealed and the gate has refused.
        unread: why the new events in Kafka could not be read; empty if they were.
    """

    sealed: list[SealedDay] = field(default_factory=list)
    failed: dict[date, str] = field(default_factory=dict)
    waiting: dict[date, str] = field(default_factory=dict)
    disk: bool = False
    refused_before: tuple[date, ...] = ()
    unread: str = ""

    @property
    def code(self) -> ExitCode:
        """The code of the worst day."""
        if self.failed or self.unread:
            return ExitCode.UNWRITABLE if self.disk else ExitCode.FAILED
        verdicts = {one.verdict.severity for one in self.sealed}
        if self.refused_before or Severity.CRITICAL in verdicts:
            return ExitCode.REFUSED
        return ExitCode.WARNED if Severity.WARNING in verdicts else ExitCode.OK


def seal(
    settings: Settings, source: Source, days: Iterable[date] = (), run_id: str = "", *, reads: bool = True
) -> SealingOutcome:
    """Land what is new in Kafka, then seal `days`, ready or not; without any, all that need it. Tidies up behind.

    If `reads` is false, or Kafka cannot be reached, it seals what has landed before. A day that fails harms no other.
    With a `run_id`, what an earlier try of that run was refused counts too, for it is not sealed again, and a day that
    ended since the last night and waits has failed.

    Raises:
        LockHeld: another seal of this source, or an import, runs; a retry helps once it has ended.
        ConfigError: the source or the gate's suites must be fixed first.
        TransientError: the catalogue does not answer; a retry helps.
        BrokenLedger: an entry of the ledger cannot be read.
    """
    job, outcome = sealing_job(source.name), SealingOutcome()
    with (
        try_lead(settings, settings.checkpoint(job) / "lock"),
        DayTable(settings, source) as table,
        ExitStack() as stack,
    ):
        session = cache(lambda: stack.enter_context(running_batch(settings, job)))
        table.check()
        gate = DayGate(settings, source)
        if reads:
            outcome.unread = _land_new(settings, source, session)
        facts = known(settings, source, table)
        planned = plan(facts)
        wanted = tuple(sorted(set(days))) or planned.ready
        outcome.waiting = {day: why for day, why in planned.waiting.items() if day not in wanted}
        if run_id:
            _fail(table, overdue(facts, planned), run_id, outcome)
        if wanted:
            _seal_days(Sealer(session(), settings, source, table, gate, run_id), wanted, facts.ledger, outcome)
        if run_id:
            outcome.refused_before = _refused_before(table, run_id, outcome)
        if not outcome.disk:
            tidy(settings, source, table)
    return outcome


def _refused_before(table: DayTable, run_id: str, outcome: SealingOutcome) -> tuple[date, ...]:
    done = {sealed.day for sealed in outcome.sealed} | outcome.failed.keys()
    refused = table.rows.refused().items()
    return tuple(day for day, version in refused if version.run_id == run_id and day not in done)


def _fail(table: DayTable, late: Mapping[date, str], run_id: str, outcome: SealingOutcome) -> None:
    """Let days that should be ready fail: a retry comes in minutes, and the mail names them. Later nights only wait."""
    for day in sorted(late.keys() & outcome.waiting.keys()):
        outcome.failed[day] = late[day]
        table.rows.note(day, late[day], run_id)


def run(batch: Batch, afterwards: Afterwards) -> int:
    """Seal the days of `batch`; returns the `ExitCode` of the worst day.

    The worst first: UNWRITABLE, FAILED, REFUSED, WARNED, OK; days of earlier tries of the run count as well. LOCKED
    means that another seal of this source runs.
    """
    source = read_catalog(batch.settings.project).source(batch.name)
    outcome = seal(batch.settings, source, batch.days, batch.run_id)
    if not outcome.disk:
        afterwards(batch.settings, source)
    for day, why in outcome.waiting.items():
        log.info("seal deferred", source=source.name, day=str(day), why=why)
    for day in outcome.refused_before:
        log.error("day refused by an earlier try of this run", source=source.name, day=str(day))
    if not outcome.sealed and not outcome.failed:
        log.info("nothing to seal", source=source.name)
    return outcome.code


def _land_new(settings: Settings, source: Source, session: Callable[[], Any]) -> str:
    """Land the new events in Kafka; returns why that was not possible, or ""."""
    try:
        land_new(settings, source, session)
    except TransientError as error:
        log.error("new events not read", source=source.name, error=str(error))
        return str(error)
    return ""


def _seal_days(sealer: Sealer, days: Sequence[date], ledger: LandingLedger, outcome: SealingOutcome) -> None:
    for chunk in sealer.chunks(days, ledger):
        report_progress("days sealed", len(outcome.sealed) + len(outcome.failed), len(days))
        done = sealer.seal_all(chunk, ledger)
        for day in chunk:
            _add(outcome, day, done[day])
        _record(sealer, outcome, chunk)


def _add(outcome: SealingOutcome, day: date, done: SealedDay | Exception) -> None:
    if isinstance(done, SealedDay):
        outcome.sealed.append(done)
        return
    is_known = isinstance(done, TocsinError | OSError)
    outcome.failed[day] = str(done) if is_known else in_a_line(done)
    outcome.disk |= is_disk(done)
    log.error("seal failed", day=str(day), error=outcome.failed[day], exc_info=None if is_known else done)


def _record(sealer: Sealer, outcome: SealingOutcome, days: Sequence[date]) -> None:
    """Record why `days` could not be sealed, until they are, and all verdicts, where people look."""
    try:
        for day in days:
            sealer.table.rows.note(day, outcome.failed.get(day), sealer.run_id)
        write_index(sealer.settings)
    except (OSError, TransientError) as error:
        log.warning("outcome of days not recorded", days=[str(day) for day in days], error=str(error))
