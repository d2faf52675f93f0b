"""Run detectors over whole days of history: compute, judge, publish; day by day, each independent of the others.

Neighbouring days are computed by one query, and several detectors of a source share a session: both cost less than a
start of Spark for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import structlog
from pyspark.sql import SparkSession

from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.names import backfill_job
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.detect.spark.plan import StreamOnly
from tocsin.history.backfill.backfill_ledger import Attempt, Backfills, End, Made, Published, counts, held_by
from tocsin.history.backfill.backfill_planning import Sealed, made_of, plan
from tocsin.history.backfill.backfill_status import declared, finding_rules, table_queries, without_table
from tocsin.history.backfill.spark.day_findings import ROWS_AT_ONCE, Days
from tocsin.history.day_status import kept_from, why_not
from tocsin.history.places import writing_history
from tocsin.history.seal_planning import chunks
from tocsin.history.verdict_index import write_index
from tocsin.job import Batch
from tocsin.platform.failures import in_a_line, is_disk
from tocsin.platform.lock import LockHeld, try_lead
from tocsin.platform.process_exit import ExitCode
from tocsin.platform.progress import report_progress
from tocsin.quality.judging import DAYS, FindingGate, FoundOn
from tocsin.spark.batch_session import running_batch

log = structlog.get_logger()


@dataclass
class BackfillOutcome:
    """The outcome of the days of one run, by detector and day.

    Attributes:
        held: of which nothing was published, and why: the verdict, or that the detector runs as a stream alone.
        blocked: that cannot be computed whole now, and what is missing.
        disk: whether one failed because the disk is full or cannot be written.
    """

    published: dict[tuple[str, date], Published] = field(default_factory=dict)
    held: dict[tuple[str, date], str] = field(default_factory=dict)
    failed: dict[tuple[str, date], str] = field(default_factory=dict)
    blocked: dict[tuple[str, date], str] = field(default_factory=dict)
    disk: bool = False


def backfill(settings: Settings, names: Sequence[str], days: Sequence[date] = (), run_id: str = "") -> BackfillOutcome:
    """Run the detectors `names` over `days`, needed or not; without any, over all days that need it.

    A (detector, day) that fails harms no other. A detector that another backfill works on is left to that.

    Raises:
        ConfigError: one is not declared, they read several sources, or a suite of the source has faults; a retry does
            not help.
        LockHeld: another backfill works on each of the detectors; a retry helps once it has ended.
        TransientError: the catalogue of history does not answer; a retry helps.
    """
    source, specs = declared(settings, names)
    gate = FindingGate(settings, source)
    with contextlib.ExitStack() as stack:
        locked = _lock(settings, specs, stack)
        work = _Work(settings, source, gate, run_id or f"backfill-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
        due = {spec.name: work.due(spec, days) for spec in locked}
        if any(due.values()):
            with running_batch(settings, backfill_job(locked[0].name)) as spark:
                for spec in locked:
                    work.run_all(spark, spec, due[spec.name], requested=bool(days))
        if not work.outcome.disk:
            work.tidy(locked)
    return work.outcome


def backfill_chosen(settings: Settings, chosen: Iterable[tuple[str, date]]) -> Iterator[BackfillOutcome]:
    """Run each detector's chosen days; detectors with the same days share a session.

    TransientError if the disk is full or cannot be written; what is published is whole. And errors as for `backfill`.
    """
    days_of: dict[str, list[date]] = {}
    for name, day in chosen:
        days_of.setdefault(name, []).append(day)
    names_of: dict[tuple[date, ...], list[str]] = {}
    for name, days in days_of.items():
        names_of.setdefault(tuple(days), []).append(name)
    for same_days, names in names_of.items():
        with writing_history(settings):
            outcome = backfill(settings, names, same_days)
        yield outcome


def _lock(settings: Settings, specs: list[DetectorSpec], stack: contextlib.ExitStack) -> list[DetectorSpec]:
    """Take the locks of `specs` that are free, until `stack` is closed."""
    locked, refused = [], []
    for spec in specs:
        try:
            lock = try_lead(settings, settings.checkpoint(backfill_job(spec.name)) / "lock")
        except LockHeld as error:
            log.warning("detector skipped, another backfill runs it", detector=spec.name, error=str(error))
            refused.append(error)
            continue
        stack.enter_context(lock)
        locked.append(spec)
    if not locked:
        raise refused[0]
    return locked


class _Work:
    def __init__(self, settings: Settings, source: Source, gate: FindingGate, run_id: str) -> None:
        self._settings, self._source, self._gate, self._run_id = settings, source, gate, run_id
        self._days = Days(settings, source)
        self._kept_from = kept_from(settings, source)
        self.rows = self._days.rows
        self._sealed = Sealed(
            versions=self._days.versions,
            rows=self.rows,
            why_not=why_not(settings, source),
            no_table=without_table(settings),
            tables=table_queries(settings),
            rules=finding_rules(settings, source.name),
        )
        self.outcome = BackfillOutcome()

    def due(self, spec: DetectorSpec, days: Sequence[date]) -> list[date]:
        """Choose the days to run: those asked for as far as they can be computed, else all that need it."""
        looked_at = days or list(self._sealed.versions)
        planned = plan(Backfills(self._settings, spec.name).read(), spec, self._sealed, looked_at)
        for day, why in planned.blocked.items():
            self.outcome.blocked[spec.name, day] = why
        return [day for day in sorted(days) if day not in planned.blocked] if days else list(planned.days)

    def run_all(self, spark: SparkSession, spec: DetectorSpec, days: Sequence[date], *, requested: bool) -> None:
        """Run `days` of `spec`, as many by one query as may be; none where its query is one for a stream alone."""
        try:
            for chunk in chunks(days, self.rows, ROWS_AT_ONCE, neighbours=True):
                self.run(spark, spec, chunk)
        except StreamOnly as error:
            self._refuse(spec, days, error, requested=requested)

    def run(self, spark: SparkSession, spec: DetectorSpec, days: tuple[date, ...]) -> None:
        """Compute `days` of `spec` by one query and publish each; where that fails, each by a query of its own."""
        report_progress(f"days of {spec.name} computed", 0, len(days))
        log.info("backfill started", detector=spec.name, version=spec.version, days=[str(day) for day in days])
        try:
            found = self._days.findings(spark, spec, days, self._run_id)
        except StreamOnly:
            raise
        except Exception as error:
            if len(days) > 1 and not is_disk(error):
                log.warning("retrying day by day", detector=spec.name, error=in_a_line(error))
                for day in days:
                    self.run(spark, spec, (day,))
                return
            for day in days:
                self._fail(spec, day, error)
            return
        total = sum(self.rows[day] for day in days) or 1
        for number, day in enumerate(days):
            report_progress(f"days of {spec.name} published", number, len(days))
            try:
                self._publish(spec, day, found.by_day[day], found.cpu_seconds * self.rows[day] / total)
            except Exception as error:
                self._fail(spec, day, error)
        with contextlib.suppress(OSError, TransientError):  # the next run writes it
            write_index(self._settings)

    def tidy(self, specs: Iterable[DetectorSpec]) -> None:
        """Remove what lies further back than history is kept; what cannot be removed now is, the next time."""
        for spec in specs:
            with contextlib.suppress(OSError):
                Backfills(self._settings, spec.name).forget(self._kept_from)

    # --- one day ------------------------------------------------------------------------------------------------------

    def _publish(self, spec: DetectorSpec, day: date, found: list[Finding], cpu_seconds: float) -> None:
        backfills, made = Backfills(self._settings, spec.name), self._made(spec, day)
        run = backfills.next_run(day)
        known = backfills.read().published
        before = counts(known, [day - timedelta(days=back) for back in range(DAYS, 0, -1)])
        verdict = self._gate.judge(FoundOn(spec.name, day, run, found, before))
        report = None if verdict.report is None else str(verdict.report)
        now = datetime.now(UTC)
        if not verdict.publishable:
            attempt = self._held(verdict.text, made, self._run_id, report)
            backfills.note(day, attempt)
            self.outcome.held[spec.name, day] = verdict.text
            log.error("day held", detector=spec.name, day=str(day), verdict=verdict.text)
            return
        published = Published(
            run=run,
            run_id=self._run_id,
            made=made,
            at=now,
            severity=verdict.severity.value,
            report=report,
            rows=self.rows[day],
            cpu_seconds=round(cpu_seconds, 3),
        )
        self.outcome.published[spec.name, day] = backfills.publish(day, found, published)
        log.info("day published", detector=spec.name, day=str(day), findings=len(found), verdict=verdict.severity.value)

    def _made(self, spec: DetectorSpec, day: date) -> Made:
        made = made_of(day, spec, self._sealed)
        assert made is not None, "only days whose inputs are published are run"
        return made

    def _held(self, why: str, made: Made, run_id: str, report: str | None = None) -> Attempt:
        now, rules = datetime.now(UTC), self._sealed.rules
        return Attempt(end=End.HELD, why=why, run_id=run_id, made=made, at=now, report=report, rules=rules)

    def _refuse(self, spec: DetectorSpec, days: Sequence[date], error: StreamOnly, *, requested: bool) -> None:
        """Note that `days` are held, and report it: each time if they were `requested`, else once for a version."""
        backfills, why = Backfills(self._settings, spec.name), str(error)
        log.error("detector does not run on history", detector=spec.name, days=len(days), error=why)
        known = [one for one in backfills.read().attempts.values() if one.why == why]
        before = next((one for one in known if one.made is not None and one.made.version == spec.version), None)
        reported = None if requested else before
        for day in days:
            if reported is None:
                self.outcome.held[spec.name, day] = why
            # With the run that reported it, whose mail named this version.
            run_id = self._run_id if reported is None else reported.run_id
            attempt = self._held(why, self._made(spec, day), run_id)
            with contextlib.suppress(OSError):  # a full disk must not keep the other detectors from their turn
                backfills.note(day, attempt)

    def _fail(self, spec: DetectorSpec, day: date, error: Exception) -> None:
        why = in_a_line(error)
        self.outcome.failed[spec.name, day] = why
        self.outcome.disk |= is_disk(error)
        log.error("day failed", detector=spec.name, day=str(day), error=why)
        attempt = Attempt(
            end=End.FAILED, why=why, run_id=self._run_id, made=self._made(spec, day), at=datetime.now(UTC)
        )
        with contextlib.suppress(OSError):  # a full disk cannot be noted either
            Backfills(self._settings, spec.name).note(day, attempt)


def run(batch: Batch) -> int:
    """Backfill the detectors of `batch`; returns the `ExitCode` of the worst day.

    The worst first: UNWRITABLE, FAILED, REFUSED, WARNED, OK; days of earlier tries of the run count as well. LOCKED
    means that other backfills work on each of the detectors.
    """
    outcome = backfill(batch.settings, batch.names, batch.days, batch.run_id)
    outcome.held |= held_by(batch.settings, batch.names, batch.run_id)
    for (detector, day), why in outcome.blocked.items():
        log.info("day skipped", detector=detector, day=str(day), why=why)
    if not (outcome.published or outcome.held or outcome.failed):
        log.info("nothing to run")
    return exit_code(outcome, requested=bool(batch.days))


def exit_code(outcome: BackfillOutcome, *, requested: bool) -> ExitCode:
    """Return the code of the worst day; days that were `requested` for and cannot be run are a failure."""
    if outcome.disk:
        return ExitCode.UNWRITABLE
    if outcome.failed or (requested and outcome.blocked):
        return ExitCode.FAILED
    if outcome.held:
        return ExitCode.REFUSED
    warned = any(one.severity == "warning" for one in outcome.published.values())
    return ExitCode.WARNED if warned else ExitCode.OK
