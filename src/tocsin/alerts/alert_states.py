"""The states of an alert, and all that moves it from one to another. Pure; the caller passes the time.

    open          people are notified
    acknowledged  somebody looks at it: nobody is notified, until the acknowledgement expires or the level rises
    resolved      by a person with a verdict, or because nothing more was found in its period

Silences and wider alerts change no state: they mute its notifications, see `tocsin.alerts.notify.muting`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

LEVELS = {"": 0, "email": 1, "urgent": 2}
ACKNOWLEDGED_FOR = timedelta(hours=4)
"""An acknowledgement unless its person says otherwise: half a shift."""


class AlertState(StrEnum):
    """See the module."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class Verdict(StrEnum):
    """The judgement of a person who resolves an alert."""

    TRUE = "true"
    EXPECTED = "expected"
    """It happened, and is no fault: a load test, a new customer."""
    FALSE = "false"


class Action(StrEnum):
    """What happened to an alert; one row of its history each."""

    OPENED = "opened"
    RAISED = "raised"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    RESOLVED = "resolved"
    QUIET = "quiet"
    RETURNED = "returned"
    REOPENED = "reopened"
    MUTED = "muted"
    UNMUTED = "unmuted"


@dataclass(frozen=True)
class AlertStatus:
    """What people and rules have made of an alert so far.

    Attributes:
        until, by: of the acknowledgement; None and empty unless it is acknowledged.
    """

    state: AlertState
    level: str
    until: datetime | None = None
    by: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Change:
    """A step of an alert: its status after it, and what its history says."""

    status: AlertStatus
    action: Action
    who: str
    why: str = ""


class CannotChange(ValueError):
    """The alert is no longer in a state in which this can be done; the text says in which, and whose doing that is."""


def acknowledge(status: AlertStatus, who: str, until: datetime, why: str, now: datetime) -> Change:
    """Acknowledge an alert until a time; another person, or a later time, replaces what was said before.

    CannotChange if it is resolved. ValueError if the time is over.
    """
    if until <= now:
        raise ValueError("an acknowledgement must end later than now")
    if status.state is AlertState.RESOLVED:
        raise CannotChange(f"it is resolved{_by(status)}; a new finding at a higher level opens it again")
    after = replace(status, state=AlertState.ACKNOWLEDGED, until=until, by=who)
    return Change(after, Action.ACKNOWLEDGED, who, why)


def resolve(status: AlertStatus, who: str, verdict: Verdict | None, why: str) -> Change:
    """Resolve an alert with a verdict, or None where its person cannot say one. It may be said later, or changed."""
    if status.state is AlertState.RESOLVED and verdict in (None, status.verdict):
        raise CannotChange(f"it is resolved{_by(status)} already")
    said = verdict.value if verdict else ""
    after = replace(status, state=AlertState.RESOLVED, until=None, by=who, verdict=said)
    return Change(after, Action.RESOLVED, who, ": ".join(filter(None, (said, why))))


def raise_level(status: AlertStatus, level: str, version: str) -> Change | None:
    """Take one more finding of `level`: a higher level breaks through what people said; None if nothing changes."""
    if LEVELS[level] <= LEVELS[status.level]:
        return None
    raised = AlertStatus(AlertState.OPEN, level)
    action = Action.REOPENED if status.state is AlertState.RESOLVED else Action.RAISED
    return Change(raised, action, f"detector {version}", f"{status.level} to {level}")


def renew(status: AlertStatus, version: str) -> Change | None:
    """Open an alert again, of which people are to be notified once more; what a person has said of it stays."""
    return None if status.verdict else reopen(status, version)


def reopen(status: AlertStatus, version: str) -> Change | None:
    """Open an alert again, whatever a person has said of it; None if it is not resolved."""
    if status.state is not AlertState.RESOLVED:
        return None
    return Change(AlertStatus(AlertState.OPEN, status.level), Action.REOPENED, f"detector {version}")


def expire(status: AlertStatus, now: datetime) -> Change | None:
    """End an acknowledgement whose time is over; None if there is none."""
    if status.state is not AlertState.ACKNOWLEDGED or status.until is None or status.until > now:
        return None
    after = replace(status, state=AlertState.OPEN, until=None, by="")
    return Change(after, Action.EXPIRED, "tocsin", f"acknowledged by {status.by} until {status.until:%H:%M} UTC")


def follow(before: AlertStatus, level: str, now: datetime) -> AlertStatus:
    """Begin the next alert of an entity: an acknowledgement extends to it, up to the level that was acknowledged."""
    is_acknowledged = before.state is AlertState.ACKNOWLEDGED and before.until is not None and before.until > now
    if is_acknowledged and LEVELS[level] <= LEVELS[before.level]:
        return replace(before, level=level)
    return AlertStatus(AlertState.OPEN, level)


def end_quietly(status: AlertStatus) -> Change | None:
    """Resolve an alert whose period is over and which has nothing left to send; None if it is resolved."""
    if status.state is AlertState.RESOLVED:
        return None
    after = AlertStatus(AlertState.RESOLVED, status.level)
    return Change(after, Action.QUIET, "tocsin", "nothing more was found in its period")


def _by(status: AlertStatus) -> str:
    return f" by {status.by} ({status.verdict or 'no verdict'})" if status.by else " (nothing more was found)"
