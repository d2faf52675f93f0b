"""Put the cases of a detector into one stream: each in a lane of its own, some weeks after the one before.

So no event of a case can meet one of another, whatever their entities, and a query runs all cases at once. A lane is
moved by whole weeks and whole windows: the time of day, the weekday and the place in a window stay as they are written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tocsin.model.detector import DetectorSpec
from tocsin.model.durations import EPOCH, MICROSECOND

_WEEK = timedelta(days=7)


@dataclass(frozen=True)
class Lanes:
    """The lanes of some cases.

    Attributes:
        begin: a time before all that happens in the first lane, UTC.
        width: from one lane to the next.
        count: how many there are.
    """

    begin: datetime
    width: timedelta
    count: int

    def offset(self, lane: int) -> timedelta:
        """Give the time that is added to events of `lane`."""
        return lane * self.width

    def lane_of(self, moment: datetime) -> int:
        """Find the lane in which `moment` lies, a time after `offset` was added."""
        return (moment - self.begin) // self.width

    @property
    def end(self) -> datetime:
        """Give a time after all lanes."""
        return self.begin + self.offset(self.count + 1)


def make_lanes(times: Sequence[Sequence[datetime]], spec: DetectorSpec, lateness: timedelta) -> Lanes:
    """Make a lane for the times of the events of each case."""
    every = [moment for case in times for moment in case]
    first, last = min(every, default=EPOCH), max(every, default=EPOCH)
    margin = 2 * (spec.memory_span + lateness) + timedelta(days=1)
    unit = math.lcm(_WEEK // MICROSECOND, (spec.slide or spec.window or _WEEK) // MICROSECOND) * MICROSECOND
    needed = last - first + 2 * margin
    return Lanes(first - margin, unit * -(-needed // unit), len(times))
