"""Logins of one user from a network where none came from in the last 30 days (a stolen password, a shared account).

Catches: a login that succeeds from another part of the internet, once the user has logged in from somewhere else.
Misses: a thief in a network where the user was, and the first network of a user who is new.
When it fires, look first at: whether the user travels or has a new provider, then at what was done since that login.

A network is the first half of an IPv4 address, or the first 32 bits of an IPv6 address: about one part of a provider.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address

from tocsin import Case, Event, Levels, StepFinding, at, detector, email


@dataclass(frozen=True)
class Seen:
    """The networks of a user, with the time of the last login from each."""

    networks: dict[str, datetime] = field(default_factory=dict)


@detector(
    source="logins",
    entity="user_id",
    window=None,
    forget_after="30 days",
    levels=Levels(email=0),
    owner="security@example.com",
    runbook="docs/runbooks/new_network.md",
    false_positives="A user who travels, or changes from the office to a phone.",
    stage="shadow",
)
def step(key: str, state: Seen, event: Event) -> tuple[Seen, list[StepFinding]]:
    network = network_of(event.ip_address)
    if event.action != "login succeeded" or network is None:
        return state, []
    since = event.event_time - timedelta(days=30)
    recent = {name: seen for name, seen in state.networks.items() if seen > since}  # either way
    is_new = bool(recent) and network not in recent
    facts = {"network": network, "seen_before": ", ".join(sorted(recent)), "address": event.ip_address}
    return Seen({**recent, network: event.event_time}), [StepFinding(float(is_new), facts)]


def network_of(address: str) -> str | None:
    """Name the network of an address; None for a text that is none."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    separator = "." if parsed.version == 4 else ":"
    return separator.join(parsed.exploded.split(separator)[:2])


HOME = at("12:00:00", user_id="ann", action="login succeeded", ip_address="192.0.2.7")
ABROAD = "203.0.113.9"
CASES = [
    Case(
        "from another network, and again",
        events=HOME.then(after="1 hour", ip_address=ABROAD).then(after="1 minute").then(after="1 hour"),
        expect=[email(user_id="ann", window="13:00:00")],
    ),
    Case(
        "addresses of one network",
        events=HOME.then(after="1 hour", ip_address="192.0.113.200")
        .then(at("12:00:00", user_id="bob", action="login succeeded", ip_address="2001:db8::1"))
        .then(after="1 hour", ip_address="2001:db8:ffff::2"),
        expect=[],
    ),
    Case(
        "a network of IPv6",
        events=HOME.then(after="1 hour", ip_address="2001:db8::1"),
        expect=[email(user_id="ann", window="13:00:00")],
    ),
    Case("a login that fails", events=HOME.then(after="1 hour", ip_address=ABROAD, action="login failed"), expect=[]),
    Case("an address that is none", events=HOME.then(after="1 hour", ip_address="unknown"), expect=[]),
    Case(
        "a network of last month",
        events=HOME.then(after="1 day", ip_address=ABROAD)
        .then(after="20 days", ip_address="192.0.2.7")
        .then(after="20 days", ip_address=ABROAD),
        expect=[
            email(user_id="ann", window="2026-01-06 12:00:00"),
            email(user_id="ann", window="2026-02-15 12:00:00"),
        ],
    ),
]
