"""Summarise a job's history: when a process ended and why, and when the next one worked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from tocsin.declare.model.sizes import printable
from tocsin.supervise.incidents.event_log import EventKind, JobEvent
from tocsin.supervise.job_states import Condition

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
