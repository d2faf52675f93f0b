"""The chart of an alert as paths of SVG, drawn by the server: a page then needs no script for it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tocsin.alerts.finding_merging import StoredFinding, time_of
from tocsin.alerts.store.alert_rows import AlertDetails

WIDTH, HEIGHT = 1000, 240
_MOST = 50
_ROOM = 1.08


@dataclass(frozen=True)
class Chart:
    """Paths in a box of `WIDTH` by `HEIGHT`, which may be stretched.

    Attributes:
        bars: of a box of their own, the findings of earlier alerts and the highest of this one: x, width, y, level.
    """

    start: datetime
    end: datetime
    peak: float
    windows: list[tuple[float, float]] = field(default_factory=list)
    line: str = ""
    dots: str = ""
    limits: list[tuple[str, float, float]] = field(default_factory=list)
    bars: list[tuple[float, float, float, str]] = field(default_factory=list)


def draw(details: AlertDetails) -> Chart:
    """Draw the latest findings of an alert, and the limits of its detector."""
    shown = {stored.finding.finding_id: stored for stored in [*details.findings[:_MOST], details.highest]}
    found = sorted(shown.values(), key=_begin)
    start, end = _begin(found[0]), max(map(_end, found))
    if end <= start:
        start, end = start - timedelta(seconds=1), end + timedelta(seconds=1)
    limits = {"e-mail": details.alert.email_limit, "urgent": details.alert.urgent_limit}
    peak = max(stored.finding.score for stored in found)
    heights = [0.0, peak, *(limit for limit in limits.values() if limit is not None)]
    low, high = min(heights), max(heights)
    scale = HEIGHT / ((high - low) * _ROOM or 1)

    def x(time: datetime) -> float:
        return round(WIDTH * ((min(max(time, start), end) - start) / (end - start)), 1)

    def y(score: float) -> float:
        return round(HEIGHT - (score - low) * scale, 1)

    return Chart(
        start=start,
        end=end,
        peak=peak,
        windows=[(x(_begin(stored)), round(x(_end(stored)) - x(_begin(stored)), 1)) for stored in found],
        line=" ".join(_steps([(x(time), y(score)) for time, score in _points(stored)], y(low)) for stored in found),
        # A line without length has round ends: a dot that keeps its form when the box is stretched.
        dots=" ".join(f"M{x(time)} {y(score)}h0" for stored in found for time, score in list(_points(stored))[-1:]),
        bars=_bars(details),
        limits=[(level, limit, y(limit)) for level, limit in limits.items() if limit is not None],
    )


def _bars(details: AlertDetails) -> list[tuple[float, float, float, str]]:
    scores = [(earlier.score, earlier.level) for earlier in details.earlier[1 - _MOST :]]
    scores.append((details.highest.finding.score, details.alert.level))
    high, step = max(score for score, _ in scores) * _ROOM or 1, WIDTH / max(12, len(scores))
    return [
        (round(step * place, 1), round(step * 0.8, 1), round(HEIGHT - HEIGHT * max(0.0, score) / high, 1), level)
        for place, (score, level) in enumerate(scores)
    ]


def _begin(stored: StoredFinding) -> datetime:
    return stored.finding.window_start or stored.finding.event_time_max or stored.first_detected_at


def _end(stored: StoredFinding) -> datetime:
    return stored.finding.window_end or _begin(stored)


def _points(stored: StoredFinding) -> Iterator[tuple[datetime, float]]:
    """Give the times and scores of a finding; one that was not seen to rise has its score at the end of its window."""
    end = _end(stored)
    for micros, score in stored.trajectory:
        yield min(max(time_of(micros), _begin(stored)), end), score
    if not stored.trajectory or stored.trajectory[-1][1] != stored.finding.score:
        yield end, stored.finding.score


def _steps(points: list[tuple[float, float]], floor: float) -> str:
    """Rise from the floor to the first point, then in steps from point to point."""
    (first, height), *others = points
    return f"M{first} {floor}V{height}" + "".join(f"H{x}V{y}" for x, y in others)
