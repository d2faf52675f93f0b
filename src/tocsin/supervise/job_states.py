"""The words of supervision: what should run, what runs, what happened before, what to do. Times are epoch seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tocsin.declare.model.job_report import FailureCause
from tocsin.platform import state_file

HUNG = "is hung"  # begins the reason of a failure that was no end of a process


class Condition(StrEnum):
    """Condition of a job. The policy knows the first six; `incidents.conditions` finds the others."""

    FINE = "fine"
    RESTARTING = "restarting"
    CRASH_LOOP = "crash loop"
    MISCONFIGURED = "misconfigured"
    LOCKED = "locked"
    NO_ROOM = "no room"
    HUNG = "hung"
    BROKEN = "broken file"
    LAGGING = "lags"
    LATE = "drops late events"
    SILENT = "no input"
    QUARANTINING = "much goes to quarantine"
    WAITING = "waits"
    SET_ASIDE = "sets records aside"
    LOST = "loses unread records"
    RECREATED = "topic recreated"
    IGNORING = "ignores nearly everything"
    REFUSED = "messages refused"
    UNDECLARED = "findings of unknown detectors"
    BEHIND = "history behind"
    ISOLATED = "isolated"

    @property
    def is_failing(self) -> bool:
        """Return whether somebody should look at it, because restarts alone will hardly help."""
        return self not in (Condition.FINE, Condition.RESTARTING)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The timing of supervision, in seconds but for two counts.

    Attributes:
        first_delay: before the restart after the second failure; doubles from there.
        crash_loop_failures, crash_loop_window: so many failures within so long are a crash loop.
        healthy_after: a job that ran so long, and has shown that it gets on, is well again. What failed within
            `crash_loop_window` still counts.
        stale_after: without a heartbeat for so long a job is hung.
        start_grace: for the first heartbeat of a process.
        stalled_after: a job that lives and has not come on for so long is hung.
        stagger: between the starts of two heavy jobs.
        hand_overs: how many jobs hand over at once, besides those that host others: two processes of one job take twice
            its memory.
    """

    first_delay: float = 2.0
    longest_delay: float = 60.0
    crash_loop_failures: int = 4
    crash_loop_window: float = 1800.0
    healthy_after: float = 120.0
    stale_after: float = 60.0
    start_grace: float = 180.0
    stalled_after: float = 600.0
    stop_grace: float = 20.0
    stagger: float = 2.0
    locked_retry: float = 5.0
    hand_overs: int = 2


@dataclass(frozen=True)
class Desired:
    """A job that should run.

    Attributes:
        spec: hash of all that it is started with; for a job these are its `inputs`.
        readable: False when it is unknown whether it should run: then it is left alone.
        hands_over: whether a process from another spec runs on until one from this spec can take over from it.
        hosts_jobs: whether other jobs run in it, so that its hand-over lasts until theirs are done.
    """

    spec: str
    heavy: bool = False
    beats: bool = True
    readable: bool = True
    memory_bytes: int | None = None
    hands_over: bool = False
    hosts_jobs: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict, compare=False)


UNREADABLE = Desired("", readable=False)


@dataclass(frozen=True, kw_only=True)
class Live:
    """A live process of a job.

    Attributes:
        stuck_at: of one that is hung: file and line of the project where a worker of it is; empty if unknown.
        leader: False for a process whose leader is gone.
        unproven: whether it has something to read and has finished no batch since its start, or does not work yet.
        restarts: how often a cluster has restarted it after a failure, and will again; None if supervision has to.
    """

    job: str
    pid: int
    spec: str
    started_at: float
    beat_at: float | None = None
    rss_bytes: int = 0
    stalled_seconds: float = 0.0
    stuck_at: str = ""
    leader: bool = True
    leads: bool = False
    ready: bool = False
    works: bool = False
    unproven: bool = False
    restarts: int | None = None


@dataclass(frozen=True, kw_only=True)
class Actual:
    """The present state: the live processes, and how the last process of a job ended, where that is known."""

    live: Sequence[Live] = ()
    exits: Mapping[str, int] = field(default_factory=dict)
    causes: Mapping[str, FailureCause] = field(default_factory=dict)
    ended: Mapping[str, float] = field(default_factory=dict)

    def runs(self, job: str, spec: str) -> bool:
        """Return whether a process of `job` from `spec` lives; what a dead one has left, a JVM, does not count."""
        return any(process.leader and (process.job, process.spec) == (job, spec) for process in self.live)


@dataclass(frozen=True, kw_only=True)
class Past:
    """The memory of one job.

    Attributes:
        expected: whether a process from that spec should be there: started or seen, and not asked to stop.
        seen: how many restarts by a cluster have been counted of the process that is there.
    """

    spec: str = ""
    started_at: float = 0.0
    expected: bool = False
    failures: tuple[float, ...] = ()
    retry_at: float = 0.0
    condition: Condition = Condition.FINE
    reason: str = ""
    first: FailureCause | None = None
    asked: Mapping[int, float] = field(default_factory=dict)
    works: bool = False
    restarts: int = 0
    seen: int = 0


@dataclass(frozen=True, kw_only=True)
class History:
    """The memory of all jobs; `heavy_start_at` is the last start of a heavy one."""

    jobs: Mapping[str, Past] = field(default_factory=dict)
    heavy_start_at: float = 0.0


@dataclass(frozen=True)
class Start:
    """Start `job` from `spec`; with `beside` while a process from another spec runs, from which it is to take over."""

    job: str
    spec: str
    reason: str
    beside: bool = False
    memory_bytes: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Stop:
    """Stop the process `pid` of `job`; with `force` at once."""

    job: str
    pid: int
    reason: str
    force: bool = False


@dataclass(frozen=True)
class Change:
    """`job` came into another condition: news for people, given once."""

    job: str
    condition: Condition
    reason: str


Action = Start | Stop | Change


def memory_of(state: Path, group: str) -> Path:
    """Return the file that holds what supervision remembers of one group."""
    return state / "supervision" / f"{group}.json"


def read_history(path: Path) -> History:
    """Read the memory in `path`; empty if it is missing or broken: a forgotten back-off does no harm."""
    return state_file.read(path, History, History())


def write_history(path: Path, history: History) -> None:
    """Write `history` to `path`, at once or not at all; raises OSError if it cannot be written."""
    state_file.write(path, History, history)
