"""Watch for conditions that people must hear of, and write each mail once: the same with Airflow and without.

Level-triggered: the incidents and whether their mails are written are in a file, and the name of a mail follows from
its incident, so a process that ends anywhere on the way loses no mail and writes none twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import structlog

from tocsin.alerts.notify.mail.compose import Notice
from tocsin.model.job_report import SILENT_SECONDS
from tocsin.model.names import DETECTOR, INDEXER, JobName, ingest_job
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.runtime import state_file
from tocsin.runtime.heartbeat import read_beat
from tocsin.supervision.incidents.conditions import Bounds, Facts, Incident, Memory, is_due, judge
from tocsin.supervision.incidents.mail_outbox import Outbox, addressed
from tocsin.supervision.job_kinds import KINDS, broken_jobs
from tocsin.supervision.job_states import Condition, memory_of, read_history
from tocsin.supervision.runners.runner import Runner

_LINES = 20
_WORDS = 400

log = structlog.get_logger()


class Watch:
    """Watches the jobs of one installation. One process at a time may: whoever supervises."""

    def __init__(self, settings: Settings, charge: str, runner: Runner) -> None:
        """Watch the jobs that the supervisor of `charge` keeps running through `runner`."""
        self._settings, self._runner = settings, runner
        self._history = memory_of(settings.state, charge)
        self._file = settings.state / "supervision" / "incidents.json"

    def look(self, catalog: Catalog) -> list[Incident]:
        """Look once, and write the mails that are due; returns the incidents of which people have been told.

        Raises:
            OSError: the state folder cannot be written; a later look writes what is due.
        """
        now, before = time.time(), state_file.read(self._file, Memory, Memory())
        declared = owners(catalog, self._settings.alerts.urgent_recipients)
        memory = judge(self._facts(catalog), before, self._bounds(catalog), now)
        memory = replace(memory, owners={**before.owners, **declared})
        if memory != before:
            # Before the mails: an incident that is forgotten would be another.
            state_file.write(self._file, Memory, memory)
        due = {key: one for key, one in memory.incidents.items() if is_due(one, now)}
        for one in due.values():
            self._write(one, memory.owners.get(one.job) or declared[INDEXER])
        if due:
            told = {key: replace(one, written=True) for key, one in due.items()}
            memory = replace(memory, incidents={**memory.incidents, **told})
            state_file.write(self._file, Memory, memory)
        return [one for one in memory.incidents.values() if one.written]

    def _write(self, one: Incident, to: str) -> None:
        log.warning("incident", of=one.job, condition=str(one.condition), reason=one.reason, to=to or "nobody")
        lines = [line[:_WORDS] for line in self._runner.logs(one.job, _LINES)]
        outbox, notice = Outbox(self._settings.state), notice_of(one, str(self._settings.log(one.job)), lines)
        for number, address in enumerate(filter(None, (part.strip() for part in to.split(",")))):
            name = f"{one.name}-{number}"
            outbox.put(name, addressed(notice, name, address, self._settings))

    def _facts(self, catalog: Catalog) -> Facts:
        pasts = read_history(self._history).jobs
        beats = {job: read_beat(self._settings.state, job) for job in pasts}
        fresh = {job: beat.report for job, beat in beats.items() if beat and beat.age_seconds <= SILENT_SECONDS}
        return Facts(pasts=pasts, broken=faults(catalog), reports=fresh)

    def _bounds(self, catalog: Catalog) -> Bounds:
        own = self._settings.conditions
        patience = {
            ingest_job(name): (source.silent_after or own.silent_after).total_seconds()
            for name, source in catalog.sources.items()
        }
        return Bounds(lag=own.lag.total_seconds(), late_share=own.late_share, patience=patience)


def owners(catalog: Catalog, on_call: tuple[str, ...]) -> dict[str, str]:
    """Return the addresses that are told of each job, separated by commas.

    Args:
        catalog: what is declared.
        on_call: addresses for jobs that are nobody's; the owners of all sources when there are none.
    """
    shared = ", ".join(on_call or sorted({source.owner for source in catalog.sources.values()}))
    found: dict[str, str] = {}
    for kind in KINDS.values():
        declared = {"": shared} if kind.declared is None else {n: s.owner for n, s in kind.declared(catalog).items()}
        found |= {kind.job(name): owner for name, owner in declared.items()}
    return found


def faults(catalog: Catalog) -> dict[str, str]:
    """Return the first fault of each file that cannot be read, by the job that it declares."""
    return {job: str(error.faults[0]) for job, error in broken_jobs(catalog).items()}


_RETRIED = "Retrying automatically."
_ADVICE = {
    Condition.CRASH_LOOP: _RETRIED,
    Condition.MISCONFIGURED: f"Mend what the log names. {_RETRIED}",
    Condition.LOCKED: f"Another process holds the checkpoint: look for a second installation. {_RETRIED}",
    Condition.NO_ROOM: f"Make room on the disk of the state folder. {_RETRIED}",
    Condition.HUNG: "The process was stopped and is being restarted.",
    Condition.BROKEN: "A running job keeps running, but is not restarted until the file is fixed.",
    Condition.LAGGING: "Findings and mails are delayed by as much. Nothing is lost while Kafka keeps the records.",
    Condition.LATE: "The stream does not count these events; a backfill of the day does. If senders deliver late, "
    "raise `lateness` in the source's file.",
    Condition.SILENT: "Detectors of this source cannot find anything. Check the senders. `silent_after` in the "
    "source's file sets how long is too long.",
    Condition.QUARANTINING: "The job continues with the usable records. The first command lists the others with "
    "their reasons; the second replays them once the sender or the declaration is fixed.",
}
_ONCE = "We will mail again only if this comes back after an hour without it."


def commands(one: Incident) -> list[str]:
    """List what to type."""
    job = JobName.parse(one.job)
    if one.condition is Condition.QUARANTINING:
        return [f"tocsin quarantine {what} --source {job.name}" for what in ("list", "replay --all")]
    if one.condition is Condition.BROKEN:
        return ["tocsin check"]
    return [*(["tocsin check --plan"] if job.kind == DETECTOR and one.condition is Condition.MISCONFIGURED else []),
            f"tocsin status {one.job}", f"tocsin dev logs {one.job}"]  # fmt: skip


def notice_of(one: Incident, log: str, lines: Sequence[str]) -> Notice:
    """Describe the incident; `lines` are the end of the job's log, which is the file `log`."""
    return Notice(
        subject=f"[tocsin] {one.job}: {one.condition}",
        paragraphs=(one.reason, f"{_ADVICE[one.condition]} {_ONCE}"),
        commands=commands(one),
        output=lines,
        output_of=f"The end of its log ({log})",
    )
