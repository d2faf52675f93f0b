"""Durations as people write them in detector and source files ("10 seconds", "1 hour"), and the zero of time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
_UNITS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|[a-z]+?)s?\s*", re.IGNORECASE)


def parse_duration(text: str) -> timedelta:
    """`text` ("10 seconds", "1 hour", "1.5 days") as a timedelta.

    Raises:
        ValueError: with the accepted form, when `text` is not a positive duration.
    """
    match = _FORM.fullmatch(text)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None or float(match.group(1)) <= 0:
        raise ValueError(f"'{text}' is not a duration; write a number and a unit, such as '10 seconds' or '1 hour'")
    return timedelta(seconds=float(match.group(1)) * unit)


def spark_interval(duration: timedelta) -> str:
    """`duration` as a Spark interval: whole microseconds, so that nothing is rounded."""
    return f"{duration // MICROSECOND} microseconds"


def exact_text(duration: timedelta) -> str:
    """`duration` as one would declare it, in the largest unit that divides it: 1 hour, 90 minutes."""
    for unit in ("day", "hour", "minute", "second"):
        count, rest = divmod(duration, timedelta(seconds=_UNITS[unit]))
        if count and not rest:
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{duration / timedelta(milliseconds=1):g} ms"


def span(seconds: float | None) -> str:
    """A duration to read: 0.3 s, 12 s, 4 min, 3 h, 2 d; empty for None."""
    if seconds is None:
        return ""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for size, unit in ((86_400, "d"), (3600, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / (60 if unit == 'min' else size):.0f} {unit}"
    return f"{seconds:.0f} s"
