"""Logins of one user from two places that nobody can travel between in the time (shared or stolen passwords).

Catches: two logins in a row that ask for a speed above that of an airliner, over at least 100 km.
Misses: a thief near the victim, or behind a proxy near the victim; logins whose place is not known.
When it fires, look first at: whether one of the two addresses is a proxy or a phone network, then at what was done.
"""

from dataclasses import dataclass
from datetime import datetime
from math import asin, cos, radians, sin, sqrt

from tocsin import Case, Event, Levels, StepFinding, at, detector, email, urgent

EARTH_KM = 6371.0
LEAST_KM = 100.0
LEAST_HOURS = 1 / 60


@dataclass(frozen=True)
class LastLogin:
    time: datetime | None = None
    latitude: float = 0.0
    longitude: float = 0.0
    city: str | None = None


@detector(
    source="logins",
    entity="user_id",
    window=None,
    forget_after="7 days",
    levels=Levels(email=1000, urgent=3000),
    owner="security@example.com",
    runbook="docs/runbooks/impossible_travel.md",
    stage="live",
)
def step(key: str, state: LastLogin, event: Event) -> tuple[LastLogin, list[StepFinding]]:
    if event.latitude is None or event.longitude is None:
        return state, []
    login = LastLogin(event.event_time, event.latitude, event.longitude, event.city)
    if state.time is None:
        return login, []
    km = distance_km(state, login)
    hours = max((event.event_time - state.time).total_seconds() / 3600, LEAST_HOURS)
    if km < LEAST_KM:  # either way
        return login, []
    facts = {"km": round(km), "before": state.city, "now": event.city, "before_at": state.time}
    return login, [StepFinding(km / hours, facts)]


def distance_km(one: LastLogin, other: LastLogin) -> float:
    """Measure along a great circle."""
    south, north = radians(one.latitude), radians(other.latitude)
    east = radians(other.longitude - one.longitude)
    chord = sin((north - south) / 2) ** 2 + cos(south) * cos(north) * sin(east / 2) ** 2
    return 2 * EARTH_KM * asin(sqrt(min(1.0, chord)))


EQUATOR = at("12:00:00", user_id="ann", latitude=0.0, longitude=0.0, city="Quito")
CASES = [
    Case(
        "Berlin, and Lisbon an hour later",
        events=at("12:00:00", user_id="ann", latitude=52.52, longitude=13.40, city="Berlin").then(
            after="1 hour", latitude=38.72, longitude=-9.14, city="Lisbon"
        ),
        expect=[email(user_id="ann")],
    ),
    Case(
        "the same on a flight",
        events=at("12:00:00", user_id="ann", latitude=52.52, longitude=13.40).then(
            after="4 hours", latitude=38.72, longitude=-9.14
        ),
        expect=[],
    ),
    Case(
        "a place that is not known changes nothing",
        events=EQUATOR.then(after="1 hour", latitude=None).then(after="1 hour", latitude=30.0),
        expect=[email(user_id="ann")],
    ),
    # Along a meridian a degree is 111.195 km.
    Case("999.5 km/h", events=EQUATOR.then(after="1 hour", latitude=8.98872), expect=[]),
    Case("1000.5 km/h", events=EQUATOR.then(after="1 hour", latitude=8.99771), expect=[email(user_id="ann")]),
    Case("2999.5 km/h", events=EQUATOR.then(after="1 hour", latitude=26.97516), expect=[email(user_id="ann")]),
    Case("3000.5 km/h", events=EQUATOR.then(after="1 hour", latitude=26.98415), expect=[urgent(user_id="ann")]),
]
