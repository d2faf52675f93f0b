"""Watch for conditions that people must hear of, and write each mail once: the same with Airflow and without.

Level-triggered: the incidents and whether their mails are written are in a file, and the name of a mail follows from
its incident, so a process that ends anywhere on the way loses no mail and writes none twice.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import structlog

from tocsin.alerts.links import Links
from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import operators, post, put
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.durations import days_text
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.job_report import SILENT_SECONDS
from tocsin.declare.model.names import DETECTOR, FLOW, INDEXER, INGEST, JobName, detector_job
from tocsin.declare.settings import Settings
from tocsin.history.day_rows import DayRows
from tocsin.history.day_versions import DayVersion
from tocsin.platform import state_file
from tocsin.platform.heartbeat import read_beat
from tocsin.quality.verdict import judge_or_accept
from tocsin.supervise.incidents.conditions import CALM_SECONDS, Bounds, Facts, Incident, Memory, is_due, judge
from tocsin.supervise.job_kinds import broken_jobs, declared, known_jobs
from tocsin.supervise.job_states import Condition, memory_of, read_history
from tocsin.supervise.runners.log_files import READ_LINES, excerpt
from tocsin.supervise.runners.runner import Runner

_DAYS_SECONDS = 60.0
"""Days are looked at so often: the rows of a catalogue on a server are read over the network."""
_SEALED_WITHIN = timedelta(hours=12)
"""After its end a day is sealed: the nightly run comes after two hours, is tried again, and may take six."""

log = structlog.get_logger()


class Watch:
    """Watches the jobs of one installation. One process at a time may: whoever supervises."""

    def __init__(self, settings: Settings, group: str, runner: Runner) -> None:
        self._settings, self._runner = settings, runner
        self._history = memory_of(settings.state, group)
        self._file = settings.state / "supervision" / "incidents.json"
        self._days_due, self._days_behind = float("-inf"), dict[str, str]()

    def look(self, catalog: Catalog, *, days: bool = True) -> list[Incident]:
        """Look once, and write the mails that are due; returns the incidents about which mails were written.

        `days` is False where the runs of history mail about the days that a gate refuses. Raises OSError if the state
        folder cannot be written; a later look then writes what is due.
        """
        now, before = time.time(), state_file.read(self._file, Memory, Memory())
        declared = owners(catalog, self._settings)
        memory = judge(self._facts(catalog), before, self._bounds(catalog), now)
        memory = replace(memory, owners={**before.owners, **declared})
        if memory != before:
            # Before the mails: an incident that is forgotten would be another.
            state_file.write(self._file, Memory, memory)
        due = {key: incident for key, incident in memory.incidents.items() if is_due(incident, now)}
        owned = {key: memory.owners.get(one.job) or declared[INDEXER] for key, one in memory.incidents.items()}
        people = {key: [to for to in map(str.strip, found.split(",")) if to] for key, found in owned.items()}
        known = memory.incidents.items()
        # Of a cause that jobs share each person hears once.
        heard = {(one.cause, to) for key, one in known if one.written and one.cause for to in people[key]}
        groups: dict[str, list[str]] = {}
        for key, incident in due.items():
            if not incident.cause or any((incident.cause, to) not in heard for to in people[key]):
                groups.setdefault(incident.cause or key, []).append(key)
        for keys in groups.values():
            new = dict.fromkeys(to for key in keys for to in people[key] if (due[key].cause, to) not in heard)
            self._write([due[key] for key in keys], list(new), catalog)
        if due:
            written = {key: replace(incident, written=True) for key, incident in due.items()}
            memory = replace(memory, incidents={**memory.incidents, **written})
            state_file.write(self._file, Memory, memory)
        if days:
            self._write_refused(catalog, memory)
        return [incident for incident in memory.incidents.values() if incident.written]

    def _write_refused(self, catalog: Catalog, memory: Memory) -> None:
        try:
            known = {name: DayRows(self._settings, name).refused() for name in catalog.sources}
        except (TocsinError, OSError) as error:
            log.warning("refused days not read", error=str(error))
            return
        refused = {name: tuple(days) for name, days in known.items() if days}
        for name, own in refused.items():
            if new := {day: known[name][day] for day in own if day not in memory.refused.get(name, ())}:
                mail = f"refused__{name}__{max(refusal.version for refusal in new.values())}"
                put(refused_notice(name, new), mail, [catalog.sources[name].owner], self._settings)
        # Of a source whose file cannot be read now, what was written before still counts.
        refused |= {name: days for name, days in memory.refused.items() if name not in known}
        if refused != memory.refused:
            state_file.write(self._file, Memory, replace(memory, refused=refused))

    def _write(self, incidents: Sequence[Incident], to: Sequence[str], catalog: Catalog) -> None:
        for incident in incidents:
            about = {"of": incident.job, "condition": str(incident.condition), "reason": incident.reason}
            log.warning("incident", to=", ".join(to) or "nobody", **about)
        incident = incidents[0]
        lines = excerpt(self._runner.logs(incident.job, READ_LINES))
        notice = notice_of(incident, str(self._settings.log(incident.job)), lines, source_of(incident.job, catalog))
        if len(incidents) > 1:
            notice = _shared(notice, incidents)
        notice = replace(notice, links=[("The job and its log", Links(self._settings).job(incident.job))])
        put(notice, incident.name, to, self._settings)

    def _facts(self, catalog: Catalog) -> Facts:
        pasts = read_history(self._history).jobs
        beats = {job: read_beat(self._settings.state, job) for job in pasts}
        fresh = {job: beat.report for job, beat in beats.items() if beat and beat.age_seconds <= SILENT_SECONDS}
        feeders = {
            detector_job(name): [feeder.job for source in spec.sources for feeder in catalog.upstream(source)]
            for name, spec in catalog.detectors.items()
        }
        behind = self._behind(catalog, datetime.now(UTC))
        return Facts(pasts=pasts, broken=faults(catalog), reports=fresh, feeders=feeders, behind=behind)

    def _behind(self, catalog: Catalog, now: datetime) -> Mapping[str, str]:
        """By the feeder of a source, which day should have been sealed; none of a source that never was, or away."""
        if time.monotonic() < self._days_due:
            return self._days_behind
        self._days_due, expected = time.monotonic() + _DAYS_SECONDS, (now - _SEALED_WITHIN).date() - timedelta(days=1)
        self._days_behind = {}
        for name in catalog.sources:
            try:
                newest = DayRows(self._settings, name).newest()
            except (TocsinError, OSError) as error:
                log.warning("days of history not read", source=name, error=str(error))
                continue
            if newest is not None and newest < expected:
                lack = f"its history ends with {newest}; {expected} should have been sealed"
                self._days_behind |= {feeder.job: lack for feeder in catalog.upstream(name)[:1]}
        return self._days_behind

    def _bounds(self, catalog: Catalog) -> Bounds:
        own = self._settings.conditions
        patience = {
            feeder.job: (source.silent_after or own.silent_after).total_seconds()
            for name, source in catalog.sources.items()
            for feeder in catalog.upstream(name)[:1]
        }
        return Bounds(lag=own.lag.total_seconds(), patience=patience)


def owners(catalog: Catalog, settings: Settings) -> dict[str, str]:
    """Return the recipients of mails about each job, separated by commas; `operators` of those that are nobody's."""
    shared = ", ".join(operators(catalog, settings))
    found: dict[str, str] = {}
    for kind, names in known_jobs(catalog, settings):
        owned = {name: spec.owner for name, spec in declared(kind, catalog).items()}
        found |= {
            kind.job(name): owner for name, owner in (owned if kind.folder else dict.fromkeys(names, shared)).items()
        }
    return found


def mail_no_room(error: OSError, settings: Settings) -> bool:
    """Mail operators that the state folder cannot be written, which keeps any other mail from being written.

    Returns whether all have been reached; errors as of `tocsin.alerts.notify.notices.post`.
    """
    paragraphs = (
        f"The state folder {settings.state} cannot be written: {error.strerror or error}.",
        "Jobs that run go on as long as they can; none is started or restarted, and no other mail about jobs leaves.",
        f"{_ADVICE[Condition.NO_ROOM]} {_RETRIED} {_ONCE}",
        f"Runbook: {RUNBOOKS}#no-room",
    )
    notice = Notice(
        subject=f"[tocsin] state folder: {Condition.NO_ROOM}",
        paragraphs=paragraphs,
        commands=[f"df -h {shlex.quote(str(settings.state))}", "tocsin doctor"],
    )
    to = operators(read_catalog(settings.project), settings)
    return post(notice, f"no-room__{int(time.time() // CALM_SECONDS)}", to, settings) >= set(to)


def faults(catalog: Catalog) -> dict[str, str]:
    """Return the first fault of each file that cannot be read, by the job that it declares."""
    return {job: str(error.faults[0]) for job, error in broken_jobs(catalog).items()}


_RETRIED = "Retrying automatically."
_ADVICE = {
    Condition.CRASH_LOOP: _RETRIED,
    Condition.MISCONFIGURED: f"Fix what the log names. {_RETRIED}",
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
    Condition.SET_ASIDE: "The job goes on without them. `set-aside.json` in its checkpoint folder names each with its "
    "error; those of an ingest are in quarantine.",
    Condition.LOST: "Retention is shorter than the time for which the job was down or behind. `gaps.json` in its "
    "checkpoint folder names the offsets, and the windows that lack them. A backfill makes up for what a detector did "
    "not read. What an ingest did not read is lost: import it from where the senders keep it.",
    Condition.RECREATED: "Delete a topic only together with the checkpoints of the jobs that read it. Windows that "
    "were open are left out; a backfill of the day counts what has landed.",
    Condition.WAITING: "Nothing is lost while Kafka keeps the records. Jobs go on by themselves once it is there.",
    Condition.IGNORING: "Detectors do not see these records. Make the patterns of `ignore` in the source's file "
    "narrower, unless nearly all records are of no use.",
    Condition.REFUSED: "Where the receivers are at fault, mend them; the first command then sends them what they "
    "refused. Where an address is wrong, mend it in the detector's file, `routes.toml` or the settings: the next "
    "finding of each alert notifies it. What it missed until then `tocsin alerts` lists.",
    Condition.UNDECLARED: "The findings are stored, and become alerts as soon as a file in `detectors/` of this "
    "installation declares their detector. If they come from another installation, give each its own topics.",
    Condition.ISOLATED: "It goes on alone. If its own JVM dies too, the job is the cause: it tells so as a crash loop "
    "does. `engines/isolated.json` in the state folder says what the engine died of. It attaches to an engine again "
    "when its file has changed, or after a day at its next start.",
    Condition.BEHIND: "Detectors do not run over the days that are missing. Kafka removes what was not sealed once "
    "its retention is over. Look at what seals each night: in Airflow the DAG `history__<source>` and the scheduler, "
    "else `tocsin dev up` or its service.",
}
RUNBOOKS = "docs/run/runbooks.md"  # has a section for each condition, whose heading is its word

_ONCE = "We will mail again only if this comes back after an hour without it."


_COMMANDS = {
    Condition.QUARANTINING: [
        "tocsin quarantine --source {job.name}",
        "tocsin quarantine --replay --all --source {job.name}",
    ],
    Condition.BROKEN: ["tocsin check"],
    Condition.WAITING: ["tocsin doctor", "tocsin status"],
    Condition.REFUSED: ["tocsin alerts resend --refused", "tocsin status notifier"],
    Condition.UNDECLARED: ["tocsin findings", "tocsin check"],
    Condition.BEHIND: ["tocsin history list --source {source}", "tocsin history seal --source {source}"],
}


def source_of(job: str, catalog: Catalog) -> str:
    """Name the source whose events a feeder writes; of another `job` its own name."""
    name = JobName.parse(job)
    flow = catalog.flows.get(name.name) if name.kind == FLOW else None
    return flow.to if flow else name.name


def commands(incident: Incident, source: str) -> list[str]:
    """List what to type; `source` is that of the job, if it is a feeder."""
    job = JobName.parse(incident.job)
    own = _COMMANDS.get(incident.condition, ["tocsin status {job}", "tocsin dev logs {job}"])
    if incident.condition is Condition.SET_ASIDE and job.kind == INGEST:
        own = ["tocsin quarantine --source {job.name}", "tocsin dev logs {job}"]
    if incident.condition is Condition.MISCONFIGURED and job.kind == DETECTOR:
        own = ["tocsin check --plan", *own]
    return [command.format(job=job, source=source) for command in own]


def notice_of(incident: Incident, log: str, lines: Sequence[str], source: str) -> Notice:
    """Describe the incident; `lines` are the end of the log of its job, the file `log`; `source` as in `commands`."""
    return Notice(
        subject=f"[tocsin] {incident.job}: {incident.condition}",
        paragraphs=(
            incident.reason,
            f"{_ADVICE[incident.condition]} {_ONCE}",
            f"Runbook: {RUNBOOKS}#{incident.condition.replace(' ', '-')}",
        ),
        commands=commands(incident, source),
        output=lines,
        output_of=f"The end of its log ({log})",
    )


def refused_notice(source: str, days: Mapping[date, DayVersion]) -> Notice:
    """Describe `days` of `source` that its gate refuses, at least one."""
    newest = max(days)
    return Notice(
        subject=f"[tocsin] history of {source}: {days_text(list(days))} refused",
        paragraphs=(
            "The quality gate refuses what was sealed for these days, and detectors do not run over it. A version that "
            "was published before still counts. Other days are not affected.",
            "Once the rule or the data is mended, the first command judges a day again. The second publishes it as it "
            "is, and records who decided that and why. Until then `tocsin status` shows the day, and ends with 1.",
            f"Runbook: {RUNBOOKS}#refused-day",
        ),
        commands=[*judge_or_accept(source, newest), f"tocsin history list --source {source}"],
        days=[((source, str(day), version.summary), "") for day, version in days.items()],
    )


def _shared(notice: Notice, incidents: Sequence[Incident]) -> Notice:
    """Describe several incidents with one cause; `notice` describes the first."""
    jobs = ", ".join(incident.job for incident in incidents)
    subject, (reason, *rest) = f"[tocsin] {len(incidents)} jobs wait for {incidents[0].cause}", notice.paragraphs
    return replace(
        notice, subject=subject, paragraphs=(f"These jobs wait: {jobs}.", f"{incidents[0].job}: {reason}", *rest)
    )
