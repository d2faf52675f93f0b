"""What people do about alerts: the same few functions for the command line, the pages, signed links and receivers.

Each is one step inside the caller's write transaction, and records who did what, when and why. Doing it twice changes
nothing, and of two people who act at once the second learns what the first has done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection, bindparam, insert, select, update

from tocsin.alerts import alert_states
from tocsin.alerts.alert_states import AlertState, AlertStatus, CannotChange, Change, Verdict
from tocsin.alerts.notify import outbox
from tocsin.alerts.store.alert_rows import same_entity
from tocsin.alerts.store.schema import alert_transitions, alerts, silences
from tocsin.declare.model.alert_matcher import AlertMatcher

LONGEST_TEXT = 1000
"""Characters of a reason: it is shown on pages and in mails."""


@dataclass(frozen=True)
class Actor:
    """The person (or program) that acts, when (UTC), and why. ValueError if a text is too long."""

    who: str
    at: datetime
    why: str = ""

    def __post_init__(self) -> None:
        for text in (self.who, self.why):
            if len(text) > LONGEST_TEXT:
                raise ValueError(f"{len(text):,} characters are too long; {LONGEST_TEXT:,} are the most")


class Silence(BaseModel, frozen=True):
    """A mute for the alerts that `matcher` takes, from `starts_at` to `ends_at`, UTC."""

    id: int
    matcher: AlertMatcher
    owner: str
    reason: str
    created_at: datetime
    starts_at: datetime
    ends_at: datetime
    ended_by: str = ""


class ActionResult(BaseModel, frozen=True):
    """Outcome of an action for one alert: `refused` says why nothing was done, and is empty when it was."""

    alert: int
    state: str
    refused: str = ""


def acknowledge(
    connection: Connection, ids: Iterable[int], by: Actor, until: datetime | None = None
) -> list[ActionResult]:
    """Acknowledge alerts, for four hours unless `until` says otherwise.

    ValueError if `until` is over, or a text of `by` is too long.
    """
    end = until or by.at + alert_states.ACKNOWLEDGED_FOR
    return _change(connection, ids, by, lambda status: alert_states.acknowledge(status, by.who, end, by.why, by.at))


def resolve(connection: Connection, ids: Iterable[int], by: Actor, verdict: Verdict | None) -> list[ActionResult]:
    """Resolve alerts with a verdict, None if it cannot be said; ValueError as of `acknowledge`."""
    return _change(connection, ids, by, lambda status: alert_states.resolve(status, by.who, verdict, by.why))


def silence(
    connection: Connection, matcher: AlertMatcher, by: Actor, ends_at: datetime, *, everything: bool = False
) -> Silence:
    """Mute alerts from now on, until a time.

    ValueError if the owner, the reason or the end is missing, the end is over, or the matcher takes every alert and
    `everything` is not set.
    """
    if not by.who.strip() or not by.why.strip():
        raise ValueError("a silence needs an owner and a reason")
    if ends_at <= by.at:
        raise ValueError("a silence must end later than now")
    if matcher.takes_all and not everything:
        raise ValueError("this would mute every alert of every detector; say which, or confirm that all are meant")
    values: dict[str, Any] = {"matcher": matcher.model_dump(mode="json", exclude_defaults=True), "ended_by": ""}
    values |= {"owner": by.who, "reason": by.why.strip()}
    values |= {"created_at": by.at, "starts_at": by.at, "ends_at": ends_at}
    made = connection.execute(insert(silences).values(values).returning(silences)).mappings().one()
    return Silence.model_validate(dict(made))


def unsilence(connection: Connection, silence_id: int, by: Actor) -> Silence:
    """End a silence now; one that has ended stays as it is. LookupError if there is none of that id."""
    own = silences.c.id == silence_id
    ended = update(silences).where(own, silences.c.ends_at > by.at).values(ends_at=by.at, ended_by=by.who)
    connection.execute(ended)
    row = connection.execute(select(silences).where(own)).mappings().first()
    if row is None:
        raise LookupError(f"there is no silence {silence_id}")
    return Silence.model_validate(dict(row))


def list_silences(connection: Connection, now: datetime, *, ended: bool = False) -> list[Silence]:
    """List the silences that have not ended, those that end first in front; or all of them, the newest first."""
    query = select(silences).order_by(silences.c.id.desc())
    if not ended:
        query = select(silences).where(silences.c.ends_at > now).order_by(silences.c.ends_at, silences.c.id)
    return [Silence.model_validate(dict(row)) for row in connection.execute(query).mappings()]


def list_active(connection: Connection, now: datetime) -> list[Silence]:
    """List the silences that mute now, those that end first in front."""
    return [silence for silence in list_silences(connection, now) if silence.starts_at <= now]


def find_continuing(connection: Connection, alert: int) -> int:
    """Find the unresolved alert in which the entity of `alert` goes on, if that ended by itself; else `alert`."""
    ended, later = alerts.alias(), alerts.c
    own = (ended.c.id == alert, ended.c.state == AlertState.RESOLVED.value, ended.c.acknowledged_by == "")
    found = select(later.id).where(*own, same_entity(ended), later.state != AlertState.RESOLVED.value)
    return connection.execute(found.order_by(later.period_start.desc()).limit(1)).scalar() or alert


def status_of(row: Mapping[Any, Any]) -> AlertStatus:
    """Read the status in a row of `alerts`."""
    return AlertStatus(
        AlertState(row["state"]), row["level"], row["acknowledged_until"], row["acknowledged_by"], row["verdict"]
    )


def status_values(status: AlertStatus) -> dict[str, Any]:
    """Write it."""
    return {
        "state": status.state.value,
        "level": status.level,
        "acknowledged_until": status.until,
        "acknowledged_by": status.by,
        "verdict": status.verdict,
    }


def transition_values(alert: int, change: Change, now: datetime) -> dict[str, Any]:
    """Write a row of the history of an alert."""
    return {
        "alert_id": alert,
        "at": now,
        "who": change.who,
        "action": change.action.value,
        "state": change.status.state.value,
        "why": change.why[:LONGEST_TEXT],
    }


def write_changes(connection: Connection, changes: Mapping[int, Change], now: datetime) -> None:
    """Store the new status of each alert, and its line of history."""
    if changes:
        own = update(alerts).where(alerts.c.id == bindparam("alert")).values(updated_at=now)
        connection.execute(own, [{"alert": alert} | status_values(change.status) for alert, change in changes.items()])
        rows = [transition_values(alert, change, now) for alert, change in changes.items()]
        connection.execute(insert(alert_transitions), rows)


def _change(
    connection: Connection, ids: Iterable[int], by: Actor, step: Callable[[AlertStatus], Change]
) -> list[ActionResult]:
    wanted = list(dict.fromkeys(ids))
    # In one order, as everywhere: two who act on the same ones would wait for each other.
    own = select(alerts).where(alerts.c.id.in_(wanted)).order_by(alerts.c.id).with_for_update()
    rows = connection.execute(own).mappings()
    found = {row["id"]: status_of(row) for row in rows}
    changes, done = {}, []
    for alert in wanted:
        if alert not in found:
            done.append(ActionResult(alert=alert, state="", refused="there is no such alert"))
            continue
        try:
            changes[alert] = step(found[alert])
            done.append(ActionResult(alert=alert, state=changes[alert].status.state.value))
        except CannotChange as error:
            done.append(ActionResult(alert=alert, state=found[alert].state.value, refused=str(error)))
    write_changes(connection, changes, by.at)
    outbox.add_updates(connection, list(changes), by.at)
    return done


def in_hours(now: datetime, hours: float) -> datetime:
    """The end of what begins `now` and takes `hours`; ValueError unless they are more than 0, and a year at most."""
    if not 0 < hours <= 8766:
        raise ValueError(f"{hours:g} hours: must be more than 0, and a year at most")
    return now + timedelta(hours=hours)
