"""Hours with far more or fewer rides than the same hour of the last weeks (a storm, a strike, an outage, an event).

Catches: a number of rides far from the median of this hour of the week, measured by the MAD of the last eight weeks.
Misses: the first three weeks of a zone, and changes that go on for more than a month: they become usual.
When it fires, look first at: whether other zones fire too, and whether the day is a holiday.
"""

from dataclasses import dataclass

from tocsin import Case, Event, Levels, StepFinding, at, detector, email, urgent
from tocsin.stats import Baseline, hour_of_week


@dataclass(frozen=True)
class Past:
    usual: Baseline = Baseline()


@detector(source="rides", entity="zone", window=None, forget_after="60 days", levels=Levels(email=10, urgent=15),
          owner="operations@example.com", runbook="docs/runbooks/unusual_hour.md", stage="live")  # fmt: skip
def step(key: str, state: Past, event: Event) -> tuple[Past, list[StepFinding]]:
    hour = hour_of_week(event.event_time)
    score = abs(state.usual.score(hour, event.rides, least=10))
    return Past(state.usual.add(hour, event.rides)), [StepFinding(score, {"rides": event.rides})]


EARLY = at("12:00:00", zone="midtown", rides=300.0).repeat(2, every="7 days")
PAST = EARLY.then(after="7 days")
CASES = [
    Case("400 rides", events=PAST.then(after="7 days", rides=400.0), expect=[]),
    Case("401 rides", events=PAST.then(after="7 days", rides=401.0), expect=[email(zone="midtown", score=10.1)]),
    Case("150 rides", events=PAST.then(after="7 days", rides=150.0), expect=[email(zone="midtown", score=15)]),
    Case("149 rides", events=PAST.then(after="7 days", rides=149.0), expect=[urgent(zone="midtown", score=15.1)]),
    Case("none an hour later, of which nothing is known", events=PAST.then(after="1 hour", rides=0.0), expect=[]),
    Case("none in the third week", events=EARLY.then(after="7 days", rides=0.0), expect=[]),
]
