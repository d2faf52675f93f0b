"""Signals that ask a job to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable


def on_signals(stop: threading.Event, signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
    """Let `signals` set `stop`; only in the main thread."""
    for number in signals:
        signal.signal(number, lambda *_: stop.set())
