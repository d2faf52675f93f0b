"""Keep which detectors an operator has switched off, outside the database of whoever shows the switches.

A new metadata DB knows of no pause; what is kept here says which detectors must not start all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.detect.drain_request import read_drains
from tocsin.model.names import detector_job
from tocsin.runtime import state_file
from tocsin.supervision.job_states import UNREADABLE, Desired


@dataclass(frozen=True, kw_only=True)
class Switches:
    """The switches as they were read last.

    Attributes:
        off: by detector, whether it is switched off; one that is missing was never seen, and runs if its stage does.
        unreadable: detectors whose switch could not be read: their jobs are left alone.
        read_at: epoch seconds at which the reading began; 0 when there was none.
    """

    off: Mapping[str, bool] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    read_at: float = 0.0

    def applied(self, desired: Mapping[str, Desired]) -> dict[str, Desired]:
        """Those of `desired` that are switched on."""
        jobs = dict(desired)
        for name in self.unreadable:
            if detector_job(name) in jobs:
                jobs[detector_job(name)] = UNREADABLE
        for name, is_off in self.off.items():
            if is_off and name not in self.unreadable:
                jobs.pop(detector_job(name), None)
        return jobs


def read_switches(state: Path) -> Switches:
    """Read the switches in the state folder; empty if there is no such file, or a broken one."""
    return state_file.read(state / "supervision" / "desired.json", Switches, Switches())


def not_stopped(state: Path, declared: Mapping[str, Desired]) -> dict[str, Desired]:
    """Those of `declared` that no operator has stopped: not what was off at the last reading, nor what has drained."""
    return read_drains(state).applied(read_switches(state).applied(declared))


def ask_switches(state: Path, detectors: Iterable[str], is_off: Callable[[str], bool | None]) -> Switches:
    """Read the switch of each of `detectors`, and store them.

    Args:
        state: the state folder.
        detectors: all that are declared; others are forgotten.
        is_off: the switch of one; None when there is none yet. Any exception means that it cannot be read now.

    Raises:
        OSError: the state folder cannot be written.
    """
    before, began = read_switches(state), time.time()
    off, unreadable = {}, set()
    for name in detectors:
        try:
            switch = is_off(name)
        except Exception:  # whatever is wrong with the reading is no reason to start or stop a job
            switch = None
            unreadable.add(name)
        switch = before.off.get(name) if switch is None else switch
        if switch is not None:
            off[name] = switch
    switches = Switches(off=off, unreadable=frozenset(unreadable), read_at=began)
    state_file.write(state / "supervision" / "desired.json", Switches, switches)
    return switches


def note_turn(state: Path) -> None:
    """Note that somebody has just turned a switch, whichever.

    Raises:
        OSError: the state folder cannot be written.
    """
    state_file.write(state / "supervision" / "turned.json", float, time.time())


def turned_since(state: Path, switches: Switches) -> bool:
    """Return whether a switch was turned after `switches` were read."""
    return state_file.read(state / "supervision" / "turned.json", float, 0.0) >= switches.read_at > 0
