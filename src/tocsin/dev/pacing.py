"""Lines at the time or the rate at which they should leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TypeVar

from tocsin.dev.generator import Line

_Item = TypeVar("_Item")


def in_time(lines: Iterable[Line], stop: threading.Event) -> Iterator[Line]:
    """Each line when its time has come, until `stop` is set."""
    for line in lines:
        ahead = (line.at - datetime.now(UTC)).total_seconds()
        if stop.wait(ahead) if ahead > 0 else stop.is_set():
            return
        yield line


def at_rate(items: Iterable[_Item], rate: float, stop: threading.Event) -> Iterator[_Item]:
    """The items at `rate` per second, as fast as they are taken when it is 0, until `stop` is set."""
    began = time.monotonic()
    for number, item in enumerate(items):
        ahead = began + number / rate - time.monotonic() if rate > 0 else 0.0
        if stop.wait(ahead) if ahead > 0 else stop.is_set():
            return
        yield item
