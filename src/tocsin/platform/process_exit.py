"""Exit codes, and the file in which a process leaves its own: only a parent gets it, and supervision seldom is one.

Whoever starts a job names a file in TOCSIN_EXIT, and the job writes its exit code there as its last act. One that is
killed, or cannot even begin, writes nothing; neither does one that ends after the next was asked to use the file.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
from enum import IntEnum
from pathlib import Path
from types import FrameType

_VARIABLE = "TOCSIN_EXIT"
_TOKEN = "TOCSIN_EXIT_TOKEN"
_BLANK = "    "


class ExitCode(IntEnum):
    """Exit codes of jobs, batches and `tocsin`. Any other is a crash, and minus n means killed by signal n."""

    OK = 0
    """Done, or stopped as asked."""
    FAILED = 1
    """Something went wrong, or a verb found a problem; a restart may help."""
    MISCONFIGURED = 2
    """A file, a setting or the call is wrong; a restart helps only once somebody has fixed it."""
    LOCKED = 3
    """Another process does the same work; a restart helps once that one has ended."""
    UNWRITABLE = 4
    """The disk is full or the state folder cannot be written; a restart helps once there is room."""
    WARNED = 10
    """A batch has published everything, and a verdict was a warning; nothing to restart."""
    REFUSED = 20
    """A verdict was critical, so a batch has not published that day; a restart finds the same."""


def variables(path: Path) -> dict[str, str]:
    """Prepare `path` for the exit code of a process, and return the variables that tell the process.

    The space is taken now, so that a process can report a full disk too. Raises an OSError if that fails.
    """
    token = secrets.token_hex(8)
    path.write_text(f"{_BLANK} {token}\n", encoding="ascii")
    return {_VARIABLE: str(path), _TOKEN: token}


def record(code: int) -> int:
    """Write `code` to the file asked for, if any, and return it; never raises OSError."""
    path = os.environ.get(_VARIABLE)
    if path is not None:
        with contextlib.suppress(OSError), open(path, "r+", encoding="ascii") as file:
            if file.read().split()[-1:] == [os.environ.get(_TOKEN)]:
                file.seek(0)
                file.write(f"{code:4}")
    return code


def read(path: Path) -> int | None:
    """Read the exit code in `path`; None when nothing was written."""
    try:
        return int(path.read_text(encoding="ascii")[: len(_BLANK)])
    except (OSError, ValueError):
        return None


def on_signals(stop: threading.Event, *, interactive: bool = False) -> None:
    """Let SIGINT and SIGTERM set `stop`; call this in the main thread only.

    If `interactive`, SIGHUP sets it too, and a second signal ends by force what is still stopping.
    """

    def ask(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        if interactive and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if interactive else ())):
        signal.signal(number, ask)
