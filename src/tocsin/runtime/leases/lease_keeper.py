"""Keep the leases of this process: renew them from one thread, and end the process before one of them ends.

A lease counts from before its renewal was asked for, on a clock of this machine that nobody sets and that goes on while
the machine sleeps. The process ends a tenth of the length earlier, so that it has ended when somebody else may lead.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

import structlog

from tocsin.model.errors import ConfigError, TocsinError, TransientError
from tocsin.runtime import process_exit
from tocsin.runtime.leases.bounded_call import within
from tocsin.runtime.leases.lease_table import LeaseRow, LeaseTable
from tocsin.runtime.process_exit import ExitCode

RENEWALS = 12
"""In the length of a lease."""

_SPARE = 0.1
_QUIET = 0.25
_AGAIN_SECONDS = 1.0
_LAST_SECONDS = 3.0
log = structlog.get_logger()


class LeaseLost(TocsinError):
    """The lease of this process has ended, or is another's: nothing may be written any more. A retry does not help."""


def boot_seconds() -> float:
    """Read seconds since the machine has started, asleep or awake."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Contest:
    """Decides when the lease of another may be taken. Pure; `now` is a clock of this machine, in seconds.

    The database's clock alone does not decide, for it can be set: the lease must have ended by it, and the holder must
    have been seen to miss three renewals. Nor can that clock keep a lease for ever: one that is not renewed for all its
    length, as seen from here, has ended.
    """

    def __init__(self, length: float) -> None:
        self._length = length
        self._seen: dict[str, tuple[int, float]] = {}

    def may_take(self, row: LeaseRow | None, place: str, now: float) -> bool:
        """Return whether the lease that reads `row` may be taken from `place`, whose lock file the caller holds."""
        if row is None or row.ends_in is None or row.place == place:
            return True
        silent = self.watch(row, now)
        return silent >= self._length or (row.ends_in <= 0 and silent >= self._length * _QUIET)

    def watch(self, row: LeaseRow, now: float) -> float:
        """Return for how many seconds `row` has not changed, as seen from here."""
        beats, since = self._seen.get(row.name, (None, now))
        if beats != row.beats:
            self._seen[row.name] = row.beats, now
            return 0.0
        return now - since


class LeaseKeeper:
    """Takes and renews the leases of one process.

    Attributes:
        table: see there.
    """

    def __init__(
        self, table: LeaseTable, length: float, *, clock: Callable[[], float] = boot_seconds,
        end: Callable[[int], object] = os._exit,
    ) -> None:  # fmt: skip
        """Keep leases of `length` seconds; `end` ends the process with an exit code."""
        self.table, self._length, self._clock, self._end = table, length, clock, end
        self._contest = Contest(length)
        self._terms: dict[str, int] = {}
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._until = 0.0
        self._thread: threading.Thread | None = None
        self._trouble = ""
        self._lost: list[Callable[[str], object]] = []
        self._renewed: list[Callable[[float], object]] = []

    @property
    def remaining(self) -> float:
        """Seconds for which this process may go on as it is."""
        return self._until - self._clock()

    def on_lost(self, call: Callable[[str], object]) -> None:
        """Call this with the reason before the process ends; the first one stops what writes."""
        self._lost.append(call)

    def on_renewed(self, call: Callable[[float], object]) -> None:
        """Call this after each renewal with `remaining`."""
        self._renewed.append(call)

    def take(self, name: str, place: str, holder: str) -> int | LeaseRow:
        """Take the lease of `name`; returns its term, or the row of whoever holds it.

        Raises: as `LeaseTable`.
        """
        family = self.table.family(name)
        before, asked = family.get(name), self._clock()
        for row in family.values():  # whoever waits for a job sees its checkpoints fall silent too, and waits once
            self._contest.watch(row, asked)
        if not self._contest.may_take(before, place, asked):
            assert before is not None
            return before
        term = self.table.take(name, place, holder, before)
        if term is None:
            raise TransientError(f"{name} was taken just now")
        with self._lock:
            until = asked + self._length * (1 - _SPARE)
            self._until = min(until, self._until) if self._terms else until
            self._terms[name] = term
        log.info("lease taken", lease=name, term=term)
        self._begin()
        self.tell_renewed()  # the lease of a checkpoint is taken when what is to write there is there
        return term

    def give_back(self, name: str) -> None:
        """Stop renewing the leases of `name` and of what is below it, and free them if the database answers."""
        with self._lock:
            own = [one for one in self._terms if one == name or one.startswith(f"{name}/")]
            terms = {one: self._terms.pop(one) for one in own}
        if terms:
            with contextlib.suppress(TransientError, ConfigError):
                self.table.release(terms)

    def check(self, name: str, term: int) -> None:
        """Raise LeaseLost unless this process holds the lease of `name` in this term."""
        if self._terms.get(name) != term or self.remaining <= 0:
            raise LeaseLost(f"the lease of {name} has ended (term {term})")

    def lose(self, reason: str) -> None:
        """End this process because another one leads, or may soon; what writes is stopped first."""
        log.error("lease lost, process ends", reason=reason)
        for call in self._lost:
            with contextlib.suppress(Exception):
                within(_LAST_SECONDS, lambda call=call: call(reason))  # type: ignore[misc]  # bound at once
        self._end(process_exit.record(ExitCode.FAILED))

    def tell_renewed(self) -> None:
        """Tell all who want to know of renewals how long this process may go on."""
        for call in self._renewed:
            with contextlib.suppress(Exception):
                within(min(_LAST_SECONDS, self.remaining), lambda call=call: call(self.remaining))  # type: ignore[misc]

    def close(self) -> None:
        """Renew no more. The leases end by themselves, and the process does not: only for one that ends now."""
        self._wake.set()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="leases", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        pause = self._length / RENEWALS
        while not self._wake.wait(max(0.0, min(pause, self.remaining) if self._terms else pause)):
            if not self._terms:
                continue
            if self.remaining <= 0:
                why = self._trouble or "this process stood still"
                return self.lose(f"its lease could not be renewed for {self._length:g} s: {why}")
            gone = self.renew()
            if gone:
                return self.lose(f"another process has taken the lease of {gone}")
            pause = min(_AGAIN_SECONDS, self._length / RENEWALS) if self._trouble else self._length / RENEWALS

    def renew(self) -> str:
        """Renew all leases once; returns the name of one that is another's now, empty when none is."""
        asked = self._clock()
        with self._lock:
            terms = dict(self._terms)
        try:
            kept = within(min(self.remaining, self.table.patience), lambda: self.table.renew(terms))
        except (TransientError, ConfigError) as error:
            if not self._trouble:
                log.warning("lease not renewed, going on while it holds", reason=str(error), left=round(self.remaining))
            self._trouble = str(error)
            return ""
        if self._trouble:
            log.info("lease renewed again", after=self._trouble)
        self._trouble = ""
        with self._lock:
            gone = next((name for name in terms if name not in kept and name in self._terms), "")
            if self._terms.keys() <= terms.keys():  # one taken meanwhile was perhaps asked for earlier
                self._until = asked + self._length * (1 - _SPARE)
        if not gone:
            self.tell_renewed()
        return gone
