"""The outbox as the notifier moves through it. Each function is one step inside the caller's transaction.

A notification is claimed, sent and marked. A crash after the mail server accepted it and before the mark sends it a
second time, with the same Message-ID; no crash loses one.

What grows with the outbox is read in transactions that only read. Those that write get ids, `CHUNK` at most: on SQLite
the indexer waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, insert, not_, or_, select, update

from tocsin.alerts.alert_policy import NotificationKind
from tocsin.alerts.notify.channel import Message
from tocsin.alerts.store.alert_rows import Notification, message_id, planned_notification
from tocsin.alerts.store.queries import notification_of
from tocsin.alerts.store.schema import alerts, notifications

SUMMARY_EVERY = timedelta(hours=1)
SUMMARY_GATHERS = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(minutes=15)
"""After a refusal. What is further away was written before the clock was set back, and is due."""
CHUNK = 500
"""Notifications or alerts in one transaction that writes: some 20 ms on SQLite."""
_MANY_ATTEMPTS = 8
"""Take four minutes, and longer than a server makes unknown senders wait."""
_table = notifications.c
_URGENT, _EMAIL = NotificationKind.URGENT.value, NotificationKind.EMAIL.value
_DELAYED, _NOTICE = NotificationKind.DELAYED.value, NotificationKind.NOTICE.value
_ONE_BY_ONE = (_URGENT, _NOTICE, _EMAIL, NotificationKind.RETURNED.value)
_UNSENT = select(_table.id).where(_table.state.in_(("waiting", "pending"))).limit(1)


@dataclass(frozen=True)
class WaitingEmail:
    """An e-mail that waits for the window of `detector` that ends at `window_end`, until `wait_until` at most."""

    id: int
    detector: str
    window_end: datetime
    wait_until: datetime


@dataclass(frozen=True)
class ClaimFilter:
    """Choice of what to claim: what is due `now`, for `lease`, by recipients that are not `unreachable`."""

    now: datetime
    lease: timedelta
    unreachable: Collection[str] = ()


@dataclass(frozen=True)
class OutgoingMail:
    """The content of one mail: a notification of an alert, all lines of a delayed summary, or a composed `notice`.

    `first` is the notification or the first line. `ids` are of all notifications, and `alerts` has the alert of each in
    the same order; 0 for a notice.
    """

    recipient: str
    message_id: str
    first: Notification
    ids: list[int]
    alerts: list[int]
    notice: Message | None = None


def has_unsent(connection: Connection) -> bool:
    """Check whether anything waits or is to be sent: one cheap question where the answer is mostly no."""
    return connection.execute(_UNSENT).first() is not None


def add_notice(connection: Connection, message: Message, now: datetime) -> None:
    """Let a message about a job or a run leave, unless the outbox has it already."""
    known = select(_table.id).where(_table.kind == _NOTICE, _table.message_id == message.id)
    if connection.execute(known).first() is None:
        values = planned_notification(None, None, now) | {"revision": 0, "kind": _NOTICE, "state": "pending"}
        values |= {"recipient": message.recipient, "message_id": message.id, "message": message.model_dump(mode="json")}
        connection.execute(insert(notifications).values(values))


def waiting_emails(connection: Connection) -> list[WaitingEmail]:
    """E-mails that wait for their window to close."""
    columns = (_table.id, alerts.c.detector, _table.window_end, _table.wait_until)
    waiting = and_(_table.state == "waiting", _table.kind == _EMAIL)
    rows = connection.execute(select(*columns).join(alerts, alerts.c.id == _table.alert_id).where(waiting))
    return [WaitingEmail(*row) for row in rows]


def release(connection: Connection, emails: Mapping[int, str]) -> None:
    """Let e-mails leave, by id with why each may be incomplete; not those that an urgent one replaced meanwhile."""
    still = and_(_table.id == bindparam("email"), _table.state == "waiting")
    leaving = update(notifications).where(still).values(state="pending", incomplete=bindparam("why"))
    connection.execute(leaving, [{"email": email, "why": why} for email, why in emails.items()])


def next_mail(connection: Connection, wanted: ClaimFilter, domain: str) -> OutgoingMail | None:
    """Find what to claim next, urgent ones first and summaries last; None if nothing is due.

    A summary is all that is delayed for one recipient, once an hour at most. Its lines and its Message-ID are fixed
    when it is claimed first, so that a second attempt is the same mail.
    """
    for kind in _ONE_BY_ONE:
        own = select(notifications).where(_table.kind == kind, *_due(wanted))
        row = connection.execute(own.order_by(_table.next_attempt_at, _table.id).limit(1)).mappings().first()
        if row is not None:
            notice = None if row["message"] is None else Message.model_validate(row["message"])
            ids, about = [row["id"]], [row["alert_id"] or 0]
            return OutgoingMail(row["recipient"], row["message_id"], notification_of(row), ids, about, notice)
    begun = select(_table.message_id).where(_table.kind == _DELAYED, *_due(wanted))
    common = connection.execute(begun.order_by(_table.next_attempt_at, _table.id).limit(1)).scalar()
    if common is not None:
        lines = and_(_table.state == "pending", _table.message_id == common)
    else:
        lines = and_(_table.state == "waiting", _table.recipient == _next_summary(connection, wanted))
    of_summary = select(_table.id, _table.alert_id, _table.message_id).where(_table.kind == _DELAYED, lines)
    rows = connection.execute(of_summary.order_by(_table.id)).all()
    if not rows:
        return None
    first = connection.execute(select(notifications).where(_table.id == rows[0].id)).mappings().one()
    common = common or message_id(domain, [row.message_id for row in rows])
    ids, about = [row.id for row in rows], [row.alert_id for row in rows]
    return OutgoingMail(first["recipient"], common, notification_of(first), ids, about)


def claim(connection: Connection, mail: OutgoingMail, ids: Sequence[int], wanted: ClaimFilter) -> set[int]:
    """Claim notifications of `mail`, so that other notifiers leave them alone; returns those that are still free."""
    free = and_(_table.id.in_(ids), _table.state.in_(("waiting", "pending")), _free(wanted.now))
    fixed = {"state": "pending", "message_id": mail.message_id, "claimed_until": wanted.now + wanted.lease}
    return set(connection.execute(update(notifications).where(free).values(fixed).returning(_table.id)).scalars())


def detectors(connection: Connection, about: Sequence[int]) -> list[str]:
    """The detectors of some alerts, by name."""
    own = select(alerts.c.detector).distinct()
    found = (connection.execute(own.where(alerts.c.id.in_(ids))).scalars() for ids in chunks(about))
    return sorted({name for names in found for name in names})


def _next_summary(connection: Connection, wanted: ClaimFilter) -> str | None:
    """The recipient whose oldest delayed line has waited longest, among those who may get a summary now."""
    delayed, an_hour = _table.kind == _DELAYED, _table.sent_at.between(wanted.now - SUMMARY_EVERY, wanted.now)
    served = set(wanted.unreachable)
    for recent in (an_hour, _table.state == "pending"):  # one by one, each has its index
        served |= set(connection.execute(select(_table.recipient).where(delayed, recent).distinct()).scalars())
    first = func.min(_table.created_at)
    waiting = select(_table.recipient).where(delayed, _table.state == "waiting").group_by(_table.recipient)
    gathered = or_(first <= wanted.now - SUMMARY_GATHERS, first > wanted.now)  # ahead: the clock was set back
    ready = connection.execute(waiting.having(gathered).order_by(first)).scalars()
    return next((recipient for recipient in ready if recipient not in served), None)


def mark_sent(connection: Connection, ids: Sequence[int], now: datetime) -> None:
    """The mail server has accepted them."""
    sent = {"state": "sent", "sent_at": now, "claimed_until": None, "error": ""}
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(sent))


def mark_failed(connection: Connection, ids: Sequence[int], error: str, now: datetime) -> None:
    """They were refused for good. `claimed_until` says when their alerts may notify again; see `forget_refused`."""
    failed = {"state": "failed", "claimed_until": now + LONGEST_PAUSE, "error": error, "attempts": _table.attempts + 1}
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(failed))


def find_refused(connection: Connection, now: datetime) -> list[int]:
    """Notifications that were refused a while ago: by now their address may be mended."""
    refused = and_(_table.state == "failed", not_(_table.claimed_until > now))
    return list(connection.execute(select(_table.id).where(refused).limit(CHUNK)).scalars())


def forget_refused(connection: Connection, ids: Sequence[int]) -> None:
    """Let the next finding of their alerts notify again those who got nothing."""
    refused = select(_table.alert_id).where(_table.id.in_(ids))
    for column, kinds in (("told_delayed", (_DELAYED,)), ("told_at_once", (_URGENT, _EMAIL))):
        own = alerts.c.id.in_(refused.where(_table.kind.in_(kinds)))
        connection.execute(update(alerts).where(own).values({column: ""}))
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(claimed_until=None))


def postpone(connection: Connection, ids: Sequence[int], error: str, until: datetime) -> None:
    """They were refused for now."""
    later = {"next_attempt_at": until, "claimed_until": None, "error": error, "attempts": _table.attempts + 1}
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(later))


def unclaim(connection: Connection, ids: Sequence[int] | None = None) -> None:
    """Give claims back without an attempt: those of `ids`, or all (at the start of the only notifier)."""
    which = _table.claimed_until.is_not(None) if ids is None else _table.id.in_(ids)
    connection.execute(update(notifications).where(_table.state == "pending", which).values(claimed_until=None))


def counts(connection: Connection) -> dict[str, int]:
    """Notifications that are not sent, by state."""
    unsent = _table.state.in_(("waiting", "pending", "failed"))
    rows = connection.execute(select(_table.state, func.count()).where(unsent).group_by(_table.state))
    return {state: count for state, count in rows}


def stuck(connection: Connection) -> str:
    """Describe what has been tried in vain for minutes; empty if nothing has."""
    tried = and_(_table.state == "pending", _table.attempts >= _MANY_ATTEMPTS)
    count, recipient, error = func.count(), func.min(_table.recipient), func.min(_table.error)
    row = connection.execute(select(count, recipient, error).where(tried)).one()
    return f"{row[0]:,} notifications fail again and again, such as one to {row[1]}: {row[2]}" if row[0] else ""


def chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut `ids` into parts for one statement each."""
    return (ids[first : first + CHUNK] for first in range(0, len(ids), CHUNK))


def _due(wanted: ClaimFilter) -> tuple[ColumnElement[bool], ...]:
    at = _table.next_attempt_at
    has_come = or_(_table.attempts == 0, at <= wanted.now, at > wanted.now + LONGEST_PAUSE)
    return _table.state == "pending", has_come, _free(wanted.now), _table.recipient.not_in(wanted.unreachable)


def _free(now: datetime) -> ColumnElement[bool]:
    return or_(_table.claimed_until.is_(None), _table.claimed_until < now)
