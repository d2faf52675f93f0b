"""Waiting in tests. A limit tells what hangs, and not how fast the machine is: it grows with what runs beside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

MOST = 4.0  # times the limit, however much runs beside


def patient(seconds: float) -> float:
    """`seconds` on a machine with a core for each process that wants one; longer now if there are fewer cores."""
    return seconds * min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), MOST)


def awaited(condition: Callable[[], object], seconds: float, *, every: float = 0.05) -> bool:
    """Whether `condition` comes true within `seconds` (see `patient`); asks each `every` seconds."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > patient(seconds):
            return False
        time.sleep(every)
    return True


def await_that(
    condition: Callable[[], object],
    seconds: float = 30.0,
    otherwise: Callable[[], object] = lambda: "",
    *,
    every: float = 0.05,
) -> None:
    """Wait for `condition`; fail with what `otherwise` says when it has not come true in time (see `awaited`)."""
    assert awaited(condition, seconds, every=every), f"not within {patient(seconds):.0f} s\n{otherwise()}"
