"""Follow the pace at which events came, or another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

from pydantic import BaseModel

_TURN_SECONDS = 1.0


class ReplayPace(BaseModel, frozen=True):
    """How fast events follow one another: `speed` times as fast as they came, at most `rate` per second.

    A speed of 0 is as fast as it goes, a rate of 0 no limit.
    """

    speed: float = 1.0
    rate: float = 0.0

    def seconds(self, span: float, count: int) -> float:
        """Estimate how long `count` events take that came within `span` seconds."""
        by_speed = span / self.speed if self.speed else 0.0
        return max(by_speed, count / self.rate if self.rate else 0.0)


class PacedClock:
    """Holds each event back until it is due, and does something each second, also while none is due."""

    def __init__(self, pace: ReplayPace, stop: threading.Event, each_second: Callable[[], None]) -> None:
        """Wait for nothing yet: the first event is due at once. What `each_second` raises, `wait_for` raises."""
        self._pace, self._stop, self._each_second = pace, stop, each_second
        self._began = self._turned = time.monotonic()
        self._first: datetime | None = None
        self._sent = 0

    def wait_for(self, moment: datetime) -> bool:
        """Wait until the event of `moment` is due; false if the replay is to stop instead."""
        self._first = self._first or moment
        speed, rate = self._pace.speed, self._pace.rate
        due = (moment - self._first).total_seconds() / speed if speed else 0.0
        due = self._began + max(due, self._sent / rate if rate else 0.0)
        while not self._stop.is_set() and (ahead := due - time.monotonic()) > 0:
            self._stop.wait(min(ahead, _TURN_SECONDS))
            self.turn()
        self._sent += 1
        return not self._stop.is_set()

    def turn(self) -> None:
        """Do what is done each second, if one has passed."""
        if time.monotonic() - self._turned > _TURN_SECONDS:
            self._each_second()
            self._turned = time.monotonic()
