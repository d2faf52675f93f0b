"""A limit for the time that the code of a declared file may take before its job runs."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tocsin.declare.model.errors import ConfigError

LONGEST_SECONDS = 60.0
_AGAIN_SECONDS = 1.0
_DEAF_SECONDS = 30.0


class _Overrun(BaseException):
    """Raised inside the code that takes too long; no `except Exception` of its own catches it."""

    def __init__(self, line: int | None) -> None:
        self.line = line
        super().__init__()


@contextlib.contextmanager
def time_limit(path: Path) -> Iterator[None]:
    """Break off the block when it takes longer than `LONGEST_SECONDS`. It runs code of the file `path`.

    Only in the main thread of a process; in others there is no limit. What cannot be broken off, such as a loop in C,
    ends the process half a minute later, with its stack on standard error. Raises a ConfigError if it was broken off,
    with the line of `path` at which it was.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def break_off(_: int, frame: FrameType | None) -> None:
        # The block has ended when the code of this module runs, or that of contextlib: what is left must not be missed.
        if frame is None or frame.f_code.co_filename not in (__file__, contextlib.__file__):
            raise _Overrun(_line(frame, path))

    before, begin = signal.signal(signal.SIGALRM, break_off), time.monotonic()
    # Again and again: a bare `except:` inside a loop catches the first one.
    faulthandler.dump_traceback_later(LONGEST_SECONDS + _DEAF_SECONDS, exit=True, file=2)
    left, _ = signal.setitimer(signal.ITIMER_REAL, LONGEST_SECONDS, _AGAIN_SECONDS)
    try:
        yield
    except _Overrun as overrun:
        what = f"did not finish within {LONGEST_SECONDS:.0f} s; the file must not wait, loop or compute"
        raise ConfigError.one(path, what, line=overrun.line) from None
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begin), 0.001) if left else 0.0)
        signal.signal(signal.SIGALRM, before)


def _line(frame: FrameType | None, path: Path) -> int | None:
    """Find the line of `path` that runs, or that called what runs; None when none does."""
    while frame is not None:
        if frame.f_code.co_filename == str(path):
            return frame.f_lineno
        frame = frame.f_back
    return None
