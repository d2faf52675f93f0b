"""Decide what to do about jobs: a pure function from what should run, what runs and what happened before, to actions.

For each job in this order: stop it if it is not desired; stop what is double, hung, over its memory, or started from
another spec; start it if nothing of it is there and its back-off is over. The first failure restarts at once, the next
ones after a delay that doubles up to a bound. Several failures within a time are a crash loop, however long each
attempt took: said once, and still tried at the bound. They are forgotten after that time, or when the spec changes.

A job that hands over is not stopped for a changed spec: the new process starts beside the old one, which is stopped
when the new one says that it is ready. As long as the new one fails, the old one runs on.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from tocsin.declare.model.durations import span
from tocsin.declare.model.job_report import FailureCause
from tocsin.platform.process_exit import ExitCode
from tocsin.supervise.job_states import (
    HUNG,
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
)


def reconcile(
    desired: Mapping[str, Desired] | None, actual: Actual, history: History, now: float, timing: Timing | None = None
) -> tuple[list[Action], History]:
    """Decide the actions that bring `actual` nearer to `desired`, and what to remember for the next call.

    `desired` is in the order of starts; with None, as it cannot be read, all is left alone. `history` is from the last
    call.
    """
    if desired is None:
        return [], history
    hosts = {job for job, wanted in desired.items() if wanted.hosts_jobs}
    round_ = _Round(actual, now, timing or Timing(), history, hosts)
    jobs = dict.fromkeys([*desired, *history.jobs, *(process.job for process in actual.live)])
    pasts = {job: round_.job(job, desired.get(job), history.jobs.get(job, Past())) for job in jobs}
    remembered = {job: past for job, past in pasts.items() if past is not None}
    return round_.actions, History(jobs=remembered, heavy_start_at=round_.heavy_start_at)


def plan_restart(job: str, actual: Actual, history: History, now: float) -> tuple[list[Stop], History]:
    """Stop `job` so that the next call of `reconcile` starts it at once; also return what to remember for that."""
    past = history.jobs.get(job, Past())
    live = [process for process in actual.live if process.job == job and process.pid not in past.asked]
    stops = [Stop(job, process.pid, "a restart was asked for", force=not process.leader) for process in live]
    stopping = {**past.asked, **{process.pid: now for process in live}}
    past = replace(past, expected=False, failures=(), retry_at=0.0, first=None, asked=stopping)
    return stops, replace(history, jobs={**history.jobs, job: past})


def under_way(desired: Mapping[str, Desired], history: History, until: float) -> bool:
    """Return whether a process is stopping, or a job starts before `until`."""
    pasts = {job: history.jobs.get(job, Past()) for job in desired}
    due = (
        wanted.readable and not pasts[job].expected and pasts[job].retry_at <= until for job, wanted in desired.items()
    )
    return any(past.asked for past in history.jobs.values()) or any(due)


class _Round:
    def __init__(self, actual: Actual, now: float, timing: Timing, history: History, hosts: Set[str]) -> None:
        self.actions: list[Action] = []
        self.heavy_start_at = history.heavy_start_at
        self._actual, self._now, self._timing = actual, now, timing
        stopping = {(job, pid) for job, past in history.jobs.items() for pid in past.asked}
        specs = {(p.job, p.spec) for p in actual.live if p.leader and (p.job, p.pid) not in stopping}
        self._handing_over = {job for job, count in Counter(job for job, _ in specs).items() if count > 1} - hosts

    def job(self, job: str, wanted: Desired | None, past: Past) -> Past | None:
        """Act on one job; what to remember of it, None for nothing."""
        live = sorted((p for p in self._actual.live if p.job == job), key=lambda p: (p.started_at, p.pid))
        past = self._settle(job, live, past)
        if wanted is not None and not wanted.readable:
            return past
        if wanted is None:
            return replace(self._stop(live, past, "should not run"), expected=False) if live else None
        if past.spec and past.spec != wanted.spec and past.condition is not Condition.FINE:
            past = self._change_condition(job, past, Condition.FINE, "changed")
        if past.spec != wanted.spec:
            past = replace(past, failures=(), retry_at=0.0, first=None)
        chosen = next((p for p in live if self._fault(p, wanted) is None and p.pid not in past.asked), None)
        before = None if chosen is not None and (chosen.leads or chosen.ready) else self._before(live, wanted, past)
        for process in live:
            if process not in (chosen, before):
                past = self._dismiss(process, wanted, past)
        if chosen is not None:
            works = chosen.works or (past.works and past.started_at == chosen.started_at)
            return replace(past, spec=chosen.spec, started_at=chosen.started_at, expected=True, works=works)
        if before is not None:
            return self._start_beside(job, wanted, past) if live == [before] else past
        return past if live else self._start(job, wanted, past)

    def _before(self, live: list[Live], wanted: Desired, past: Past) -> Live | None:
        """The process that runs on until one from the wanted spec can take over; None when there is none."""
        if not wanted.hands_over:
            return None
        others = [p for p in live if p.spec != wanted.spec and p.leader and p.pid not in past.asked]
        sound = [p for p in others if self._failure(p, wanted) is None]
        return min(sound, key=lambda p: not p.leads, default=None)  # of equals the oldest

    def _settle(self, job: str, live: list[Live], past: Past) -> Past:
        stopping = {pid: at for pid, at in past.asked.items() if any(p.pid == pid for p in live)}
        past = replace(past, asked=stopping)
        if past.expected and not self._actual.runs(job, past.spec):
            runs_on = any(p.leader and p.pid not in stopping for p in live)
            return self._count_end(job, past, self._actual.exits.get(job), runs_on)
        own = [p for p in live if p.spec == past.spec]
        restarts = max((p.restarts or 0 for p in own if p.pid not in stopping), default=0)
        if restarts > past.seen:
            code, cause = self._actual.exits.get(job), self._actual.causes.get(job)
            reason = end_reason(code, "" if cause is None else str(cause))
            return self._count_failure(job, replace(past, seen=restarts), reason, code)
        past = replace(past, seen=restarts)
        started = min((p.started_at for p in own if p.pid not in stopping), default=self._now)
        patience = (
            _UNLOCKED * self._timing.locked_retry if past.condition is Condition.LOCKED else self._timing.healthy_after
        )
        stalled = max((p.stalled_seconds for p in own), default=0.0)
        is_unproven = past.condition is not Condition.LOCKED and any(p.unproven for p in own)
        if is_unproven or self._now - started - stalled < patience:
            return past
        recent = tuple(at for at in past.failures if at > self._now - self._timing.crash_loop_window)
        past = replace(past, failures=recent, first=past.first if recent else None)
        return self._change_condition(job, past, Condition.FINE, "recovered")

    def _count_end(self, job: str, past: Past, code: int | None, runs_on: bool) -> Past:
        """The job ended by itself; if it `runs_on`, a process of another version is still there."""
        past = replace(past, expected=False)
        cause = self._actual.causes.get(job)
        reason = end_reason(code, "" if cause is None else str(cause))
        reason = f"{reason}; the version before keeps running" if runs_on else reason
        if code == ExitCode.LOCKED:
            past = replace(past, retry_at=self._now + self._timing.locked_retry)
            return self._change_condition(job, past, Condition.LOCKED, reason)
        return self._count_failure(job, past, reason, code)

    def _count_failure(self, job: str, past: Past, reason: str, code: int | None = None, stalled: float = 0.0) -> Past:
        """One failure more, and the delay that follows from it. The first cause stays, however many follow.

        The time for which it has `stalled` is no healthy one, and failures may lie further apart by it. A run that
        was longer than `healthy_after` needs no delay: the next one will hardly end sooner.
        """
        timing, now = self._timing, self._now
        lasted = now - past.started_at - stalled >= timing.healthy_after
        since = now - timing.crash_loop_window - timing.crash_loop_failures * stalled
        failures = (*(at for at in past.failures if at > since), now)
        doubled = timing.first_delay * 2 ** (len(failures) - 2)
        delay = 0.0 if lasted or len(failures) == 1 else min(timing.longest_delay, doubled)
        first = past.first if len(failures) > 1 and past.first else self._actual.causes.get(job)
        first = first or FailureCause(what=reason)
        condition = Condition.RESTARTING
        if code in _LASTING:
            condition, delay = _LASTING[ExitCode(code)], timing.longest_delay
        elif len(failures) >= timing.crash_loop_failures:
            condition, delay = Condition.CRASH_LOOP, 0.0 if lasted else timing.longest_delay
            last = "" if str(first) in reason else f"; the last: {reason}"
            reason = f"{len(failures)} failures within {span(timing.crash_loop_window)}, the first: {first}{last}"
        past = replace(past, failures=failures, retry_at=now + delay, first=first, restarts=past.restarts + 1)
        return self._change_condition(job, past, condition, reason)

    def _change_condition(self, job: str, past: Past, condition: Condition, reason: str) -> Past:
        if condition is not past.condition:
            self.actions.append(Change(job, condition, reason))
        return replace(past, condition=condition, reason="" if condition is Condition.FINE else reason)

    def _fault(self, process: Live, wanted: Desired) -> str | None:
        if not process.leader:
            return "lost its leader"
        if process.spec != wanted.spec:
            return _OTHER_SPEC
        return self._failure(process, wanted)

    def _failure(self, process: Live, wanted: Desired) -> str | None:
        if wanted.memory_bytes is not None and process.rss_bytes > wanted.memory_bytes:
            taken, allowed = process.rss_bytes / 1e6, wanted.memory_bytes / 1e6
            return f"memory limit: takes {taken:.0f} MB of {allowed:.0f} MB"
        if not wanted.beats:
            return None
        if process.stalled_seconds > self._timing.stalled_after:
            where = f"; a worker is at {process.stuck_at}" if process.stuck_at else ""
            return f"{HUNG}: it is alive, but made no progress for {process.stalled_seconds:.0f} s{where}"
        if process.restarts is not None:
            return None  # its node looks at the heartbeat
        grace = self._timing.start_grace if process.beat_at is None else self._timing.stale_after
        silent = self._now - (process.started_at if process.beat_at is None else process.beat_at)
        return f"{HUNG}: no heartbeat for {silent:.0f} s" if silent > grace else None

    def _dismiss(self, process: Live, wanted: Desired, past: Past) -> Past:
        """Stop one process that may not stay; one that hangs or takes too much memory has failed."""
        fault = self._fault(process, wanted)
        if fault is not None and fault == self._failure(process, wanted) and process.pid not in past.asked:
            past = replace(past, started_at=process.started_at)
            past = self._count_failure(process.job, past, fault, stalled=process.stalled_seconds)
        if wanted.hands_over and process.spec != wanted.spec:
            fault = "handing over to another version" if fault == _OTHER_SPEC else fault
        reason = fault or ("was asked to stop" if process.pid in past.asked else "runs twice")
        return self._stop([process], replace(past, expected=False), reason)

    def _stop(self, processes: Sequence[Live], past: Past, reason: str) -> Past:
        """Ask each to stop, once; end it when it has not done so in time, or has nobody to ask."""
        stopping = dict(past.asked)
        for process in processes:
            at = stopping.setdefault(process.pid, self._now)
            # `at` is in the future after the clock was set back.
            force = not process.leader or not 0 <= self._now - at < self._timing.stop_grace
            if force or at == self._now:
                self.actions.append(Stop(process.job, process.pid, reason, force))
        return replace(past, asked=stopping)

    def _start_beside(self, job: str, wanted: Desired, past: Past) -> Past:
        """Start what takes over from the process that runs, if its time has come and not too many do that already."""
        is_free = wanted.hosts_jobs or job in self._handing_over
        if not is_free and len(self._handing_over) >= self._timing.hand_overs:
            return past
        after = self._start(job, wanted, past, beside=True)
        if after is not past and not wanted.hosts_jobs:
            self._handing_over.add(job)
        return after

    def _start(self, job: str, wanted: Desired, past: Past, *, beside: bool = False) -> Past:
        if not self._due(past.retry_at, self._timing.longest_delay):
            return past
        if wanted.heavy and not self._due(self.heavy_start_at + self._timing.stagger, self._timing.stagger):
            return past
        if wanted.heavy:
            self.heavy_start_at = self._now
        first = "takes over from the running version" if beside else "should run"
        reason = f"restart {len(past.failures)}: {past.reason}" if past.failures else first
        self.actions.append(Start(job, wanted.spec, reason, beside, wanted.memory_bytes))
        return replace(past, spec=wanted.spec, started_at=self._now, expected=True, works=False, seen=0)

    def _due(self, at: float, longest: float) -> bool:
        """Return whether `at` has come. Further away than `longest` it cannot be: the clock was set back."""
        return self._now >= at or at - self._now > longest


_OTHER_SPEC = "runs from another spec"
# A copy that finds the lock held has ended after so many retries, so one that is still there has got it.
_UNLOCKED = 4

_LASTING = {ExitCode.MISCONFIGURED: Condition.MISCONFIGURED, ExitCode.UNWRITABLE: Condition.NO_ROOM}


def end_reason(code: int | None, cause: str = "") -> str:
    """Say how a process ended, from its exit code and the `cause` that it reported, or that kept it from starting."""
    words: dict[int | None, str] = {
        None: "ended without an exit code: killed by the kernel (out of memory) or by somebody",
        ExitCode.OK: "ended with exit code 0 without being asked",
        ExitCode.MISCONFIGURED: "its configuration is wrong",
        ExitCode.LOCKED: "another process holds its lock",
        ExitCode.UNWRITABLE: "the disk is full, or the state folder cannot be written",
    }
    if code is None and cause:
        return cause
    if code is not None and code < 0:
        return f"was killed by signal {-code} ({_signal(-code)})"
    sentence = words.get(code, f"failed with exit code {code}")
    return f"{sentence}: {cause}" if code and cause else sentence


def _signal(number: int) -> str:
    return signal.Signals(number).name if number in signal.Signals.__members__.values() else "unknown"
