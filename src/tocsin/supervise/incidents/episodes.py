"""Summarise a job's history in episodes: when a process ended and why, and when the next one worked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from tocsin.declare.model.sizes import printable
from tocsin.supervise.incidents.chronicle import ChronicleEntry, What
from tocsin.supervise.job_states import Condition

_LOOP_SECONDS = 600.0
_ENDS = (What.END, What.STOP, What.REFUSED)


class Restart(BaseModel, frozen=True):
    """The last time a process of the job was started after another one: when, and why that one had ended."""

    at: float
    cause: str


class Episode(BaseModel, frozen=True):
    """The end of one process of a job, and what followed.

    Attributes:
        at: when it ended, or was asked to stop; the pauses count from then.
        failed: whether it was a failure.
        asked: whether it was asked to stop, for whatever reason.
        cause: in words.
        exit_code: minus the signal, or the code; null when it was asked to stop, or nobody was told.
        ran_seconds: how long it had run.
        condition: how the job fared then.
        restart_seconds: until the next process was started; null as long as none was.
        back_seconds: until the next process did its work; null as long as none has.
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
    """The end of a process, and when the next one worked."""

    event: ChronicleEntry
    forced: bool = False
    restarted_at: float | None = None
    back_at: float | None = None
    count: int = 1

    def is_told_again_by(self, event: ChronicleEntry) -> bool:
        """Return whether `event` is about the same process.

        One that was asked ends by force, or is found gone; what one leaves that ended by itself, its JVM, is ended.
        """
        same = event.what is not What.REFUSED if self.event.what is What.STOP else event.forced
        return self.restarted_at is None and self.event.what is not What.REFUSED and same


def episodes(events: Sequence[ChronicleEntry]) -> list[Episode]:
    """The ends among `events` (oldest first), the newest first."""
    found: list[_Ended] = []
    running = 0
    for event in events:
        is_open = bool(found) and found[-1].restarted_at is None
        if event.what is What.START:
            running = 1 if is_open else running + 1
            if is_open:
                found[-1].restarted_at = event.at
        elif event.what is What.WORKS:
            for one in (one for one in found if one.back_at is None):
                one.restarted_at = one.restarted_at or event.at
                one.back_at = event.at
        elif event.what in _ENDS and is_open and found[-1].is_told_again_by(event):
            found[-1].forced = found[-1].forced or event.forced
        elif event.what in _ENDS:
            # Where two run, the newer one has taken over from the one that is stopped; one that fails was to take over.
            at_once = event.at if running > 1 and not event.failed else None
            found.append(_Ended(event, restarted_at=at_once, back_at=at_once, count=1 + _absorbed(found, event)))
            running = max(0, running - 1)
    return [_episode(one) for one in reversed(found)]


def _absorbed(found: list[_Ended], event: ChronicleEntry) -> int:
    """Merge the ends in `found` that `event` repeats in a crash loop: the cause is shown once, with a count."""
    count = 0
    while event.condition is Condition.CRASH_LOOP and found and _repeats(event, found[-1].event):
        count += found.pop().count
    return count


def _repeats(event: ChronicleEntry, before: ChronicleEntry) -> bool:
    return before.failed and before.reason == event.reason and event.at - before.at < _LOOP_SECONDS


def last_restart(episodes: Sequence[Episode]) -> Restart | None:
    """The last start that followed an end, out of `episodes`; None when there was none."""
    for one in episodes:
        if one.restart_seconds is not None:
            return Restart(at=one.at + one.restart_seconds, cause=one.cause)
    return None


def _episode(one: _Ended) -> Episode:
    event = one.event
    ended_at = event.ended_at or event.at
    asked = event.what is What.STOP
    forced = "; it did not stop when asked, and was killed" if asked and one.forced and not event.forced else ""
    return Episode(
        at=ended_at,
        failed=event.failed or event.what is What.REFUSED,
        asked=asked,
        cause=printable(event.reason + forced + (f"; {one.count} times" if one.count > 1 else "")),
        exit_code=event.exit_code,
        ran_seconds=event.ran_seconds,
        condition="" if event.condition is None else str(event.condition),
        restart_seconds=None if one.restarted_at is None else max(0.0, one.restarted_at - ended_at),
        back_seconds=None if one.back_at is None else max(0.0, one.back_at - ended_at),
    )
