"""Record what supervision did to each job and why, for people who look later: one line an event, a file a job.

Nothing is decided from it: what supervision must remember is in `history`. A file is cut to its newer half when it has
grown too long, so a job that crashes for weeks hides neither its own last crash nor that of another job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import structlog
from pydantic import BaseModel, TypeAdapter, ValidationError

from tocsin.declare.model.names import file_name
from tocsin.declare.model.sizes import printable
from tocsin.supervise.job_states import Action, Actual, Change, Condition, History, Past, Start, Stop
from tocsin.supervise.restart_policy import end_reason

LIMIT_BYTES = 64 * 1024
_LONGEST = 400

log = structlog.get_logger()


class EventKind(StrEnum):
    """The kind of event in the life of a job."""

    START = "start"
    STOP = "stop"  # it was asked to stop, or ended by force; it did not end by itself
    END = "end"  # its process was found gone without having been asked
    REFUSED = "refused"  # it could not be started
    WORKS = "works"  # its process does its work for the first time since it was started
    CONDITION = "condition"  # it came into another condition


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """One thing that happened to a job.

    Attributes:
        ended_at: last sign of life of a process that ended by itself, perhaps long before `at`; None when unknown.
        exit_code: of a process that ended by itself: minus the signal, or the code; None when unknown, as when
            it was killed while its parent was gone.
        ran_seconds: how long the process had run that ended or was asked to stop; None for other events.
        failed: whether it counts as a failure: it ended by itself, was hung or took too much, or could not be started.
    """

    at: float
    what: EventKind
    reason: str
    condition: Condition | None = None
    exit_code: int | None = None
    ran_seconds: float | None = None
    ended_at: float | None = None
    forced: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Look:
    """One look of a supervisor: what it found, what it does, and what it remembers before and after."""

    at: float
    actual: Actual
    before: History
    after: History
    actions: Sequence[Action]

    def events(self) -> list[tuple[str, JobEvent]]:
        """List the events, each with its job: ends, then what is done about them, in order."""
        pasts, runs = self.before.jobs, self.actual.runs
        ended = [job for job, past in pasts.items() if past.expected and not runs(job, past.spec)]
        before = {job: past.works for job, past in self.before.jobs.items()}
        started = [job for job, past in self.after.jobs.items() if past.works and not before.get(job)]
        events = [(job, self._end(job)) for job in ended]
        events += [(job, JobEvent(at=self.at, what=EventKind.WORKS, reason="works")) for job in started]
        return events + [(action.job, self._event(action)) for action in self.actions]

    def _end(self, job: str) -> JobEvent:
        after, cause = self.after.jobs.get(job, Past()), self.actual.causes.get(job)
        ended_at = self.actual.ended.get(job)
        return JobEvent(
            at=self.at,
            what=EventKind.END,
            reason=end_reason(self.actual.exits.get(job), "" if cause is None else str(cause)),
            condition=after.condition,
            exit_code=self.actual.exits.get(job),
            ran_seconds=max(0.0, (ended_at or self.at) - self.before.jobs[job].started_at),
            ended_at=ended_at,
            failed=True,
        )

    def _event(self, action: Action) -> JobEvent:
        after = self.after.jobs.get(action.job, Past())
        if isinstance(action, Change):
            return JobEvent(at=self.at, what=EventKind.CONDITION, reason=action.reason, condition=action.condition)
        if isinstance(action, Start):
            return JobEvent(at=self.at, what=EventKind.START, reason=action.reason, condition=after.condition)
        return JobEvent(
            at=self.at,
            what=EventKind.STOP,
            reason=action.reason,
            condition=after.condition,
            ran_seconds=self._ran(action),
            forced=action.force,
            failed=self.at in after.failures,
        )

    def _ran(self, stop: Stop) -> float | None:
        started = next((process.started_at for process in self.actual.live if process.pid == stop.pid), None)
        return None if started is None else max(0.0, self.at - started)


_EVENT = TypeAdapter(JobEvent)


def event_log_path(state: Path, job: str) -> Path:
    """The file of `job`; its time changes with each event."""
    return state / "supervision" / "chronicle" / f"{file_name(job)}.jsonl"


def record(state: Path, events: Iterable[tuple[str, JobEvent]]) -> None:
    """Write each event to the file of its job. Only one supervisor may do so at a time; it looks under a lock.

    Never raises OSError: a full disk is no reason not to supervise. Then it is logged, and forgotten.
    """
    for job, event in events:
        try:
            _append(
                event_log_path(state, job), _EVENT.dump_json(replace(event, reason=event.reason[:_LONGEST])) + b"\n"
            )
        except OSError as error:
            log.warning(
                "event of a job not recorded", of=job, what=str(event.what), reason=event.reason, error=str(error)
            )


def read_events(state: Path, job: str) -> list[JobEvent]:
    """Read the events of `job`, oldest first, without lines that a crash tore; empty when they cannot be read."""
    try:
        lines = event_log_path(state, job).read_bytes().splitlines()
    except OSError:
        return []
    return [event for line in lines if (event := _parse(line)) is not None]


def _parse(line: bytes) -> JobEvent | None:
    try:
        return _EVENT.validate_json(line)
    except ValidationError:
        return None


def _append(path: Path, line: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        size = file.tell()
        file.seek(max(0, size - LIMIT_BYTES // 2))
        newer = file.read()
        if newer and not newer.endswith(b"\n"):
            line = b"\n" + line  # the last one was torn by a crash, and must not swallow this one
        if size + len(line) <= LIMIT_BYTES:
            file.write(line)
            return
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(newer.partition(b"\n")[2] + line)
    draft.replace(path)


_LOOP_SECONDS = 600.0
_ENDS = (EventKind.END, EventKind.STOP, EventKind.REFUSED)


class Restart(BaseModel, frozen=True):
    """The last time a process of the job was started after another one: when, and why that one had ended."""

    at: float
    cause: str


class ProcessEnd(BaseModel, frozen=True):
    """The end of one process of a job, and what followed.

    Attributes:
        exit_code: minus the signal, or the code; null when it was asked to stop, or unknown.
    """

    at: float
    failed: bool
    asked: bool
    cause: str
    exit_code: int | None = None
    ran_seconds: float | None = None
    condition: str = ""
    restart_seconds: float | None = None
    back_seconds: float | None = None


@dataclass
class _Ended:
    event: JobEvent
    forced: bool = False
    restarted_at: float | None = None
    back_at: float | None = None
    count: int = 1

    def is_repeated_by(self, event: JobEvent) -> bool:
        """Return whether `event` is about the same process.

        One that was asked ends by force, or is found gone; what one leaves that ended by itself, its JVM, is ended.
        """
        same = event.what is not EventKind.REFUSED if self.event.what is EventKind.STOP else event.forced
        return self.restarted_at is None and self.event.what is not EventKind.REFUSED and same


def process_ends(events: Sequence[JobEvent]) -> list[ProcessEnd]:
    """The ends among `events` (oldest first), the newest first."""
    found: list[_Ended] = []
    running = 0
    for event in events:
        is_open = bool(found) and found[-1].restarted_at is None
        if event.what is EventKind.START:
            running = 1 if is_open else running + 1
            if is_open:
                found[-1].restarted_at = event.at
        elif event.what is EventKind.WORKS:
            for end in (end for end in found if end.back_at is None):
                end.restarted_at = end.restarted_at or event.at
                end.back_at = event.at
        elif event.what in _ENDS and is_open and found[-1].is_repeated_by(event):
            found[-1].forced = found[-1].forced or event.forced
        elif event.what in _ENDS:
            # Where two run, the newer one has taken over from the one that is stopped; one that fails was to take over.
            at_once = event.at if running > 1 and not event.failed else None
            found.append(_Ended(event, restarted_at=at_once, back_at=at_once, count=1 + _absorb(found, event)))
            running = max(0, running - 1)
    return [_process_end(end) for end in reversed(found)]


def _absorb(found: list[_Ended], event: JobEvent) -> int:
    """Merge the ends in `found` that `event` repeats in a crash loop: the cause is shown once, with a count."""
    count = 0
    while event.condition is Condition.CRASH_LOOP and found and _repeats(event, found[-1].event):
        count += found.pop().count
    return count


def _repeats(event: JobEvent, before: JobEvent) -> bool:
    return before.failed and before.reason == event.reason and event.at - before.at < _LOOP_SECONDS


def last_restart(process_ends: Sequence[ProcessEnd]) -> Restart | None:
    """The last start that followed an end, out of `process_ends`; None when there was none."""
    for end in process_ends:
        if end.restart_seconds is not None:
            return Restart(at=end.at + end.restart_seconds, cause=end.cause)
    return None


def _process_end(end: _Ended) -> ProcessEnd:
    event = end.event
    ended_at = event.ended_at or event.at
    asked = event.what is EventKind.STOP
    forced = "; it did not stop when asked, and was killed" if asked and end.forced and not event.forced else ""
    return ProcessEnd(
        at=ended_at,
        failed=event.failed or event.what is EventKind.REFUSED,
        asked=asked,
        cause=printable(event.reason + forced + (f"; {end.count} times" if end.count > 1 else "")),
        exit_code=event.exit_code,
        ran_seconds=event.ran_seconds,
        condition="" if event.condition is None else str(event.condition),
        restart_seconds=None if end.restarted_at is None else max(0.0, end.restarted_at - ended_at),
        back_seconds=None if end.back_at is None else max(0.0, end.back_at - ended_at),
    )
