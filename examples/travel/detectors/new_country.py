"""Logins of one user from a country where none came from in the last 90 days (a stolen password).

Catches: a login from a country, by the network of its address, once the user has logged in from another one.
Misses: a thief in a country where the user was, and the first country of a user who is new.
When it fires, look first at: whether the user travels, then at what was done since that login.

The same as the rule "New Country" of Sigma (adf9f4d2-559e-4f5c-95be-c28dff0b1476), without the cloud that it asks.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tocsin import Case, Event, Levels, StepFinding, at, detector, email, line


@dataclass(frozen=True)
class Seen:
    countries: dict[str, datetime] = field(default_factory=dict)


@detector(source="logins", entity="user_id", window=None, forget_after="90 days", levels=Levels(email=0),
          owner="security@example.com", runbook="docs/runbooks/new_country.md", stage="live")  # fmt: skip
def step(key: str, state: Seen, event: Event) -> tuple[Seen, list[StepFinding]]:
    if event.country is None:
        return state, []
    since = event.event_time - timedelta(days=90)
    recent = {country: seen for country, seen in state.countries.items() if seen > since}  # either way
    is_new = bool(recent) and event.country not in recent
    facts = {"country": event.country, "seen_before": ", ".join(sorted(recent)), "address": event.ip_address}
    return Seen({**recent, event.country: event.event_time}), [StepFinding(float(is_new), facts)]


HOME = at("12:00:00", user_id="ann", country="DE")
CASES = [
    Case(
        "from Portugal, and again",
        events=HOME.then(after="1 hour", country="PT").then(after="1 minute"),
        expect=[email(user_id="ann", window="13:00:00")],
    ),
    Case(
        "addresses, the smallest network of which counts",
        events=line("user_id: bob | timestamp: 2026-01-05T12:00:00Z | ip_address: 198.51.100.7")
        .then(line("user_id: bob | timestamp: 2026-01-05T12:10:00Z | ip_address: 2001:db8:1fff::7"))
        .then(line("user_id: bob | timestamp: 2026-01-05T12:20:00Z | ip_address: 198.51.100.200")),
        expect=[email(user_id="bob", window="12:20:00")],
    ),
    Case(
        "a country that is not known",
        events=HOME.then(after="1 hour", country=None)
        .then(line("user_id: ann | timestamp: 2026-01-05T14:00:00Z | ip_address: 10.0.0.1 | country: PT"))
        .then(line("user_id: ann | timestamp: 2026-01-05T15:00:00Z | ip_address: unknown")),
        expect=[],
    ),
    Case(
        "a country of last year",
        events=HOME.then(after="1 day", country="PT")
        .then(after="60 days", country="DE")
        .then(after="60 days", country="PT"),
        expect=[
            email(user_id="ann", window="2026-01-06 12:00:00"),
            email(user_id="ann", window="2026-05-06 12:00:00"),
        ],
    ),
]
