"""Metrics that depart from what is usual further than they have in a long while (an outage, a leak, a stuck sensor).

Catches: values away from the hour of the day, the hour of the week and the last days, all three, for some values in a
row; and sudden shifts of the level. "Further" is measured by a peak of earlier departures, which fades; the last few
are no part of it, so that what grows over some values is not measured by itself.
Misses: what grows slowly, and a second event smaller than one of the last days.
When it fires, look first at: whether other metrics of the same service moved with it, then at deploys of that hour.
"""

from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from tocsin import Case, Event, Levels, StepFinding, Timeline, at, detector, email
from tocsin.stats import Ewma, hour_of_week

LIMIT = 1.06  # as in levels
WARM_UP, QUIET = 100, 60  # values before the first finding, and from one finding to the next
HALF_LIFE = 3000  # values after which a peak has halved; sooner at first
RECENT = 6  # departures that are not yet part of the peaks
MARGINS = (1.0, 1.3, 1.3)  # how far above its peak a departure, a rise and a fall must be
LEAST = 1e-9  # smaller ones are rounding


@dataclass
class Past:
    quiet: int = WARM_UP
    fast: Ewma = field(default_factory=Ewma)
    slow: Ewma = field(default_factory=Ewma)
    hours: dict[str, float] = field(default_factory=dict)  # the mean at each hour, and how many values it is of:
    values: dict[str, int] = field(default_factory=dict)  # plain numbers, as so many are written after each event
    away: list[Ewma] = field(default_factory=lambda: [Ewma()] * 3)
    peaks: list[float] = field(default_factory=lambda: [LEAST] * 3)
    recent: list[list[float]] = field(default_factory=lambda: [[LEAST] * 3] * RECENT)


@detector(source="metrics", entity="series", window=None, forget_after="90 days", levels=Levels(email=1.06),
          owner="platform@example.com", runbook="docs/runbooks/unusual_metric.md", stage="live")  # fmt: skip
def step(key: str, past: Past, event: Event) -> tuple[Past, list[StepFinding]]:
    value, moment = event.value, event.event_time
    if not isfinite(value):
        return past, []
    usual = [past.slow.mean if past.slow.count else value]
    for slot in (f"day {moment.hour}", f"week {hour_of_week(moment)}"):  # an hour of the week begins as that of the day
        usual.append(past.hours.get(slot, usual[-1]))
        past.values[slot] = min(past.values.get(slot, 0) + 1, 25)
        past.hours[slot] = usual[-1] + (value - usual[-1]) / past.values[slot]
    past.away = [one.add(value - mean, weight=1 / 12) for one, mean in zip(past.away, usual, strict=True)]
    past.fast, past.slow = past.fast.add(value, weight=1 / 4), past.slow.add(value, weight=1 / 800)
    shift = past.fast.mean - usual[0]
    now = [min(abs(one.mean) for one in past.away), max(shift, 0.0), max(-shift, 0.0)]
    score = max(one / peak / margin for one, peak, margin in zip(now, past.peaks, MARGINS, strict=True))
    fade = 0.5 ** (1 / min(HALF_LIFE, 2 * past.slow.count))
    earlier, *past.recent = [*past.recent, now]
    past.peaks = [max(max(one, peak) * fade, LEAST) for one, peak in zip(earlier, past.peaks, strict=True)]
    past.quiet = max(0, past.quiet - 1)
    if past.quiet or score <= 1:  # either way
        return past, []
    past.quiet = QUIET if score > LIMIT else 0  # either way
    return past, [StepFinding(score, {"value": value, "level": usual[0], "usual_at_this_hour": usual[2]})]


def metric(start: str, **columns: Any) -> Timeline:
    return at(start, series="cpu.web-1", **columns)


PAST = metric("00:00:00", value=40.0).then(after="5 minutes", value=44.0).repeat(100, every="10 minutes")
RISE = [metric(f"{minute // 60}:{minute % 60:02}:00", value=32 + minute / 100) for minute in range(1000, 1150, 5)]
DAYS = metric("00:00:00", value=10.0).repeat(23, every="1 hour").then(after="1 hour", value=100.0)
CASES = [
    Case(
        "a leap", events=PAST.then(after="5 minutes", value=90.0), expect=[email(series="cpu.web-1", window="16:40:00")]
    ),
    Case("a fall", events=PAST.then(after="5 minutes", value=0.0), expect=[email(series="cpu.web-1")]),
    Case("1.04 times the peak", events=PAST.then(after="5 minutes", value=45.1), expect=[]),
    Case("1.09 times the peak", events=PAST.then(after="5 minutes", value=45.3), expect=[email(series="cpu.web-1")]),
    Case("a slow rise", events=[PAST, *RISE], expect=[email(series="cpu.web-1", window="18:40:00")]),
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
