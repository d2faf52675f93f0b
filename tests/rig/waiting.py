"""Waiting in tests. A limit tells what hangs, and not how fast the machine is: it grows with what runs beside."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST = 4.0  # times the limit, however much runs beside
# What a test asks (a topic read from its beginning, a page of Airflow) takes time from what it waits for: it rests for
# this many times as long as the last answer took, up to a second.
_REST, _LONGEST_REST = 4.0, 1.0


def patient(seconds: float) -> float:
    """`seconds` on a machine with a core for each process that wants one; longer now if there are fewer cores."""
    return seconds * min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), MOST)


def awaited(condition: Callable[[], object], seconds: float, *, every: float = 0.05) -> bool:
    """Wait until `condition` is true, for `seconds` at most (see `patient`); false if it did not come true.

    Asks each `every` seconds, and less often if the answer takes long.
    """
    begun = asked = time.monotonic()
    while not condition():
        answered = time.monotonic()
        if answered - begun > patient(seconds):
            return False
        time.sleep(max(every, min(_REST * (answered - asked), _LONGEST_REST)))
        asked = time.monotonic()
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


@contextmanager
def repeated(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do `action` again and again, so many seconds apart, until the end of the block."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(seconds):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
