"""The outbox as the notifier moves through it. Each function is one step inside the caller's transaction.

A notification is claimed, sent and marked. A crash after the mail server accepted it and before the mark sends it a
second time, with the same Message-ID; no crash loses one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, exists, func, not_, or_, select, update

from tocsin.alerts.alert_policy import NotificationKind
from tocsin.alerts.store.alert_rows import Notification, message_id
from tocsin.alerts.store.queries import notification_of
from tocsin.alerts.store.schema import alerts, notifications

SUMMARY_EVERY = timedelta(hours=1)
SUMMARY_GATHERS = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(minutes=15)
"""After a refusal for now. What is further away was written before the clock was set back, and is due."""
_table = notifications.c
_URGENT, _EMAIL = NotificationKind.URGENT.value, NotificationKind.EMAIL.value
_DELAYED = NotificationKind.DELAYED.value
_UNSENT = select(_table.id).where(_table.state.in_(("waiting", "pending"))).limit(1)


@dataclass(frozen=True)
class WaitingEmail:
    """An e-mail that waits for the window of `detector` that ends at `window_end`, until `wait_until` at most."""

    id: int
    detector: str
    window_end: datetime
    wait_until: datetime


@dataclass(frozen=True)
class Wanted:
    """Choice of what to claim: what is due `now`, for `lease`, by recipients that are not `unreachable`."""

    now: datetime
    lease: timedelta
    unreachable: Collection[str] = ()

    @property
    def reachable(self) -> ColumnElement[bool]:
        """Select notifications that may be claimed as to their recipient."""
        return _table.recipient.not_in(self.unreachable)


@dataclass(frozen=True)
class Claimed:
    """The content of one mail: one notification of an alert, or all lines of a delayed summary.

    Attributes:
        notifications: with the alert of each, in the same order in `alerts`.
    """

    recipient: str
    message_id: str
    notifications: list[Notification]
    alerts: list[int]

    @property
    def ids(self) -> list[int]:
        """Ids of the notifications."""
        return [notification.id for notification in self.notifications]

    @property
    def findings(self) -> str:
        """The ids of the findings that led to them, for the log."""
        return ",".join(dict.fromkeys(notification.finding_id for notification in self.notifications))


def has_unsent(connection: Connection) -> bool:
    """Check whether anything waits or is to be sent: one cheap question where the answer is mostly no."""
    return connection.execute(_UNSENT).first() is not None


def waiting_emails(connection: Connection) -> list[WaitingEmail]:
    """E-mails that wait for their window to close."""
    columns = (_table.id, alerts.c.detector, _table.window_end, _table.wait_until)
    waiting = and_(_table.state == "waiting", _table.kind == _EMAIL)
    rows = connection.execute(select(*columns).join(alerts, alerts.c.id == _table.alert_id).where(waiting))
    return [WaitingEmail(*row) for row in rows]


def release(connection: Connection, waiting: WaitingEmail, incomplete: str) -> None:
    """Let an e-mail leave, with why it may be incomplete; nothing if an urgent one replaced it meanwhile."""
    still = and_(_table.id == waiting.id, _table.state == "waiting")
    connection.execute(update(notifications).where(still).values(state="pending", incomplete=incomplete))


def claim(connection: Connection, wanted: Wanted) -> Claimed | None:
    """Claim the next notification to send, urgent ones first; other notifiers leave it alone. None if none is due."""
    due = and_(_table.kind != _DELAYED, *_due(wanted))
    order = (case((_table.kind == _URGENT, 0), else_=1), _table.next_attempt_at, _table.id)
    row = connection.execute(select(notifications).where(due).order_by(*order).limit(1)).mappings().first()
    if row is None or not _lease(connection, [row["id"]], wanted):
        return None
    return Claimed(row["recipient"], row["message_id"], [notification_of(row)], [row["alert_id"]])


def claim_summary(connection: Connection, wanted: Wanted, domain: str) -> Claimed | None:
    """Claim the next delayed summary: all that is delayed for one recipient, once an hour at most; None if none is due.

    Its lines and its Message-ID are fixed at the first claim, so that a second attempt is the same mail.
    """
    begun = and_(_table.kind == _DELAYED, *_due(wanted))
    rows = connection.execute(select(notifications).where(begun).order_by(_table.id)).mappings().all()
    if rows:
        rows = [row for row in rows if row["message_id"] == rows[0]["message_id"]]
    else:
        rows = list(connection.execute(_gathered(connection, wanted)).mappings())
    ids = [row["id"] for row in rows]
    if not ids or not _lease(connection, ids, wanted):
        return None
    common = rows[0]["message_id"]
    if rows[0]["state"] == "waiting":
        common = message_id(domain, [row["message_id"] for row in rows])
        fixed = {"state": "pending", "message_id": common}
        connection.execute(update(notifications).where(_table.id.in_(ids)).values(fixed))
    lines = [notification_of(row) for row in rows]
    return Claimed(rows[0]["recipient"], common, lines, [row["alert_id"] for row in rows])


def detectors(connection: Connection, claimed: Claimed) -> list[str]:
    """The detectors of what leaves in one mail, by name."""
    own = select(alerts.c.detector).join(notifications, alerts.c.id == _table.alert_id)
    own = own.where(_table.message_id == claimed.message_id, _table.state == "pending")
    return list(connection.execute(own.distinct().order_by(alerts.c.detector)).scalars())


def _gathered(connection: Connection, wanted: Wanted) -> Select[Any]:
    """The delayed lines of the recipient whose oldest one has waited longest, among those who may get a summary now."""
    delayed = notifications.alias()
    sent = select(delayed.c.id).where(
        delayed.c.recipient == _table.recipient,
        delayed.c.kind == _DELAYED,
        or_(delayed.c.sent_at.between(wanted.now - SUMMARY_EVERY, wanted.now), delayed.c.state == "pending"),
    )
    waiting = and_(_table.kind == _DELAYED, _table.state == "waiting")
    first = func.min(_table.created_at)
    ready = select(_table.recipient).where(waiting, wanted.reachable, not_(exists(sent))).group_by(_table.recipient)
    gathered = or_(first <= wanted.now - SUMMARY_GATHERS, first > wanted.now)  # ahead: the clock was set back
    to = connection.execute(ready.having(gathered).order_by(first).limit(1)).scalar()
    return select(notifications).where(waiting, _table.recipient == to).order_by(_table.id)


def mark_sent(connection: Connection, ids: Sequence[int], now: datetime) -> None:
    """The mail server has accepted them."""
    sent = {"state": "sent", "sent_at": now, "claimed_until": None, "error": ""}
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(sent))


def mark_failed(connection: Connection, ids: Sequence[int], error: str) -> None:
    """They were refused for good."""
    failed = {"state": "failed", "claimed_until": None, "error": error, "attempts": _table.attempts + 1}
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(failed))


def postpone(connection: Connection, ids: Sequence[int], error: str, until: datetime) -> None:
    """They were refused for now."""
    later = {"next_attempt_at": until, "claimed_until": None, "error": error, "attempts": _table.attempts + 1}
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(later))


def unclaim(connection: Connection, ids: Sequence[int] | None = None) -> None:
    """Give claims back without an attempt: those of `ids`, or all (at the start of the only notifier)."""
    which = _table.claimed_until.is_not(None) if ids is None else _table.id.in_(ids)
    connection.execute(update(notifications).where(which).values(claimed_until=None))


def resolve(connection: Connection, now: datetime) -> int:
    """Resolve the open alerts whose period is over and which have nothing left to send; how many."""
    unsent = exists().where(_table.alert_id == alerts.c.id, _table.state.in_(("waiting", "pending")))
    over = and_(alerts.c.state == "open", alerts.c.period_end <= now, not_(unsent))
    return connection.execute(update(alerts).where(over).values(state="resolved", updated_at=now)).rowcount


def counts(connection: Connection) -> dict[str, int]:
    """Notifications that are not sent, by state."""
    unsent = _table.state.in_(("waiting", "pending", "failed"))
    rows = connection.execute(select(_table.state, func.count()).where(unsent).group_by(_table.state))
    return {state: count for state, count in rows}


def _due(wanted: Wanted) -> tuple[ColumnElement[bool], ...]:
    at = _table.next_attempt_at
    has_come = or_(_table.attempts == 0, at <= wanted.now, at > wanted.now + LONGEST_PAUSE)
    return _table.state == "pending", has_come, _free(wanted.now), wanted.reachable


def _free(now: datetime) -> ColumnElement[bool]:
    return or_(_table.claimed_until.is_(None), _table.claimed_until < now)


def _lease(connection: Connection, ids: list[int], wanted: Wanted) -> bool:
    """Claim all of `ids`, unless another notifier was faster with one."""
    free = and_(_table.id.in_(ids), _free(wanted.now))
    until = wanted.now + wanted.lease
    return connection.execute(update(notifications).where(free).values(claimed_until=until)).rowcount == len(ids)
