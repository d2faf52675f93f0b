"""Durations as people write them in detector and source files ("10 seconds", "1 hour"), and windows of that length.

Windows begin at multiples of their slide since 1970 in UTC, as Spark's do, or are days of a time zone. Such a day lasts
from one midnight of its clock to the next: 23 or 25 hours where the clock changes. All is counted by that clock, on
which windows begin at multiples too. Where there is no midnight, the day begins when the clock has passed it; where
there are two, at the first. Java does the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

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
_OFFSET = re.compile(r"([+-])(0\d|1[0-4]):([0-5]\d)")
_MOST_RUNS = 4
_LONGEST = timedelta(days=36_500)  # less than the first and the last date are away from any event
_LONGER = timedelta(hours=2)
"""So much longer than 24 hours is the longest day of a time zone: at Troll in Antarctica the clock changes by two."""


def parse_duration(text: str) -> timedelta:
    """`text` ("10 seconds", "1 hour", "1.5 days") as a timedelta; ValueError with the accepted form if it is none."""
    match = _FORM.fullmatch(text)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"'{text}' is not a duration; write a number and a unit, such as '10 seconds' or '1 hour'")
    seconds = float(match.group(1)) * unit
    if seconds > _LONGEST.total_seconds():
        raise ValueError(f"'{text}' is too long: a duration is {_LONGEST.days} days at most")
    if not (duration := timedelta(seconds=seconds)):  # less than a microsecond, too
        raise ValueError(f"'{text}' is too short: a duration is longer than zero")
    return duration


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


def days_text(days: Iterable[date]) -> str:
    """Write `days`, at least one, as what follows one another: `2026-06-17, 2026-06-29 to 2026-06-30 (3 days)`."""
    ordered = sorted({*days})
    runs = [[ordered[0], ordered[0]]]
    for day in ordered[1:]:
        if day - runs[-1][1] > timedelta(days=1):
            runs.append([day, day])
        runs[-1][1] = day
    shown = runs if len(runs) <= _MOST_RUNS else [[ordered[0], ordered[-1]]]
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in shown]
    among = "" if shown is runs else f" of the {(ordered[-1] - ordered[0]).days + 1}"
    count = f" ({len(ordered)}{among} days)" if len(ordered) > 1 else ""
    return ", ".join(texts) + count


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


class Windowed(Protocol):
    """What says how events fall into windows: a detector, or a view."""

    @property
    def window(self) -> timedelta | None: ...  # noqa: D102 - as in the specs
    @property
    def slide(self) -> timedelta | None: ...  # noqa: D102
    @property
    def time_zone(self) -> str: ...  # noqa: D102


def zone_of(name: str) -> tzinfo:
    """Find the time zone with this name, such as "Europe/Berlin" or "+05:30"; "" is UTC.

    ValueError if there is none, or for a name without a place, such as EST, which is not the same everywhere.
    """
    if match := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-offset if match[1] == "-" else offset)
    if name in ("", "UTC"):
        return UTC
    try:
        if "/" in name:
            return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # of these, KeyError says that there is none
        pass
    raise ValueError(f"'{name}' is no time zone; write a place such as 'Europe/Berlin', or an offset such as '+05:30'")


def longest(spec: Windowed) -> timedelta:
    """Return how long a window of `spec` can last; zero without windows."""
    return (spec.window or timedelta(0)) + (_LONGER if spec.time_zone else timedelta(0))


def window_of(spec: Windowed) -> timedelta:
    """Return the length of the windows of `spec`, which has some."""
    if spec.window is None:
        raise ValueError("it has no windows")
    return spec.window


def start(spec: Windowed, number: int) -> datetime:
    """Give the start of a window by its number, counted from 1970 on."""
    return _moment(spec, EPOCH + number * step_of(spec))


def end_of(spec: Windowed, begin: datetime) -> datetime:
    """Give the end of the window that begins at `begin`."""
    window = window_of(spec)
    if not spec.time_zone:
        return begin + window
    return _moment(spec, EPOCH + last_number(spec, begin) * window + window)


def last_number(spec: Windowed, moment: datetime) -> int:
    """Number the last window that begins at `moment` or before."""
    number = (_by_clock(spec, moment) - EPOCH) // step_of(spec)
    return number if start(spec, number) <= moment else number - 1


def first_number(spec: Windowed, moment: datetime) -> int:
    """Number the first window that begins at `moment` or later."""
    number = last_number(spec, moment)
    return number if start(spec, number) == moment else number + 1


def closed_before(spec: Windowed, moment: datetime) -> datetime:
    """Give the time such that exactly the windows that begin before it have ended at `moment`."""
    if spec.time_zone:
        return start(spec, last_number(spec, moment))
    return moment - (spec.window or timedelta(0)) + MICROSECOND


def reach(spec: Windowed, until: datetime) -> timedelta:
    """Measure how far windows that begin before `until` look beyond it: not at all where one ends just then."""
    if spec.window is None:
        return timedelta(0)
    if spec.time_zone:
        return end_of(spec, start(spec, first_number(spec, until) - 1)) - until
    follow = spec.slide in (None, spec.window)
    return timedelta(0) if follow and (until - EPOCH) % spec.window == timedelta(0) else spec.window


def step_of(spec: Windowed) -> timedelta:
    """Return the time between the starts of two windows, by the clock."""
    return spec.slide or window_of(spec)


def _by_clock(spec: Windowed, moment: datetime) -> datetime:
    """Return what the clock of the zone shows at `moment`, as if it were UTC."""
    return moment.astimezone(zone_of(spec.time_zone)).replace(tzinfo=UTC)


def _moment(spec: Windowed, clock: datetime) -> datetime:
    """Return when the clock of the zone shows `clock` first, or passes it."""
    return clock.replace(tzinfo=zone_of(spec.time_zone)).astimezone(UTC)
