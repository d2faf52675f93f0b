"""How a verb that goes on until Ctrl-C ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def on_signals(stop: threading.Event) -> None:
    """Let the first SIGINT, SIGTERM or SIGHUP set `stop`; the second ends what is still stopping by force."""

    def asked(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, asked)
