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
from pydantic import TypeAdapter, ValidationError

from tocsin.declare.model.names import file_name
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
