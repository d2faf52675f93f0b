"""A machine of thought: processes that live and die as the test says, and a clock that the test moves."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tocsin.supervise.job_states import Action, Actual, Change, Desired, History, Live, Start, Stop, Timing
from tocsin.supervise.restart_policy import reconcile

FOREVER = float("inf")


@dataclass(frozen=True)
class Nature:
    """How processes of a job behave.

    For how long they live, how they end, when they obey, whether they beat, and when one that runs beside another is
    ready to take over.
    """

    lives: float = FOREVER
    code: int = 1
    obeys_after: float = 0.5
    beats: bool = True
    ready_after: float = 5.0


@dataclass
class World:
    desired: Mapping[str, Desired] | None
    natures: dict[str, Nature] = field(default_factory=dict)
    timing: Timing = field(default_factory=Timing)
    now: float = 1000.0
    history: History = field(default_factory=History)
    live: dict[int, Live] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)
    ends: dict[int, tuple[float, int]] = field(default_factory=dict)
    log: list[tuple[float, Action]] = field(default_factory=list)
    next_pid: int = 1

    def nature(self, job: str) -> Nature:
        return self.natures.get(job, Nature())

    def add(self, job: str, spec: str, *, leader: bool = True) -> Live:
        one = Live(job=job, pid=self.next_pid, spec=spec, started_at=self.now, beat_at=self.now, leader=leader)
        self.live[one.pid] = one
        self.ends[one.pid] = (self.now + self.nature(job).lives, self.nature(job).code)
        self.next_pid += 1
        return one

    def tick(self, seconds: float = 1.0) -> list[Action]:
        """Let time pass, let processes beat and die, then reconcile and do what it says."""
        self.now += seconds
        for pid, (at, code) in list(self.ends.items()):
            if self.now >= at:
                self.exits[self.live.pop(pid).job] = code
                del self.ends[pid]
        for pid, one in self.live.items():
            if self.nature(one.job).beats:
                leads = one.leads or not any(p.job == one.job and p.leads for p in self.live.values())
                ready = not leads and self.now - one.started_at >= self.nature(one.job).ready_after
                self.live[pid] = replace(one, beat_at=self.now, leads=leads, ready=ready)
        actual = Actual(live=list(self.live.values()), exits=dict(self.exits))
        actions, self.history = reconcile(self.desired, actual, self.history, self.now, self.timing)
        for action in actions:
            self.do(action)
        self.log += [(self.now, action) for action in actions]
        return actions

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.tick()

    def starts(self, job: str) -> list[float]:
        return [at for at, action in self.log if isinstance(action, Start) and action.job == job]

    def stops(self, job: str) -> list[Stop]:
        return [action for _, action in self.log if isinstance(action, Stop) and action.job == job]

    def changes(self, job: str) -> list[str]:
        return [str(action.condition) for _, action in self.log if isinstance(action, Change) and action.job == job]

    def running(self, job: str) -> list[Live]:
        return [one for one in self.live.values() if one.job == job]

    def do(self, action: Action) -> None:
        if isinstance(action, Start):
            self.add(action.job, action.spec)
        elif isinstance(action, Stop) and action.pid in self.live:
            after = 0.0 if action.force else self.nature(action.job).obeys_after
            self.ends[action.pid] = (min(self.ends[action.pid][0], self.now + after), -9 if action.force else 0)
