"""Judge a job's health from its declaration, its processes, its report and supervision's memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.model.detector import Stage
from tocsin.model.durations import span
from tocsin.model.job_report import MUCH_IGNORED, MUCH_QUARANTINED, SILENT_SECONDS, JobState
from tocsin.runtime.heartbeat import UNSUPERVISED_SECONDS, Beat
from tocsin.supervision.job_states import Condition, Past
from tocsin.supervision.runners.runner import Process

# A process that was just started may not be in the process list yet.
_START_SECONDS = 3.0
_ENDED = (JobState.STOPPED, JobState.FAILED)


class Standing(StrEnum):
    """The loudness with which something is shown; in this order."""

    PROBLEM = "problem"
    WARNING = "warning"
    OK = "ok"
    OFF = "off"


@dataclass(frozen=True)
class Health:
    """Health of a job: how loud, in a word or two, and why."""

    standing: Standing
    word: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """All that is known of one job.

    Attributes:
        at: epoch seconds of the look.
        faults: of its file, when that cannot be read.
        declared: whether there is a file, or the platform needs it.
        stage: of a detector whose file can be read.
        off: whether its switch is off; None when not known.
        processes: its live ones, the oldest first; None where another machine may run it.
        beat: its last sign of life, perhaps of a process that is gone.
        beside: that of a process that is to take over.
        beats: False for a server, which gives no sign of life.
        past: what supervision remembers.
        looked_seconds: since the supervisor last looked at the jobs; None when that does not matter.
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
        return next((one for one in leaders if one.pid == pid), leaders[0] if leaders else None)

    @property
    def own_beat(self) -> Beat | None:
        """The last sign of life of the process that works for it; None when that has given none."""
        if self.processes is None:
            return self.beat
        pid = None if self.leader is None else self.leader.pid
        return next((one for one in (self.beat, self.beside) if one is not None and one.report.pid == pid), None)

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


_SAID = {
    JobState.STARTING: Standing.WARNING,
    JobState.WAITING: Standing.WARNING,
    JobState.READY: Standing.WARNING,
    JobState.STOPPING: Standing.WARNING,
    JobState.STOPPED: Standing.WARNING,
    JobState.FAILED: Standing.PROBLEM,
}


def health(facts: JobFacts) -> Health:
    """Judge the job's health: a problem needs somebody, a warning passes without help."""
    if facts.faults:
        goes_on = "The running job keeps running. " if facts.runs else "The job is not started. "
        return Health(Standing.PROBLEM, "broken", goes_on + "; ".join(facts.faults))
    return _unwanted(facts) or _failing(facts) or _absent(facts) or _reported(facts)


def _unwanted(facts: JobFacts) -> Health | None:
    """Judge a job that is not to run."""
    if not facts.declared:
        word, reason = "not declared", "no file declares it"
    elif facts.stage is not None and not facts.stage.runs:
        word, reason = str(facts.stage), ""
    elif facts.off:
        word, reason = "paused", "switched off"
    else:
        return None
    return Health(Standing.WARNING, "stopping", reason) if facts.runs else Health(Standing.OFF, word, reason)


def _failing(facts: JobFacts) -> Health | None:
    """Judge a job that restarts alone will hardly help."""
    past = facts.past
    if not past.is_failing:
        return None
    is_retried = any(process.labels.spec == past.spec for process in facts.processes or ())
    again = ". Retrying" if is_retried else ""
    return Health(Standing.PROBLEM, str(past.condition), past.reason + again)


def _absent(facts: JobFacts) -> Health | None:
    """Judge a job without a process."""
    if facts.leader is not None or (facts.processes is None and facts.beat is not None):
        return None
    if facts.processes is None:
        return Health(Standing.PROBLEM, "missing", "never ran here")
    unsupervised = unsupervised_reason(facts.looked_seconds)
    return _ended(facts) if unsupervised is None else Health(Standing.PROBLEM, "down", unsupervised)


def _ended(facts: JobFacts) -> Health:
    """Judge a job without a process here that the supervisor will look at within a minute."""
    past, last = facts.past, facts.beat.report if facts.beat else None
    if past.condition is Condition.RESTARTING:
        return Health(Standing.WARNING, "restarting", past.reason)
    if not past.expected or facts.at - past.started_at <= _START_SECONDS:
        word, reason = ("starting", "") if past.expected else ("not running", "about to start")
        return Health(Standing.WARNING, word, reason)
    if last is not None and last.state in _ENDED:
        return Health(Standing.PROBLEM, str(last.state), last.reason)
    return Health(Standing.PROBLEM, "gone", "its process has ended; the supervisor has not noticed yet")


def unsupervised_reason(looked_seconds: float | None) -> str | None:
    """Say that the supervisor has not looked for too long; None when it has, or nobody expects it to."""
    if looked_seconds is None or looked_seconds <= UNSUPERVISED_SECONDS:
        return None
    return f"the supervisor has not looked at the jobs for {span(looked_seconds)}: nothing is started or restarted"


def _reported(facts: JobFacts) -> Health:
    """Judge a job by what it says of itself."""
    beat = facts.own_beat
    if beat is None and not facts.beats:
        return Health(Standing.OK, "running")
    if beat is None:
        return Health(Standing.WARNING, "starting", "no heartbeat yet")
    report, word = beat.report, str(beat.report.state)
    if facts.processes is None and report.state in _ENDED:
        return Health(Standing.PROBLEM, word, report.reason)
    if beat.age_seconds > SILENT_SECONDS:
        gone = ", is gone" if facts.processes is None else ""
        reason = f"no heartbeat for {beat.age_seconds:.0f} s; it was {word} then. It hangs{gone}, or cannot write"
        return Health(Standing.PROBLEM, "silent", reason)
    if report.waits_long:
        return Health(Standing.PROBLEM, word, f"for {span(report.waiting_seconds)}: {report.reason}")
    loses_much = report.bad_ratio > MUCH_QUARANTINED or report.ignored_ratio > MUCH_IGNORED
    standing = _SAID.get(report.state, Standing.WARNING if loses_much else Standing.OK)
    standing = Standing.OK if facts.stands_by else standing
    return Health(standing, word, _explained(facts, report.reason))


def _explained(facts: JobFacts, reason: str) -> str:
    """Say what is about to change for the job, or the `reason` that it gave itself."""
    if facts.beside in (None, facts.own_beat) and len(facts.processes or ()) < 2:
        return reason
    other = facts.beside.report if facts.beside else None
    who = f"version {other.version}" if other and other.version else "another version"
    return f"{who} is {other.state if other else 'starting'} beside it, to take over"
