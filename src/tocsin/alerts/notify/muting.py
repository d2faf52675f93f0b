"""Mute notifications before they leave: of alerts that a person has answered, a silence takes, or a wider alert covers.

A muted notification leaves once what mutes it is over: in the next summary if its window is long over. It is dropped
once its alert is resolved, unless that happened by itself during a silence: nobody else would ever hear of it. The
history of the alert says both. That something is back is never muted: whoever was notified that it was missing, or has
an incident open, needs it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import Connection, and_, exists, insert, not_, or_, select, update

from tocsin.alerts import actions, alert_states
from tocsin.alerts.actions import Silence
from tocsin.alerts.alert_policy import SUMMARIZED, NotificationKind
from tocsin.alerts.alert_states import Action, AlertState, AlertStatus, Change
from tocsin.alerts.notify.outbox import CHUNK, chunks
from tocsin.alerts.store.alert_rows import (
    further_notifications,
    is_followed,
    planned_notification,
    read_facts,
    same_entity,
)
from tocsin.alerts.store.schema import alert_transitions, alerts, detectors, notifications
from tocsin.declare.model.alert_matcher import AlertLabels, Inhibition
from tocsin.declare.model.detector_guide import DetectorGuide

_table = notifications.c
_DELAYED = NotificationKind.DELAYED.value
_CONTINUING = NotificationKind.CONTINUING.value
_AT_ONCE = (NotificationKind.URGENT.value, NotificationKind.EMAIL.value)
_ACKNOWLEDGED = "acknowledged"
_NUMBERED = re.compile(r"(silence|alert) (\d+)\b")
_RETURNED = NotificationKind.RETURNED.value
_IS_DROPPED = and_(
    alerts.c.state == AlertState.RESOLVED.value,
    or_(alerts.c.acknowledged_by != "", not_(_table.muted_by.startswith("silence "))),
)
_PENDING = or_(_table.state == "pending", and_(_table.state == "waiting", _table.kind.in_(SUMMARIZED)))


@dataclass(frozen=True)
class WiderAlert:
    """An alert that is not resolved, and may mute others."""

    id: int
    labels: AlertLabels


class Mutes:
    """All that mutes notifications now."""

    def __init__(
        self, silences: Sequence[Silence] = (), inhibitions: Sequence[Inhibition] = (), wider: Sequence[WiderAlert] = ()
    ) -> None:
        self._silences, self._inhibitions = silences, inhibitions
        self._wider: dict[tuple[int, tuple[str, ...]], WiderAlert] = {}
        for number, inhibition in enumerate(inhibitions):
            for alert in wider:
                values = _values(alert.labels, inhibition.same)
                if values is not None and inhibition.wider.matches(alert.labels):
                    self._wider.setdefault((number, values), alert)

    @property
    def asks_labels(self) -> bool:
        """Return whether it depends on more than the state of an alert."""
        return bool(self._silences or self._wider)

    def why(self, status: AlertStatus, labels: AlertLabels | None) -> str:
        """Say what mutes an alert; empty if nothing does. `labels` may be None unless `asks_labels`."""
        if status.state is AlertState.ACKNOWLEDGED:
            return f"{_ACKNOWLEDGED} by {status.by}"
        if status.by:
            return f"resolved by {status.by} ({status.verdict or 'no verdict'})"
        if labels is None:
            return ""
        for silence in self._silences:
            if silence.matcher.matches(labels):
                return f"silence {silence.id} of {silence.owner}: {silence.reason}"
        for number, inhibition in enumerate(self._inhibitions):
            alert = self._wider.get((number, _values(labels, inhibition.same) or ()))
            # Two that are both wider would mute each other, and nobody would hear of either.
            if alert and inhibition.mutes(labels, alert.labels) and not inhibition.wider.matches(labels):
                return f"alert {alert.id}, which is wider: {alert.labels.detector}"
        return ""


def read_mutes(connection: Connection, inhibitions: Sequence[Inhibition], now: datetime) -> Mutes:
    """Read what mutes at present."""
    return Mutes(actions.list_active(connection, now), inhibitions, _read_wider(connection, inhibitions))


def judge(connection: Connection, about: Sequence[int], mutes: Mutes) -> dict[int, str]:
    """Find what mutes some alerts, by id; those that nothing mutes are absent."""
    answered = or_(alerts.c.state == AlertState.ACKNOWLEDGED.value, alerts.c.acknowledged_by != "")
    muted = {}
    for ids in chunks(about):
        own = select(alerts).where(alerts.c.id.in_(ids))
        for row in connection.execute(own if mutes.asks_labels else own.where(answered)).mappings():
            why = mutes.why(actions.status_of(row), _labels(row) if mutes.asks_labels else None)
            if why:
                muted[row["id"]] = why
    return muted


def mute(connection: Connection, muted: Mapping[int, str], now: datetime) -> None:
    """Hold back what would leave about some alerts, `CHUNK` at most; what a person has resolved is dropped at once."""
    for why in set(muted.values()):
        ids = [alert for alert, by in muted.items() if by == why]
        state = "dropped" if why.startswith("resolved") else "muted"
        leaving = update(notifications).where(_table.alert_id.in_(ids), _PENDING, _table.kind != _RETURNED)
        connection.execute(leaving.values(state=state, muted_by=why))
    _note(connection, Action.MUTED, muted, now)


def find_unmuted(connection: Connection, now: datetime) -> list[int]:
    """List muted notifications whose mute is over, or which are dropped: `CHUNK` at most."""
    reasons = select(_table.muted_by).where(_table.state == "muted").distinct()
    over = _over(connection, list(connection.execute(reasons).scalars()), now)
    answer_is_over = and_(_table.muted_by.startswith(_ACKNOWLEDGED), alerts.c.state == AlertState.OPEN.value)
    ends = or_(_table.muted_by.in_(over), answer_is_over, _IS_DROPPED)
    own = select(_table.id).join(alerts, alerts.c.id == _table.alert_id).where(_table.state == "muted", ends)
    return list(connection.execute(own.limit(CHUNK)).scalars())


def unmute(connection: Connection, ids: Sequence[int], now: datetime) -> None:
    """Let notifications of `find_unmuted` leave, in a summary if their window is long over; or drop them."""
    columns = (_table.id, _table.alert_id, _table.detector, _table.kind, _table.window_end, _table.created_at)
    own = select(*columns, _table.muted_by, _IS_DROPPED.label("is_dropped")).join(
        alerts, alerts.c.id == _table.alert_id
    )
    rows = connection.execute(own.where(_table.id.in_(ids), _table.state == "muted")).all()
    facts = read_facts(connection)
    after: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        page_within = facts[row.detector].page_within if row.detector in facts else timedelta.max
        is_late = row.kind in _AT_ONCE and now - (row.window_end or row.created_at) > page_within
        kind = _DELAYED if is_late else row.kind
        state = "waiting" if kind in SUMMARIZED else "pending"
        after["dropped" if row.is_dropped else state, kind].append(row.id)
    for (state, kind), leaving in after.items():
        values = {"state": state, "kind": kind} | ({} if state == "dropped" else {"muted_by": ""})
        connection.execute(update(notifications).where(_table.id.in_(leaving)).values(values))
    over = {row.alert_id: row.muted_by for row in rows if not row.is_dropped}
    _note(connection, Action.UNMUTED, over, now)
    _list_what_continues(connection, list(over), now)


def _list_what_continues(connection: Connection, ids: Sequence[int], now: datetime) -> None:
    """Let the lines of what continues these alerts leave now: nobody has heard of it, and they would wait for a day."""
    before = alerts.alias()
    later = select(alerts.c.id).where(exists().where(before.c.id.in_(ids), same_entity(before)))
    lines = and_(_table.alert_id.in_(later), _table.kind == _CONTINUING, _table.state == "waiting")
    connection.execute(update(notifications).where(lines).values(wait_until=now))


def find_expired(connection: Connection, now: datetime) -> list[int]:
    """List alerts whose acknowledgement is over: `CHUNK` at most."""
    over = (alerts.c.state == AlertState.ACKNOWLEDGED.value, alerts.c.acknowledged_until <= now)
    return list(connection.execute(select(alerts.c.id).where(*over).limit(CHUNK)).scalars())


def expire(connection: Connection, ids: Sequence[int], domain: str, now: datetime) -> None:
    """End the acknowledgements of `find_expired`, and notify once more those who were notified.

    Of the alerts of one entity only the last notifies.
    """
    over = select(alerts, is_followed().label("followed")).where(alerts.c.id.in_(ids)).order_by(alerts.c.id)
    rows = connection.execute(over.with_for_update(of=alerts)).all()
    steps = {row.id: alert_states.expire(actions.status_of(row._mapping), now) for row in rows}
    changes = {alert: change for alert, change in steps.items() if change}
    actions.write_changes(connection, changes, now)
    last = [row for row in rows if row.id in changes and not row.followed]
    # Of an alert that continues another there is but a line, which would wait a day for its summary.
    is_line, is_own = _table.kind == _CONTINUING, _table.alert_id.in_([row.id for row in last])
    mails = and_(_table.kind.in_(_AT_ONCE), _table.state.in_(("sent", "leaving", "pending", "muted")))
    lines = and_(is_line, _table.state.in_(("sent", "leaving", "waiting", "muted")))
    own = select(_table.alert_id, _table.recipient, _table.finding_id, _table.window_end).where(
        is_own, or_(mails, lines)
    )
    before = connection.execute(own.order_by(_table.revision)).all()
    waits = or_(_table.state == "muted", and_(is_line, _table.state == "waiting"))
    replaced = and_(is_own, waits, _table.kind.in_((*_AT_ONCE, _CONTINUING)))
    connection.execute(update(notifications).where(replaced).values(state="replaced"))
    renewed = []
    for row in last:
        to = {known.recipient: known for known in before if known.alert_id == row.id}
        for recipient, known in to.items():
            about = planned_notification(known.finding_id, known.window_end, now)
            about |= {"kind": row.level, "state": "pending"}
            renewed += further_notifications(row, row.revision + 1, [recipient], about, domain)
    if renewed:
        own_alerts = alerts.c.id.in_({values["alert_id"] for values in renewed})
        connection.execute(update(alerts).where(own_alerts).values(revision=alerts.c.revision + 1))
        connection.execute(insert(notifications), renewed)


def _over(connection: Connection, reasons: Sequence[str], now: datetime) -> list[str]:
    found = [(reason, match) for reason in reasons if (match := _NUMBERED.match(reason))]
    active = {silence.id for silence in actions.list_active(connection, now)}
    wider = {int(match[2]) for _, match in found if match[1] == "alert"}
    still = alerts.c.state != AlertState.RESOLVED.value
    unresolved = set(connection.execute(select(alerts.c.id).where(alerts.c.id.in_(wider), still)).scalars())
    mutes = {"silence": active, "alert": unresolved}
    return [reason for reason, match in found if int(match[2]) not in mutes[match[1]]]


def _note(connection: Connection, action: Action, why: Mapping[int, str], now: datetime) -> None:
    rows = connection.execute(select(alerts).where(alerts.c.id.in_(why))).mappings()
    lines = [
        actions.transition_values(row["id"], Change(actions.status_of(row), action, "tocsin", why[row["id"]]), now)
        for row in rows
    ]
    if lines:
        connection.execute(insert(alert_transitions), lines)


def _read_wider(connection: Connection, inhibitions: Sequence[Inhibition]) -> list[WiderAlert]:
    if not inhibitions:
        return []
    patterns = [inhibition.wider.detector or ("*",) for inhibition in inhibitions]
    names = [
        name
        for name in connection.execute(select(detectors.c.name)).scalars()
        if any(fnmatchcase(name, pattern) for own in patterns for pattern in own)
    ]
    states = (AlertState.OPEN.value, AlertState.ACKNOWLEDGED.value)
    own = select(alerts).where(alerts.c.state.in_(states), alerts.c.detector.in_(names)).order_by(alerts.c.id)
    return [WiderAlert(row["id"], _labels(row)) for row in connection.execute(own).mappings()]


def _labels(row: Mapping[Any, Any]) -> AlertLabels:
    guide = DetectorGuide.model_validate(row["guide"])
    return guide.labels(row["detector"], row["level"], json.loads(row["entity"]))


def _values(labels: AlertLabels, same: Sequence[str]) -> tuple[str, ...] | None:
    if any(name not in labels.entity for name in same):
        return None
    return tuple(labels.entity[name] for name in same)
