"""Watch for conditions that people must hear of, and write each mail once: the same with Airflow and without.

Level-triggered: the incidents and whether their mails are written are in a file, and the name of a mail follows from
its incident, so a process that ends anywhere on the way loses no mail and writes none twice.
"""

from __future__ import annotations

import time
from dataclasses import replace

import structlog

from tocsin.model.job_report import SILENT_SECONDS
from tocsin.model.names import INDEXER, ingest_job
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.runtime import state_file
from tocsin.runtime.heartbeat import read_beat
from tocsin.supervision.incidents.conditions import Bounds, Facts, Incident, Memory, is_due, judge
from tocsin.supervision.incidents.incident_mail import notice_of
from tocsin.supervision.incidents.mail_outbox import Outbox, addressed
from tocsin.supervision.job_kinds import KINDS, broken_jobs
from tocsin.supervision.memory import memory_of, read_history
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
