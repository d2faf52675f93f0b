"""Raw lines of the past as if they happened now: each waits until it is due, and gets the time at which it is sent."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from tocsin.declare.model.source import Source
from tocsin.ingest.line_times import LineTimes
from tocsin.ingest.replay.pace import PacedClock, ReplayPace

_Beside = TypeVar("_Beside")


@dataclass
class LeftOutLines:
    """Lines that are left out for one reason: how many, and the number of the first, from 1 on."""

    count: int
    first: int


class ShiftedLines:
    """Shifts lines of one source; `left_out` are those whose time cannot be rewritten, by the reason.

    The first event happens when it is sent, and each later one so long after it as it did, divided by the speed. So no
    event is ahead of its append time, which would be refused, nor far behind it, which would be late.
    """

    def __init__(self, source: Source, speed: float, stop: threading.Event) -> None:
        """Prepare to shift lines of `source`, until `stop` is set; ConfigError if its times cannot be rewritten."""
        self.left_out: dict[str, LeftOutLines] = {}
        self._times, self._speed, self._stop = LineTimes(source), speed, stop
        self._ignored = [re.compile(pattern.encode()) for pattern in source.ignore if _is_python(pattern)]

    def shift(self, lines: Iterable[tuple[bytes, _Beside]]) -> Iterator[tuple[bytes, _Beside]]:
        """Yield the `lines`, with what is beside them, each when it is due; what the source ignores stays as it is."""
        clock: PacedClock | None = None
        first = began = datetime.now(UTC)
        for number, (line, beside) in enumerate(lines, start=1):
            if any(pattern.search(line) for pattern in self._ignored):
                yield line, beside
                continue
            try:
                found = self._times.find(line)
            except ValueError as error:
                self.left_out.setdefault(str(error), LeftOutLines(0, number)).count += 1
                continue
            if found.moment > datetime.now(UTC):  # whoever waited for it would send no other line
                self.left_out.setdefault("its time is still to come", LeftOutLines(0, number)).count += 1
                continue
            if clock is None:
                clock = PacedClock(ReplayPace(speed=self._speed), self._stop, lambda: None)
                first, began = found.moment, datetime.now(UTC)
            if not clock.wait_for(found.moment):
                return
            yield found.with_time(began + (found.moment - first) / self._speed), beside


def _is_python(pattern: str) -> bool:
    try:
        re.compile(pattern.encode())
    except re.error:
        return False
    return True
