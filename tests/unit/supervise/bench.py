"""A supervisor at a quick timing, with dummies for jobs."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from tests.unit.supervise.dummies import SLEEP, launch
from tocsin.supervise.job_states import Action, Change, Condition, Desired, Start, Timing
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch
from tocsin.supervise.supervisor import JobGroup, Supervisor

QUICK = Timing(
    first_delay=0.05, longest_delay=0.2, crash_loop_failures=3, healthy_after=30.0, stale_after=1.5, stop_grace=1.0
)
GOOD = Desired("v1", beats=False)
FAILING = "import sys; print('it broke', file=sys.stderr); sys.exit({code})"


class Bench:
    """One installation with dummies for jobs."""

    def __init__(self, state: Path) -> None:
        self.state, self.instance = state, f"test-{uuid.uuid4().hex[:8]}"
        self.codes: dict[str, str] = {}
        self.runner = self.new_runner()
        self.supervisor = self.new_supervisor(self.runner)
        self.done: list[Action] = []

    def new_runner(self) -> LocalRunner:
        return LocalRunner(self.instance, lambda job: self.state / "logs" / f"{job.replace(':', '__')}.log")

    def new_supervisor(self, runner: LocalRunner, clock: Callable[[], float] | None = None) -> Supervisor:
        group = JobGroup(name="jobs", state=self.state, launch=self.launch, timing=QUICK)
        return Supervisor(group, runner) if clock is None else Supervisor(group, runner, clock)

    def launch(self, start: Start) -> Launch:
        return launch(self.state, Labels(self.instance, start.job, start.spec), self.codes.get(start.job, SLEEP))

    def tick(self, desired: dict[str, Desired]) -> list[Action]:
        actions = self.supervisor.tick(desired)
        self.done += actions
        return actions

    def pid(self, job: str) -> int | None:
        return next((process.pid for process in self.runner.list() if process.labels.job == job), None)

    def conditions(self, job: str) -> list[Condition]:
        return [action.condition for action in self.done if isinstance(action, Change) and action.job == job]
