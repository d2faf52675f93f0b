"""Put cases of a detector into one stream, each in a lane of its own, so that no event of one can meet one of another.

Where only distances in time count, all cases are in one stream, each moved by whole weeks and whole windows. Else each
stays at the dates that it names, and those that would meet go into streams of their own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import EPOCH, MICROSECOND

_WEEK = timedelta(days=7)
Span = tuple[datetime, datetime]
"""The times of the first and of the last event of a case."""


@dataclass(frozen=True)
class Lanes:
    """The lanes of some cases.

    Attributes:
        starts: a time before all that happens in each lane, UTC, and at last one after all lanes.
        offsets: the time that is added to the events of each.
    """

    starts: tuple[datetime, ...]
    offsets: tuple[timedelta, ...]

    def lane_of(self, moment: datetime) -> int:
        """Find the lane in which `moment` lies, a time after its offset was added."""
        return bisect_right(self.starts, moment) - 1

    @property
    def begin(self) -> datetime:
        """Give a time before all lanes."""
        return self.starts[0]

    @property
    def end(self) -> datetime:
        """Give a time after all lanes."""
        return self.starts[-1]


def moved_lanes(spans: Sequence[Span], spec: DetectorSpec, lateness: timedelta) -> Lanes:
    """Make a lane for each case, some weeks after the one before."""
    first = min((first for first, _ in spans), default=EPOCH)
    last = max((last for _, last in spans), default=EPOCH)
    unit = math.lcm(_WEEK // MICROSECOND, (spec.slide or spec.window or _WEEK) // MICROSECOND) * MICROSECOND
    margin = _margin(spec, lateness)
    width = unit * -(-(last - first + 2 * margin) // unit)
    offsets = tuple(number * width for number in range(len(spans)))
    return Lanes(tuple(first - margin + offset for offset in (*offsets, len(spans) * width)), offsets)


def own_lanes(spans: Sequence[Span], spec: DetectorSpec, lateness: timedelta) -> list[tuple[list[int], Lanes]]:
    """Leave each case where it is: lists of the numbers of those that go into one stream, with their lanes."""
    margin = _margin(spec, lateness)
    streams: list[list[int]] = []
    for number in sorted(range(len(spans)), key=lambda case: spans[case]):
        free = (numbers for numbers in streams if spans[numbers[-1]][1] + 2 * margin < spans[number][0])
        stream = next(free, None)
        if stream is None:
            streams.append([number])
        else:
            stream.append(number)
    return [(numbers, _own(numbers, spans, margin)) for numbers in streams]


def _own(numbers: Sequence[int], spans: Sequence[Span], margin: timedelta) -> Lanes:
    starts = tuple(spans[number][0] - margin for number in numbers)
    return Lanes((*starts, spans[numbers[-1]][1] + margin), (timedelta(0),) * len(numbers))


def _margin(spec: DetectorSpec, lateness: timedelta) -> timedelta:
    return 2 * (spec.memory_span + lateness) + timedelta(days=1)
