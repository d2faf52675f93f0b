"""Make the status of each job: a look at files, processes, heartbeats and memory, and one `JobStatus` made of it.

`tocsin status`, the pages, the exporter, the launcher and the tasks of Airflow show this record and no other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.detector import DetectorSpec, Stage
from tocsin.declare.model.durations import span
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.job_report import MUCH_IGNORED, MUCH_QUARANTINED, SILENT_SECONDS, JobReport, JobState
from tocsin.declare.model.names import DETECTOR, JobName, dag_of
from tocsin.declare.model.source import Source
from tocsin.declare.model.table import TableSpec
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import UNSUPERVISED_SECONDS, Beat, read_beat, read_besides, seconds_since_look
from tocsin.supervise.job_kinds import broken_jobs, declared, known_jobs, names
from tocsin.supervise.job_states import Condition, Past, memory_of, read_history
from tocsin.supervise.runners.runner import Process
from tocsin.supervise.switches import Switches, followed_switches

# A process that was just started may not be in the process list yet.
_START_SECONDS = 3.0
_ENDED = (JobState.STOPPED, JobState.FAILED)


class Severity(StrEnum):
    """How urgently something needs a person; shown in this order, and as `standing` in the JSON of a status."""

    PROBLEM = "problem"
    WARNING = "warning"
    OK = "ok"
    OFF = "off"


class JobStatus(JobReport):
    """One job: its last report, and what follows from that, its processes and the supervisor's memory.

    Where a process runs here, `pid` and `started_at` are its own; before its first heartbeat the figures are 0.

    Attributes:
        standing: ok, warning (it waits or starts), problem (failed, stopped, silent, missing, in a crash loop or the
            like) or off (it need not run).
        health: the same in a word or two, such as running, crash loop or silent; the pages show this word.
        runs: whether a process of it runs, as far as is known.
        age_seconds: since the job last gave a sign of life; null when it never did.
        supervised_at: when the supervisor last looked at the jobs: what is said of restarts is as of then. Null when
            none has looked on this machine.
    """

    standing: Severity
    health: str
    condition: Condition = Condition.FINE
    runs: bool = False
    age_seconds: float | None = None
    last_finding_at: datetime | None = None
    beside: JobReport | None = None
    fault: str | None = None
    restarts: int = 0
    supervised_at: datetime | None = None


@dataclass(frozen=True)
class Health:
    """Health of a job: how urgent, in a word or two, and why."""

    severity: Severity
    word: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """All that is known of one job.

    Attributes:
        processes: its live ones, the oldest first; None where another machine may run it.
        beats: False for a server, which gives no sign of life.
    """

    at: float
    faults: Sequence[str] = ()
    declared: bool = True
    stage: Stage | None = None
    off: bool | None = None
    processes: Sequence[Process] | None = ()
    beat: Beat | None = None
    beside: Beat | None = None
    beats: bool = True
    past: Past = field(default_factory=Past)
    looked_seconds: float | None = None

    @property
    def leader(self) -> Process | None:
        """The process that works for the job: the one that gave the last sign of life, else the oldest."""
        leaders = [process for process in self.processes or () if process.leader]
        pid = self.beat.report.pid if self.beat is not None else None
        return next((process for process in leaders if process.pid == pid), leaders[0] if leaders else None)

    @property
    def own_beat(self) -> Beat | None:
        """The last sign of life of the process that works for it; None when that has given none."""
        if self.processes is None:
            return self.beat
        pid = None if self.leader is None else self.leader.pid
        return next((beat for beat in (self.beat, self.beside) if beat is not None and beat.report.pid == pid), None)

    @property
    def stands_by(self) -> bool:
        """Return whether the one process of it here waits for that of another machine, which leads."""
        own = self.own_beat
        return own is not None and own is self.beside and own.report.state is JobState.READY

    @property
    def runs(self) -> bool:
        """Return whether a process of it runs, as far as is known."""
        if self.processes is not None:
            return bool(self.processes)
        is_young = self.beat is not None and self.beat.age_seconds <= SILENT_SECONDS
        return is_young and self.beat is not None and self.beat.report.state not in _ENDED


_SEVERITIES = {
    JobState.STARTING: Severity.WARNING,
    JobState.WAITING: Severity.WARNING,
    JobState.READY: Severity.WARNING,
    JobState.STOPPING: Severity.WARNING,
    JobState.STOPPED: Severity.WARNING,
    JobState.FAILED: Severity.PROBLEM,
}


def health(facts: JobFacts) -> Health:
    """Judge the job's health: a problem needs somebody, a warning passes without help."""
    if facts.faults:
        goes_on = "The running job keeps running. " if facts.runs else "The job is not started. "
        return Health(Severity.PROBLEM, "broken", goes_on + "; ".join(facts.faults))
    return _judge_unwanted(facts) or _judge_failing(facts) or _judge_absent(facts) or _judge_reported(facts)


def _judge_unwanted(facts: JobFacts) -> Health | None:
    if not facts.declared:
        word, reason = "not declared", "no file declares it"
    elif facts.stage is not None and not facts.stage.runs:
        word, reason = str(facts.stage), ""
    elif facts.off:
        word, reason = "paused", "switched off"
    else:
        return None
    return Health(Severity.WARNING, "stopping", reason) if facts.runs else Health(Severity.OFF, word, reason)


def _judge_failing(facts: JobFacts) -> Health | None:
    """Judge a job that restarts alone will hardly help."""
    past = facts.past
    if not past.condition.is_failing:
        return None
    is_retried = any(process.labels.spec == past.spec for process in facts.processes or ())
    again = ". Retrying" if is_retried else ""
    return Health(Severity.PROBLEM, str(past.condition), past.reason + again)


def _judge_absent(facts: JobFacts) -> Health | None:
    if facts.leader is not None or (facts.processes is None and facts.beat is not None):
        return None
    if facts.processes is None:
        return Health(Severity.PROBLEM, "missing", "never ran here")
    unsupervised = unsupervised_reason(facts.looked_seconds)
    return _judge_ended(facts) if unsupervised is None else Health(Severity.PROBLEM, "down", unsupervised)


def _judge_ended(facts: JobFacts) -> Health:
    """Judge a job without a process here that the supervisor will look at within a minute."""
    past, last = facts.past, facts.beat.report if facts.beat else None
    if past.condition is Condition.RESTARTING:
        return Health(Severity.WARNING, "restarting", past.reason)
    if not past.expected or facts.at - past.started_at <= _START_SECONDS:
        word, reason = ("starting", "") if past.expected else ("not running", "about to start")
        return Health(Severity.WARNING, word, reason)
    if last is not None and last.state in _ENDED:
        return Health(Severity.PROBLEM, str(last.state), last.reason)
    return Health(Severity.PROBLEM, "gone", "its process has ended; the supervisor has not noticed yet")


def unsupervised_reason(looked_seconds: float | None) -> str | None:
    """Say that the supervisor has not looked for too long; None when it has, or nobody expects it to."""
    if looked_seconds is None or looked_seconds <= UNSUPERVISED_SECONDS:
        return None
    return f"the supervisor has not looked at the jobs for {span(looked_seconds)}: nothing is started or restarted"


def _judge_reported(facts: JobFacts) -> Health:
    beat = facts.own_beat
    if beat is None and not facts.beats:
        return Health(Severity.OK, "running")
    if beat is None:
        return Health(Severity.WARNING, "starting", "no heartbeat yet")
    report, word = beat.report, str(beat.report.state)
    if facts.processes is None and report.state in _ENDED:
        return Health(Severity.PROBLEM, word, report.reason)
    if beat.age_seconds > SILENT_SECONDS:
        gone = ", is gone" if facts.processes is None else ""
        reason = f"no heartbeat for {beat.age_seconds:.0f} s; it was {word} then. It hangs{gone}, or cannot write"
        return Health(Severity.PROBLEM, "silent", reason)
    if report.waits_long:
        return Health(Severity.PROBLEM, word, f"for {span(report.waiting_seconds)}: {report.reason}")
    loses_much = report.bad_ratio > MUCH_QUARANTINED or report.ignored_ratio > MUCH_IGNORED
    severity = _SEVERITIES.get(report.state, Severity.WARNING if loses_much else Severity.OK)
    severity = Severity.OK if facts.stands_by else severity
    return Health(severity, word, _explain(facts, report.reason))


def _explain(facts: JobFacts, reason: str) -> str:
    """Say what is about to change for the job, or the `reason` that it gave itself."""
    if facts.beside in (None, facts.own_beat) and len(facts.processes or ()) < 2:
        return reason
    other = facts.beside.report if facts.beside else None
    who = f"version {other.version}" if other and other.version else "another version"
    return f"{who} is {other.state if other else 'starting'} beside it, to take over"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The result of one look.

    Attributes:
        is_listed: False where a cluster runs them, so that only their reports tell.
    """

    at: float
    project: Path
    catalog: Catalog
    jobs: Sequence[str] = ()
    processes: Mapping[str, Sequence[Process]] = field(default_factory=dict)
    beats: Mapping[str, Beat] = field(default_factory=dict)
    besides: Mapping[str, Beat] = field(default_factory=dict)
    pasts: Mapping[str, Past] = field(default_factory=dict)
    switches: Switches = field(default_factory=Switches)
    is_listed: bool = True
    looked_seconds: float | None = None

    def spec(self, job: str) -> FlowSpec | DetectorSpec | ViewSpec | None:
        """Return what is declared of `job` as code; None for a job of another kind, or a file that cannot be read."""
        own = JobName.parse(job)
        spec = declared(KINDS[own.kind], self.catalog).get(own.name) if own.kind in KINDS else None
        return None if isinstance(spec, Source | TableSpec) else spec

    @cached_property
    def _broken(self) -> Mapping[str, ConfigError]:
        return broken_jobs(self.catalog)

    @cached_property
    def _declared(self) -> frozenset[str]:
        files = (kind for kind in KINDS.values() if kind.folder)
        return frozenset(kind.job(name) for kind in files for name in names(kind, self.catalog))

    def facts(self, job: str, off: bool | None = None) -> JobFacts:
        """Gather what is known of `job`; `off` says whether its switch is off, None when that is not known."""
        spec, error = self.spec(job), self._broken.get(job)
        return JobFacts(
            at=self.at,
            faults=[str(fault).replace(f"{self.project}/", "") for fault in error.faults] if error else (),
            declared=job in self._declared or _has_no_file(job),
            stage=spec.stage if spec else None,
            off=off,
            processes=self.processes.get(job, ()) if self.is_listed else None,
            beat=self.beats.get(job),
            beside=self.besides.get(job),
            past=self.pasts.get(job, Past()),
            looked_seconds=self.looked_seconds,
        )

    def status(
        self,
        job: str,
        *,
        off: bool | None = None,
        reports: Mapping[str, JobReport] | None = None,
        found: datetime | None = None,
    ) -> JobStatus:
        """Make the status of `job`; `off`, and when its detector's last finding was `found`, are None if not known.

        `reports` has the last of each job anywhere, as a job that supervision here has never seen may run elsewhere;
        None to go by this machine alone.
        """
        facts = self.facts(job, off)
        if reports is not None:
            is_here = job in self.pasts or job in self.processes
            facts = replace(facts, processes=facts.processes if is_here else None)
            if job in reports:
                facts = replace(facts, beat=Beat(reports[job], max(0.0, self.at - reports[job].at.timestamp())))
        return job_status(job, facts, found)

    def statuses(
        self, wanted: Sequence[str], reports: Mapping[str, JobReport], found: Mapping[str, datetime]
    ) -> list[JobStatus]:
        """Make the status of each job that should run, and of each other one that reports; arguments as of `status`."""

        def is_alive(report: JobReport) -> bool:
            return report.state is not JobState.STOPPED and self.at - report.at.timestamp() <= SILENT_SECONDS

        others = sorted(job for job, report in reports.items() if job not in wanted and is_alive(report))
        stopped = {job for job in wanted if self.switches.off.get(dag_of(job))}.union(others)
        return [
            self.status(job, off=job in stopped, reports=reports, found=found.get(job)) for job in (*wanted, *others)
        ]


def job_status(job: str, facts: JobFacts, found: datetime | None = None) -> JobStatus:
    """Make the status of `job` from what is known; `found` is when the last finding of its detector arrived."""
    judged, leader, past = health(facts), facts.leader, facts.past
    own = facts.own_beat if leader is not None else None
    beat = own or facts.beat
    now = datetime.fromtimestamp(facts.at, UTC)
    report = beat.report if beat is not None else JobReport(job=job, at=now, state=JobState.STOPPED)
    if leader is not None:
        if own is None:
            report = JobReport(job=job, at=report.at, state=JobState.STARTING if facts.beats else JobState.RUNNING)
        started_at = datetime.fromtimestamp(leader.started_at, UTC)
        report = report.model_copy(update={"pid": leader.pid, "started_at": started_at})
    age = None if beat is None else beat.age_seconds
    lag = report.lag_after(age) if report.has_lag and age is not None else report.lag_seconds
    # What the job said itself is no cause of the trouble that supervision remembers.
    first = None if past.condition is Condition.FINE else past.first
    own_words = {"reason": judged.reason, "lag_seconds": round(lag, 1), "cause": first or report.cause}
    looked = None if facts.looked_seconds is None else now - timedelta(seconds=facts.looked_seconds)
    return JobStatus(
        **dict(report) | own_words,
        standing=judged.severity,
        health=judged.word,
        condition=Condition.BROKEN if facts.faults else past.condition,
        runs=facts.runs,
        age_seconds=None if age is None else round(age, 1),
        last_finding_at=found,
        beside=facts.beside.report if facts.beside else None,
        fault=facts.faults[0] if facts.faults else None,
        restarts=past.restarts,
        supervised_at=looked,
    )


def look(settings: Settings, catalog: Catalog, processes: Iterable[Process] | None) -> Snapshot:
    """Look at the jobs of `catalog`, and at those that run besides; `processes` are the live ones, None if unknown."""
    state, running = settings.state, dict[str, list[Process]]()
    for process in processes or ():
        running.setdefault(process.labels.job, []).append(process)
    jobs = _jobs(settings, catalog, running)
    return Snapshot(
        at=time.time(),
        project=settings.project,
        catalog=catalog,
        jobs=jobs,
        processes=running,
        beats={job: beat for job in jobs if (beat := read_beat(state, job)) is not None},
        besides={job: beat for job, beat in read_besides(state, jobs).items() if beat.age_seconds <= SILENT_SECONDS},
        pasts=read_history(memory_of(state, "jobs")).jobs,
        switches=followed_switches(state),
        is_listed=processes is not None,
        looked_seconds=seconds_since_look(state),
    )


def _has_no_file(job: str) -> bool:
    kind = KINDS.get(JobName.parse(job).kind)
    return kind is not None and not kind.folder


def _jobs(settings: Settings, catalog: Catalog, running: Mapping[str, object]) -> list[str]:
    known = sorted(known_jobs(catalog, settings), key=lambda item: item[0].word != DETECTOR)
    wanted = [kind.job(name) for kind, jobs in known for name in jobs]
    return [*wanted, *sorted(set(running) - set(wanted))]
