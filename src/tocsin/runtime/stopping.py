"""Stop a process in order when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from types import FrameType


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
