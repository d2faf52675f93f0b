"""Zones whose rides stay above or below the forecast for hours (a closed road, a competitor, a price that is wrong).

Catches: a change of two deviations within some hours, and of one within half a day: a CUSUM of forecast residuals.
Misses: the first ten hours after a zone has had one day; a change that comes within weeks is a part of the forecast.
When it fires, look first at: when the rides left the forecast, and what changed then.
"""

from dataclasses import dataclass

from tocsin import Case, Event, Levels, StepFinding, at, detector, email, urgent
from tocsin.stats import Cusum, Seasonal


@dataclass(frozen=True)
class Past:
    rides: Seasonal = Seasonal()
    sums: Cusum = Cusum()


@detector(source="rides", entity="zone", window=None, forget_after="60 days", levels=Levels(email=5, urgent=10),
          owner="operations@example.com", runbook="docs/runbooks/lasting_change.md", stage="live")  # fmt: skip
def step(key: str, state: Past, event: Event) -> tuple[Past, list[StepFinding]]:
    hour = event.event_time.hour
    sums = state.sums.add(state.rides.score(hour, event.rides, least=10))
    past = state.rides.add(hour, event.rides, level_weight=0.001, season_weight=0.001)
    facts = {"rides": event.rides, "forecast": state.rides.forecast(hour)}
    is_over = sums.score > 5  # either way
    return Past(past, Cusum() if is_over else sums), [StepFinding(sums.score, facts)]


PAST = at("00:00:00", zone="midtown", rides=100.0).repeat(24, every="1 hour").repeat(2, every="1 day")
CASES = [
    Case("54 rides above the forecast", events=PAST.then(after="1 hour", rides=154.0), expect=[]),
    Case("56 above", events=PAST.then(after="1 hour", rides=156.0), expect=[email(zone="midtown")]),
    Case("56 below", events=PAST.then(after="1 hour", rides=44.0), expect=[email(zone="midtown")]),
    Case("104 above", events=PAST.then(after="1 hour", rides=204.0), expect=[email(zone="midtown")]),
    Case("106 above", events=PAST.then(after="1 hour", rides=206.0), expect=[urgent(zone="midtown")]),
    Case(
        "40 above for two hours, and then a usual one",
        events=PAST.then(after="1 hour", rides=140.0).then(after="1 hour").then(after="1 hour", rides=100.0),
        expect=[email(zone="midtown", window="2026-01-07 01:00:00")],
    ),
]
