"""How the score of one finding rose, as points for the chart: bounded, thinned evenly, ends kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tocsin.model.finding import Finding

MAX_POINTS = 200
Points = list[tuple[int, float]]
"""Time in microseconds since 1970, and score; ordered by time."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def extended(points: Points, finding: Finding) -> Points:
    """`points` with the score of `finding`, at its latest event time or else when it was appended.

    A repeated point changes nothing. Above `MAX_POINTS` every second inner point is left out.
    """
    time = finding.event_time_max or finding.detected_at
    if time is None:
        return points
    point = ((time - _EPOCH) // timedelta(microseconds=1), finding.score)
    if point in points[-MAX_POINTS:]:
        return points
    more = sorted([*points, point])
    return more if len(more) <= MAX_POINTS else [more[0], *more[1:-1:2], more[-1]]


def time_of(micros: int) -> datetime:
    """The time of a point, UTC."""
    return _EPOCH + timedelta(microseconds=micros)
