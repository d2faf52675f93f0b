"""Metrics that depart from what is usual further than they have in a long while (an outage, a leak, a stuck sensor).

Catches: values away from the hour of the day, the hour of the week and the last days, all three, for some values in a
row; and sudden shifts of the level. "Further" is measured by a peak of earlier departures, which fades.
Misses: what grows slowly, and a second event smaller than one of the last days.
When it fires, look first at: whether other metrics of the same service moved with it, then at deploys of that hour.
"""

from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from tocsin import Case, Event, Levels, StepFinding, Timeline, at, detector, email

LIMIT = 1.02  # as in levels
WARM_UP, QUIET = 100, 60  # values before the first finding, and from one finding to the next
SMOOTHED, FAST, SLOW, VISITS, HALF_LIFE = 12, 4, 800, 25, 3000  # how many values means and peaks remember
MARGINS = (1.0, 1.14, 1.14)  # how far above its peak a departure, a rise and a fall must be
LEAST = 1e-9  # smaller ones are rounding


@dataclass
class Usual:
    seen: int = 0
    quiet: int = WARM_UP
    fast: float = 0.0
    slow: float = 0.0
    hours: dict[str, float] = field(default_factory=dict)
    visits: dict[str, int] = field(default_factory=dict)
    departures: list[float] = field(default_factory=lambda: [0.0] * 3)
    peaks: list[float] = field(default_factory=lambda: [LEAST] * 3)


@detector(source="metrics", entity="series", window=None, forget_after="90 days", levels=Levels(email=1.02),
          owner="platform@example.com", runbook="docs/runbooks/unusual_metric.md", stage="live")  # fmt: skip
def step(key: str, state: Usual, event: Event) -> tuple[Usual, list[StepFinding]]:
    value, hour = event.value, str(event.event_time.hour)
    if not isfinite(value):
        return state, []
    if not state.seen:
        state.fast = state.slow = value
    state.seen += 1
    expected = [state.slow]
    for slot in (hour, f"{event.event_time.weekday()} {hour}"):  # an hour of the week begins as that of the day
        expected.append(state.hours.get(slot, expected[-1]))
        state.visits[slot] = state.visits.get(slot, 0) + 1
        state.hours[slot] = toward(expected[-1], value, VISITS, state.visits[slot])
    departures = zip(state.departures, expected, strict=True)
    state.departures = [toward(old, value - one, SMOOTHED, state.seen) for old, one in departures]
    state.fast = toward(state.fast, value, FAST, state.seen)
    shift = state.fast - state.slow
    state.slow = toward(state.slow, value, SLOW, state.seen)
    away = [min(map(abs, state.departures)), max(shift, 0.0), max(-shift, 0.0)]
    score = max(one / peak / margin for one, peak, margin in zip(away, state.peaks, MARGINS, strict=True))
    fade = 0.5 ** (1 / min(HALF_LIFE, 2 * state.seen))
    state.peaks = [max(max(one, peak) * fade, LEAST) for one, peak in zip(away, state.peaks, strict=True)]
    state.quiet = max(0, state.quiet - 1)
    if state.quiet or score <= LIMIT:
        return state, []
    state.quiet = QUIET
    return state, [StepFinding(score, {"value": value, "level": expected[0], "usual_at_this_hour": expected[2]})]


def toward(mean: float, value: float, memory: int, seen: int) -> float:
    """Move a mean of the last `memory` values, of which `seen` came so far."""
    return mean + (value - mean) / min(memory, seen)


def metric(start: str, **columns: Any) -> Timeline:
    return at(start, series="cpu.web-1", **columns)


PAST = metric("00:00:00", value=40.0).then(after="5 minutes", value=44.0).repeat(100, every="10 minutes")
DAYS = metric("00:00:00", value=10.0).repeat(23, every="1 hour").then(after="1 hour", value=100.0)
CASES = [
    Case(
        "a leap", events=PAST.then(after="5 minutes", value=90.0), expect=[email(series="cpu.web-1", window="16:40:00")]
    ),
    Case("a fall", events=PAST.then(after="5 minutes", value=0.0), expect=[email(series="cpu.web-1")]),
    Case("as before", events=PAST.then(after="5 minutes", value=41.0), expect=[]),
    Case(
        "further leaps, of which the next five hours say nothing",
        events=PAST.then(after="5 minutes", value=90.0).then(metric("21:35:00", value=200.0)),
        expect=[email(series="cpu.web-1", window="16:40:00")],
    ),
    Case(
        "a leap after 80 values",
        events=metric("00:00:00", value=40.0)
        .then(after="5 minutes", value=44.0)
        .repeat(40, every="10 minutes")
        .then(after="5 minutes", value=90.0),
        expect=[],
    ),
    Case("the peak of each evening", events=DAYS.repeat(9, every="1 day"), expect=[]),
    Case(
        "a lower one at noon",
        events=DAYS.repeat(9, every="1 day").then(metric("2026-01-14 12:00:00", value=90.0)),
        expect=[email(series="cpu.web-1", window="2026-01-14 12:00:00")],
    ),
    Case(
        "a value that is no number",
        events=PAST.then(after="5 minutes", value=nan).then(after="5 minutes", value=40.0),
        expect=[],
    ),
]
