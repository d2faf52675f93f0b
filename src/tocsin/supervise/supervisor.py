"""Brings what runs into line with what should run, one look at a time. Whoever calls `tick` supervises.

Any number of callers may: each look is taken under a lock, all that must be remembered is in a file, and all that runs
is found in the process list.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import FailureCause, JobState
from tocsin.platform.heartbeat import Beat, beats_since, note_look, read_beat
from tocsin.platform.lock import LockHeld, hold
from tocsin.supervise.incidents.event_log import EventKind, JobEvent, Look, read_events, record
from tocsin.supervise.job_states import (
    Action,
    Actual,
    Change,
    Condition,
    Desired,
    History,
    Live,
    Past,
    Start,
    Stop,
    Timing,
    memory_of,
    read_history,
    write_history,
)
from tocsin.supervise.planning.desired_inputs import note_start
from tocsin.supervise.restart_policy import plan_restart, reconcile, under_way
from tocsin.supervise.runners.runner import Launch, Process, Runner

_FORCED_SECONDS = 5.0
_LOCK_SECONDS = 10.0
_SAME_START_SECONDS = 1.0
_LONGEST_CAUSE = 300
_STACK, _STACK_LINES = "Timeout (", 2000  # of a log are searched for the last stack
_DECLARED_FRAME = re.compile(r'File "[^"]*/((?:detectors|flows|views)/[^"/]+\.py)", line (\d+)')

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class JobGroup:
    """The jobs of a supervisor; `name` is of the lock and the memory in `state`, `launch` may raise ConfigError."""

    name: str
    state: Path
    launch: Callable[[Start], Launch]
    timing: Timing = field(default_factory=Timing)


class Supervisor:
    """Keeps the processes of one group as they should be."""

    def __init__(self, group: JobGroup, runner: Runner, clock: Callable[[], float] = time.time) -> None:
        self._group, self._runner, self._clock = group, runner, clock
        self._memory = memory_of(group.state, group.name)
        self._lock = self._memory.with_suffix(".lock")

    def tick(self, desired: Mapping[str, Desired] | None, *, is_look: bool = True) -> list[Action]:
        """Look once, and act; returns what was done. With `is_look` it is a sign of life of supervision.

        Nothing is done when another supervisor is looking at this moment, or while a cluster does not tell what runs
        there. `desired` is in the order of starts; None when it cannot be read: then all is left alone. Raises OSError
        if the state folder cannot be written: nothing was done, and a retry helps once it can be.
        """
        try:
            with hold(self._lock):
                return self._tick(desired, is_look=is_look)
        except LockHeld:
            return []
        except TransientError as error:
            log.warning("jobs left alone", reason=str(error))
            return []

    def diff(self, desired: Mapping[str, Desired]) -> frozenset[str]:
        """The jobs that a look would now do something about, or whose end it would count; nothing is done."""
        history, actions, after = self._plan(desired)
        jobs = history.jobs.keys() | after.jobs.keys()
        changed = {job for job in jobs if _life(history.jobs.get(job)) != _life(after.jobs.get(job))}
        return frozenset(changed | {action.job for action in actions})

    def starts(self, desired: Mapping[str, Desired]) -> frozenset[str]:
        """The jobs that a look would now start; nothing is done."""
        return frozenset(action.job for action in self._plan(desired)[1] if isinstance(action, Start))

    def under_way(self, desired: Mapping[str, Desired], seconds: float) -> bool:
        """Return whether a job is stopping, or starts within `seconds`, so that a look is due soon."""
        return under_way(desired, read_history(self._memory), self._clock() + seconds)

    def restart(self, job: str) -> bool:
        """Ask the process of `job` to stop, so that the next look starts it at once; returns whether there was one.

        It counts as no failure, and ends a back-off. Whoever looks sees to it that the process stops in time.

        Raises:
            TransientError: another supervisor looks for longer than 10 seconds; a retry helps.
            OSError: the state folder cannot be written.
        """
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                with hold(self._lock):
                    return self._restart(job)
            except LockHeld as error:
                if time.monotonic() > deadline:
                    raise TransientError(f"{job} is not restarted: {error}") from error
                time.sleep(0.1)

    def excuse_ends(self) -> None:
        """Record that processes gone by now ended with the stack: no failures. Raises OSError if it cannot write."""
        with hold(self._lock):
            history = read_history(self._memory)
            there = {(process.labels.job, process.labels.spec) for process in self._runner.list() if process.leader}
            gone = {job: past for job, past in history.jobs.items() if past.expected and (job, past.spec) not in there}
            for job in gone:
                self._note(job, EventKind.END, "ended with the stack")
            excused = {job: replace(past, expected=False) for job, past in gone.items()}
            if gone:
                write_history(self._memory, replace(history, jobs={**history.jobs, **excused}))

    def pasts(self) -> Mapping[str, Past]:
        """Return what is remembered of each job."""
        return read_history(self._memory).jobs

    def stop(self, seconds: float, *jobs: str) -> None:
        """Stop all, or `jobs` alone; wait for them up to `seconds`, then end what is left, waiting 5 seconds more."""
        for process in self._live(jobs):
            log.info("stop", of=process.labels.job, pid=process.pid, reason="shutdown", force=seconds <= 0)
            ran = max(0.0, self._clock() - process.started_at)
            self._note(process.labels.job, EventKind.STOP, "shutdown", ran)
            self._runner.stop(process, force=not process.leader)
        for patience in (seconds, _FORCED_SECONDS):
            deadline = time.monotonic() + patience
            while (left := self._live(jobs)) and time.monotonic() < deadline:
                time.sleep(0.1)
            for process in left:
                log.warning("process killed", of=process.labels.job, pid=process.pid)
                self._runner.stop(process, force=True)

    def _live(self, jobs: Collection[str]) -> list[Process]:
        return [process for process in self._runner.list() if not jobs or process.labels.job in jobs]

    def _plan(self, desired: Mapping[str, Desired]) -> tuple[History, list[Action], History]:
        """What is remembered, what a look would now do, and what it would remember then."""
        history = read_history(self._memory)
        actual = self._actual(self._runner.list(), history)
        return history, *reconcile(desired, actual, history, self._clock(), self._group.timing)

    def _tick(self, desired: Mapping[str, Desired] | None, *, is_look: bool) -> list[Action]:
        history = read_history(self._memory)
        processes = self._runner.list()
        actual, now = self._actual(processes, history), self._clock()
        actions, after = reconcile(desired, actual, history, now, self._group.timing)
        if after != history:
            write_history(self._memory, after)  # before acting: the end of a forgotten start would be no failure
        for start in (action for action in actions if isinstance(action, Start)):
            self._note_start(start.job, (desired or {}).get(start.job))
        self._do(Look(now, actual, history, after, actions), processes)
        if desired is not None and is_look:
            note_look(self._group.state, self._group.name)
        return actions

    def _note_start(self, job: str, wanted: Desired | None) -> None:
        """Note what `job` is started with; a full disk is no reason not to start it."""
        try:
            if wanted is not None and wanted.inputs:
                note_start(self._group.state, job, wanted)
        except OSError as error:
            log.warning("start not recorded", of=job, error=str(error))

    def _restart(self, job: str) -> bool:
        history = read_history(self._memory)
        processes = self._runner.list()
        actual, now = self._actual(processes, history), self._clock()
        stops, after = plan_restart(job, actual, history, now)
        write_history(self._memory, after)
        self._do(Look(now, actual, history, after, stops), processes)
        return bool(stops)

    def _do(self, look: Look, processes: Sequence[Process]) -> None:
        record(self._group.state, look.events())
        by_pid = {process.pid: process for process in processes}
        for action in look.actions:
            self._act(action, by_pid)

    def _note(self, job: str, what: EventKind, reason: str, ran_seconds: float | None = None) -> None:
        event = JobEvent(at=self._clock(), what=what, reason=reason, ran_seconds=ran_seconds)
        record(self._group.state, [(job, event)])

    def _actual(self, processes: Sequence[Process], history: History) -> Actual:
        actual = Actual(live=[self._live_process(process) for process in processes])
        pasts = history.jobs.items()
        gone = {job: past for job, past in pasts if past.expected and not actual.runs(job, past.spec)}
        refused = {job: cause for job in gone if (cause := self._refusal(job)) is not None}
        since = {job: past.started_at - _SAME_START_SECONDS for job, past in gone.items()}
        beats = {job: beats_since(self._group.state, job, at) for job, at in since.items()}
        causes = {job: _cause(own) for job, own in beats.items()} | refused
        codes = {job: self._runner.exit_code(job) for job in history.jobs if job not in refused}
        return replace(
            actual,
            exits={job: code for job, code in codes.items() if code is not None},
            causes={job: cause for job, cause in causes.items() if cause is not None},
            ended={job: self._clock() - min(beat.age_seconds for beat in own) for job, own in beats.items() if own},
        )

    def _refusal(self, job: str) -> FailureCause | None:
        """Why the last start of `job` came to nothing; None when there was a process."""
        last = read_events(self._group.state, job)[-1:]
        return (
            FailureCause(what=last[0].reason[:_LONGEST_CAUSE]) if last and last[0].what is EventKind.REFUSED else None
        )

    def _live_process(self, process: Process) -> Live:
        beside = self._beat(process, beside=True)  # first: it goes when the other one is there, and not before
        leading = self._beat(process, beside=False)
        beat = leading or beside
        stalled = beat.report.stalled_seconds if beat else 0.0
        is_hung = stalled > self._group.timing.stalled_after
        return Live(
            job=process.labels.job,
            pid=process.pid,
            spec=process.labels.spec,
            started_at=process.started_at,
            beat_at=self._clock() - beat.age_seconds if beat else None,
            rss_bytes=beat.report.rss_bytes if beat else 0,
            stalled_seconds=stalled,
            stuck_at=stuck_at(self._runner.logs(process.labels.job, _STACK_LINES)) if is_hung else "",
            leader=process.leader,
            leads=leading is not None,
            ready=beat is not None and beat.report.state is JobState.READY,
            works=leading is not None and leading.report.works,
            unproven=beat is not None and beat.report.is_unproven,
            restarts=process.restarts,
        )

    def _beat(self, process: Process, *, beside: bool) -> Beat | None:
        beat = read_beat(self._group.state, process.labels.job, beside=beside)
        return beat if beat is not None and beat.report.pid == process.pid else None

    def _act(self, action: Action, processes: Mapping[int, Process]) -> None:
        if isinstance(action, Change):
            say = log.info if action.condition is Condition.FINE else log.warning
            say("condition", of=action.job, condition=str(action.condition), reason=action.reason)
        elif isinstance(action, Stop):
            log.info("stop", of=action.job, pid=action.pid, reason=action.reason, force=action.force)
            self._runner.stop(processes[action.pid], force=action.force)
        else:
            self._start(action)

    def _start(self, action: Start) -> None:
        """Start a job; one that cannot be started is found missing by the next look, which counts it as failed."""
        try:
            pid = self._runner.start(self._group.launch(action))
        except (ConfigError, OSError) as error:
            log.error("start failed", of=action.job, error=str(error))
            self._note(action.job, EventKind.REFUSED, f"cannot be started: {error}")
        else:
            log.info("start", of=action.job, pid=pid, reason=action.reason)


def stuck_at(log: Sequence[str]) -> str:
    """Find in the last stack in `log` the innermost line of a declared file, as `detectors/x.py:12`; "" if in none.

    Python workers write one when one task has kept them busy for long; see `tocsin.spark.session`.
    """
    begin = max((number for number, line in enumerate(log) if line.startswith(_STACK)), default=len(log))
    found = (_DECLARED_FRAME.search(line) for line in log[begin:])
    return next((f"{match[1]}:{match[2]}" for match in found if match), "")


def _cause(beats: Sequence[Beat]) -> FailureCause | None:
    """Why a process failed, as it said itself in its last `beats`; None when it said nothing."""
    for report in (beat.report for beat in beats if beat.report.state is JobState.FAILED):
        cause = report.cause or FailureCause(what=report.reason)
        return cause.model_copy(update={"what": " ".join(cause.what.split())[:_LONGEST_CAUSE]})
    return None


def _life(past: Past | None) -> object:
    """Select from a job's memory what tells of its state; the exact time of a start, say, does not."""
    return past and (past.expected, past.failures, past.works)
