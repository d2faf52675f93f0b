"""How one job fares, in a word, with the reason: what should be, what is, what it says, what supervision remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tocsin.model.detector import DetectorSpec
from tocsin.model.job_report import MUCH_QUARANTINED, SILENT_SECONDS, JobState
from tocsin.project.catalog import Catalog
from tocsin.runtime.heartbeat import Beat
from tocsin.supervision.job_kinds import broken_jobs
from tocsin.supervision.job_states import Condition, Past
from tocsin.supervision.runners.runner import Process
from tocsin.web.page_shapes import Severity


@dataclass(frozen=True)
class Verdict:
    """How loud, in which word, and why."""

    severity: Severity
    state: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of one job.

    Attributes:
        job: which.
        spec: of a detector that can be read.
        faults: of its file, when that cannot be read.
        declared: whether there is a file, or the platform needs it.
        off: whether its switch is off; None when not known.
        drain_asked_at: when it was asked to read all there was and stop; None when it was not, or has done it.
        drained_at: when it was asked that, once it has done it; None else.
        processes: its live ones, the oldest first.
        beat: its last sign of life, perhaps of a process that is gone.
        beside: that of a process that is to take over.
        past: what supervision remembers.
        at: epoch seconds of the look.
    """

    job: str
    spec: DetectorSpec | None
    faults: Sequence[str]
    declared: bool
    off: bool | None
    drain_asked_at: float | None
    drained_at: float | None
    processes: Sequence[Process]
    beat: Beat | None
    beside: Beat | None
    past: Past
    at: float

    @property
    def leader(self) -> Process | None:
        """The process that works for the job: the one that gave the last sign of life, else the oldest."""
        leaders = [process for process in self.processes if process.leader]
        told = self.beat.report.pid if self.beat is not None else None
        return next((one for one in leaders if one.pid == told), leaders[0] if leaders else None)

    @property
    def own_beat(self) -> Beat | None:
        """The last sign of life of the process that works for it; None when that has given none."""
        leader, beat = self.leader, self.beat
        return beat if leader is not None and beat is not None and beat.report.pid == leader.pid else None


DRAINED = "drained"

_SAID = {
    JobState.STARTING: Severity.WARNING,
    JobState.WAITING: Severity.WARNING,
    JobState.STOPPING: Severity.WARNING,
    JobState.STOPPED: Severity.WARNING,
    JobState.FAILED: Severity.PROBLEM,
}


def verdict(facts: Facts) -> Verdict:
    """How the job fares. What is broken or fails is a problem; what passes by itself is a warning."""
    if facts.faults:
        goes_on = "Its job goes on as it was. " if facts.leader else "It is not started. "
        return Verdict(Severity.PROBLEM, "broken", goes_on + "; ".join(facts.faults))
    return _unwanted(facts) or _failing(facts) or _said(facts)


def _unwanted(facts: Facts) -> Verdict | None:
    """For a job that is not to run."""
    if not facts.declared:
        state, reason = "not declared", "no file declares it any more"
    elif facts.spec is not None and not facts.spec.stage.runs:
        state, reason = str(facts.spec.stage), ""
    elif facts.off:
        state, reason = "paused", "it was switched off"
    elif facts.drained_at is not None:
        reason = f"it has read all that had come in by {_clock(facts.drained_at)}; a restart lets it go on from there"
        state = DRAINED
    else:
        return None
    if facts.processes:
        return Verdict(Severity.WARNING, "stopping", reason)
    return Verdict(Severity.OFF, state, reason)


def _failing(facts: Facts) -> Verdict | None:
    """For a job that restarts alone will hardly help, and for one that is not there."""
    past = facts.past
    if past.condition not in (Condition.FINE, Condition.RESTARTING):
        tried = any(process.labels.spec == past.spec for process in facts.processes)
        again = ". It is being tried again" if tried else ""
        return Verdict(Severity.PROBLEM, str(past.condition), past.reason + again)
    if facts.leader is not None:
        return None
    if past.condition is Condition.RESTARTING:
        return Verdict(Severity.WARNING, "restarting", past.reason)
    if past.expected:
        return Verdict(Severity.PROBLEM, "gone", "its process has ended; the supervisor has not noticed yet")
    return Verdict(Severity.WARNING, "not running", "it is to be started")


def _said(facts: Facts) -> Verdict:
    """For a job whose process is there."""
    beat = facts.own_beat
    if beat is None:
        return Verdict(Severity.WARNING, "starting", "it has given no sign of life yet")
    report = beat.report
    if beat.age_seconds > SILENT_SECONDS:
        reason = f"silent for {beat.age_seconds:.0f} s; it was {report.state} then. It hangs, or cannot write"
        return Verdict(Severity.PROBLEM, "silent", reason)
    much = report.bad_ratio > MUCH_QUARANTINED
    severity = _SAID.get(report.state, Severity.WARNING if much else Severity.OK)
    if facts.drain_asked_at is not None:
        severity = Severity.WARNING if severity is Severity.OK else severity
        until = f"it stops once it has read all that had come in by {_clock(facts.drain_asked_at)}"
        return Verdict(severity, str(report.state), f"{until}; {report.reason}" if report.reason else until)
    if len(facts.processes) > 1:
        said = facts.beside.report.state if facts.beside else "starting"
        return Verdict(severity, str(report.state), f"another version is {said} beside it, to take over")
    return Verdict(severity, str(report.state), report.reason)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%d %B %H:%M:%S} UTC"


def faults_of(catalog: Catalog, job: str, project: Path) -> list[str]:
    """What is wrong with the file in `project` that declares `job`; nothing when it can be read."""
    error = broken_jobs(catalog).get(job)
    return [] if error is None else [str(fault).replace(f"{project}/", "") for fault in error.faults]
