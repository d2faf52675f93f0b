"""The outbox as the notifier moves through it. Each function is one step inside the caller's transaction.

    waiting -> pending -> leaving -> sent | failed          muted -> pending | waiting | dropped

What is `pending` gathers with the others of its group (see `grouping`) until a message of it is due. A message is bound
first: its notifications become `leaving` and share its Message-ID, so that every attempt is the same message. A crash
after its receiver accepted it and before the mark sends it a second time, with the same id; no crash loses one.

Nothing here keeps two notifiers apart: an installation has one, by its lock or its StatefulSet. A second one, on
another machine, makes messages leave twice, with the same id; it loses none, and no alert leaves under two ids.

What grows with the outbox is read in transactions that only read. Those that write get ids, `CHUNK` at most: on SQLite
the indexer waits for them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Row,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    not_,
    or_,
    select,
    update,
)

from tocsin.alerts.alert_policy import SUMMARIZED, NotificationKind
from tocsin.alerts.notify import grouping
from tocsin.alerts.notify.channel import Message
from tocsin.alerts.notify.grouping import Departure, GroupState
from tocsin.alerts.store.alert_rows import (
    Notification,
    further_notifications,
    message_id,
    notification_of,
    planned_notification,
)
from tocsin.alerts.store.schema import alerts, findings, notification_groups, notifications, upsert
from tocsin.declare.receivers import RECEIVERS, kind_of

LONGEST_PAUSE = timedelta(minutes=15)
"""After a refusal. What is further away was written before the clock was set back, and is due."""
CHUNK = 500
"""Notifications or alerts in one transaction that writes: some 20 ms on SQLite."""
_MANY_ATTEMPTS = 8
"""Take four minutes, and longer than a server makes unknown senders wait."""
_REFUSALS_COUNT_FOR = timedelta(days=7)
_table = notifications.c
_URGENT, _EMAIL = NotificationKind.URGENT.value, NotificationKind.EMAIL.value
_NOTICE, _UPDATE = NotificationKind.NOTICE.value, NotificationKind.UPDATE.value
_ORDER = (_URGENT, _NOTICE, _UPDATE, _EMAIL, NotificationKind.RETURNED.value, *SUMMARIZED)
_EMAILS, _SUMMARY = "*", ""
"""Groups of one recipient that no detector names: e-mail alerts to a person, and lines of a summary."""
_rank = case({kind: rank for rank, kind in enumerate(_ORDER)}, value=_table.kind, else_=len(_ORDER))
_UNSENT = select(_table.id).where(_table.state.in_(("waiting", "pending", "leaving"))).limit(1)


@dataclass(frozen=True)
class WaitingWindow:
    """E-mails that wait for the window of `detector` that ends at `window_end`, until `wait_until` at most."""

    detector: str
    window_end: datetime
    wait_until: datetime


@dataclass(frozen=True)
class Group:
    """Notifications to one recipient that may leave together.

    Attributes:
        name: of their detector; `_EMAILS` or `_SUMMARY` for those of several.
        is_due: whether those of several detectors leave now; None for a group of one.
        lines: of a summary, what it lists.
    """

    recipient: str
    name: str
    gathered: int
    urgent: int
    state: GroupState
    is_due: bool | None = None
    interval: timedelta = grouping.WAIT
    lines: tuple[NotificationKind, ...] = SUMMARIZED

    def decide(self, gathered: int, urgent: int, now: datetime) -> Departure | None:
        """Choose what leaves, of so many alerts; see `grouping`."""
        if self.is_due is None:
            return grouping.decide(self.state, gathered, urgent, now, self.interval)
        return Departure(GroupState(now, counted_from=now, messages=1)) if gathered and self.is_due else None


@dataclass(frozen=True)
class Due:
    """What one recipient gets next: a message that is bound, or what has gathered in `group`."""

    recipient: str
    rank: int
    message_id: str = ""
    group: Group | None = None


@dataclass(frozen=True)
class OutgoingMail:
    """The content of one message: notifications of an alert or of several, or a composed `notice`.

    `first` is the most urgent notification, and the latest of those. `ids` are of all notifications, and `alerts` has
    the alert of each in the same order; 0 for a notice. `group` is the name of their group.
    """

    recipient: str
    message_id: str
    group: str
    first: Notification
    ids: list[int]
    alerts: list[int]
    notice: Message | None = None


@dataclass(frozen=True)
class Overview:
    """What a message about several alerts says of all of them."""

    alerts: int
    urgent: int
    detectors: list[str]
    highest: list[int]
    summary: bool = False
    storms: bool = False


def has_unsent(connection: Connection) -> bool:
    """Check whether anything waits or is to be sent: one cheap question where the answer is mostly no."""
    return connection.execute(_UNSENT).first() is not None


def add_notice(connection: Connection, message: Message, now: datetime) -> None:
    """Let a message about a job or a run leave, unless the outbox has it already."""
    known = select(_table.id).where(_table.kind == _NOTICE, _table.message_id == message.id)
    if connection.execute(known).first() is None:
        values = planned_notification(None, None, now) | {"revision": 0, "kind": _NOTICE, "state": "leaving"}
        values |= {"recipient": message.recipient, "message_id": message.id, "message": message.model_dump(mode="json")}
        connection.execute(insert(notifications).values(values))


def add_updates(connection: Connection, ids: Sequence[int], now: datetime) -> None:
    """Let the receivers that follow alerts know that some were answered or are over, if they were notified of them."""
    columns = (_table.alert_id, _table.recipient, _table.finding_id, _table.message_id)
    own = select(*columns).where(_table.alert_id.in_(ids), _table.state.in_(("sent", "leaving")))
    rows = [row for row in connection.execute(own) if RECEIVERS[kind_of(row.recipient)].takes_updates]
    last = {(row.alert_id, row.recipient): row for row in rows}
    changed = alerts.c.id.in_({row.alert_id for row in rows})
    connection.execute(update(alerts).where(changed).values(revision=alerts.c.revision + 1))
    planned = []
    for alert in connection.execute(select(alerts).where(changed)).all() if rows else []:
        for row in (row for (about, _), row in last.items() if about == alert.id):
            about = planned_notification(row.finding_id, None, now) | {"kind": _UPDATE, "state": "leaving"}
            domain = row.message_id.strip("<>").rpartition("@")[2]
            planned += further_notifications(alert, alert.revision, [row.recipient], about, domain)
    if planned:
        connection.execute(insert(notifications), planned)


def waiting_windows(connection: Connection) -> list[WaitingWindow]:
    """List the windows that e-mails wait for."""
    columns = (_table.detector, _table.window_end, _table.wait_until)
    waiting = select(*columns).where(_table.state == "waiting", _table.kind == _EMAIL)
    return [WaitingWindow(*row) for row in connection.execute(waiting.group_by(*columns))]


def emails_of(connection: Connection, leaving: Mapping[WaitingWindow, str]) -> dict[int, str]:
    """List the e-mails that wait for some windows, by id, with what `leaving` says of each window."""
    columns = (_table.id, _table.detector, _table.window_end, _table.wait_until)
    rows = connection.execute(select(*columns).where(_table.state == "waiting", _table.kind == _EMAIL))
    found = ((row.id, WaitingWindow(*row[1:])) for row in rows)
    return {email: leaving[window] for email, window in found if window in leaving}


def release(connection: Connection, emails: Mapping[int, str]) -> None:
    """Let e-mails leave, by id with why each may be incomplete; not those that an urgent one replaced meanwhile."""
    still = and_(_table.id == bindparam("email"), _table.state == "waiting")
    leaving = update(notifications).where(still).values(state="pending", incomplete=bindparam("why"))
    connection.execute(leaving, [{"email": email, "why": why} for email, why in emails.items()])


def list_due(connection: Connection, now: datetime, group_interval: timedelta) -> list[Due]:
    """List what may leave now: the urgent first, summaries last; no update before what it is about.

    E-mail alerts to a person leave no sooner than `group_interval` after the last ones.
    """
    has_come = or_(_table.attempts == 0, _table.next_attempt_at <= now, _table.next_attempt_at > now + LONGEST_PAUSE)
    earlier = notifications.alias()
    overtakes = and_(
        _table.kind == _UPDATE,
        exists().where(
            earlier.c.alert_id == _table.alert_id,
            earlier.c.recipient == _table.recipient,
            earlier.c.revision < _table.revision,
            earlier.c.state == "leaving",
        ),
    )
    bound = select(_table.recipient, func.min(_rank), _table.message_id).where(
        _table.state == "leaving", has_come, not_(overtakes)
    )
    bound = bound.group_by(_table.recipient, _table.message_id).order_by(func.min(_table.next_attempt_at))
    due = [Due(*row) for row in connection.execute(bound)]
    for group in _groups(connection, now, group_interval):
        if group.decide(group.gathered, group.urgent, now) is not None:
            kind = SUMMARIZED[0] if group.name == _SUMMARY else _URGENT if group.urgent else _EMAIL
            due.append(Due(group.recipient, _ORDER.index(kind), group=group))
    return sorted(due, key=lambda item: item.rank)


def _groups(connection: Connection, now: datetime, group_interval: timedelta) -> list[Group]:
    rows = connection.execute(select(notification_groups)).mappings()
    states = defaultdict(GroupState, {(row["recipient"], row["detector"]): _state_of(row) for row in rows})
    gathered, urgent = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    columns = (_table.recipient, _table.detector, _table.kind)
    own = select(*columns, func.count()).where(_table.state == "pending").group_by(*columns)
    for to, detector, kind, count in connection.execute(own):
        gathered[to, _group_of(to, detector, kind)] += count
        urgent[to, detector] += count if kind == _URGENT else 0
    groups = []
    for key, count in gathered.items():
        state = states[key]
        is_due = grouping.is_over(state.last_sent_at, group_interval, now) if key[1] == _EMAILS else None
        groups.append(Group(*key, count, urgent[key], state, is_due, group_interval))
    delayed = _lines(connection, NotificationKind.DELAYED, _table.created_at)
    continuing = _lines(connection, NotificationKind.CONTINUING, _table.wait_until)
    for to in delayed | continuing:
        (late, oldest), (more, until) = delayed.get(to, (0, None)), continuing.get(to, (0, None))
        state = states[to, _SUMMARY]
        has_come = grouping.is_due(state.last_sent_at, oldest, until, now)
        # Those of what is late leave each hour, where what continues would be listed each hour, too.
        lines = SUMMARIZED if until is not None and until <= now else (NotificationKind.DELAYED,)
        groups.append(Group(to, _SUMMARY, late + more, 0, state, has_come, lines=lines))
    return groups


def _lines(
    connection: Connection, kind: NotificationKind, at: Column[datetime]
) -> dict[str, tuple[int, datetime | None]]:
    """Count the lines of `kind` that wait for a summary, by recipient, with the first of their times."""
    lines = select(_table.recipient, func.count(), func.min(at)).where(_table.state == "waiting", _table.kind == kind)
    return {to: (count, first) for to, count, first in connection.execute(lines.group_by(_table.recipient))}


def _group_of(recipient: str, detector: str, kind: str) -> str:
    """Name the group of a notification; programs, which follow alerts, get e-mail alerts by detector as well."""
    if kind in SUMMARIZED:
        return _SUMMARY
    return _EMAILS if kind == _EMAIL and not RECEIVERS[kind_of(recipient)].takes_updates else detector


def rows_of(connection: Connection, group: Group) -> list[Row[Any, Any, Any, Any]]:
    """List all that has gathered in a group, the oldest first: `id`, `alert_id`, `kind` and `message_id`."""
    own = select(_table.id, _table.alert_id, _table.kind, _table.message_id).where(_table.recipient == group.recipient)
    if group.name == _SUMMARY:
        own = own.where(_table.state == "waiting", _table.kind.in_(group.lines))
    else:
        its_own = _table.kind == _EMAIL if group.name == _EMAILS else _table.detector == group.name
        own = own.where(_table.state == "pending", its_own)
    rows = connection.execute(own.order_by(_table.id)).all()
    return [row for row in rows if _group_of(group.recipient, group.name, row.kind) == group.name]


def bind(connection: Connection, ids: Sequence[int], message: str) -> None:
    """Make notifications part of a message; not those that were replaced or muted since."""
    still = and_(_table.id.in_(ids), _table.state.in_(("waiting", "pending")))
    connection.execute(update(notifications).where(still).values(state="leaving", message_id=message))


def write_state(connection: Connection, group: Group, state: GroupState) -> None:
    """Store what a group has sent."""
    upsert(connection, notification_groups, {"recipient": group.recipient, "detector": group.name}, vars(state))


def prune_groups(connection: Connection, before: datetime) -> None:
    """Forget the groups that have sent nothing since `before`."""
    connection.execute(delete(notification_groups).where(notification_groups.c.last_sent_at < before))


def message_of_group(rows: Sequence[Row[Any, Any, Any, Any]], domain: str) -> str:
    """Return the Message-ID under which `rows` leave: that of a single one is its own."""
    ids = [row.message_id for row in rows]
    return ids[0] if len(ids) == 1 else message_id(domain, ids)


def bound_mail(connection: Connection, recipient: str, message: str) -> OutgoingMail | None:
    """Read a message that is bound; None if there is none, or it has left."""
    own = (_table.state == "leaving", _table.recipient == recipient, _table.message_id == message)
    rows = connection.execute(select(_table.id, _table.alert_id).where(*own).order_by(_table.id)).all()
    first = select(notifications).where(*own).order_by(_rank, _table.revision.desc()).limit(1)
    row = connection.execute(first).mappings().first()
    if row is None:
        return None
    notice = None if row["message"] is None else Message.model_validate(row["message"])
    ids, about = [row.id for row in rows], [row.alert_id or 0 for row in rows]
    group = _group_of(recipient, row["detector"], row["kind"])
    return OutgoingMail(recipient, message, group, notification_of(row), ids, about, notice)


def overview(connection: Connection, mail: OutgoingMail, most: int) -> Overview:
    """Sum up a message about several alerts, and choose the `most` that it shows."""
    own = (_table.state == "leaving", _table.recipient == mail.recipient, _table.message_id == mail.message_id)
    of_alerts = select(_table.alert_id, func.max(findings.c.score).label("score"), func.min(_table.id).label("first"))
    of_alerts = of_alerts.join(findings, findings.c.finding_id == _table.finding_id).where(*own)
    each = of_alerts.group_by(_table.alert_id).subquery()
    joined = each.join(alerts, alerts.c.id == each.c.alert_id)
    is_urgent = case((alerts.c.level == _URGENT, 1), else_=0)
    highest = select(alerts.c.id).select_from(joined)
    highest = highest.order_by(is_urgent.desc(), each.c.score.desc(), each.c.first).limit(most)
    sums = select(alerts.c.detector, func.count(), func.sum(is_urgent)).select_from(joined).group_by(alerts.c.detector)
    counts = connection.execute(sums).all()
    groups = notification_groups.c
    state = select(groups.storm_since).where(groups.recipient == mail.recipient, groups.detector == mail.group)
    return Overview(
        alerts=sum(row[1] for row in counts),
        urgent=sum(row[2] for row in counts),
        detectors=sorted(row[0] for row in counts),
        highest=list(connection.execute(highest).scalars()),
        summary=mail.group == _SUMMARY,
        storms=connection.execute(state).scalar() is not None,
    )


def mark_sent(connection: Connection, ids: Sequence[int], now: datetime) -> None:
    """Their message was accepted."""
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(state="sent", sent_at=now, error=""))


def mark_failed(connection: Connection, ids: Sequence[int], error: str, now: datetime) -> None:
    """They were refused for good, at `next_attempt_at`; `forget_refused` follows after `refused_until`."""
    failed = {"state": "failed", "refused_until": now + LONGEST_PAUSE, "error": error, "attempts": _table.attempts + 1}
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(failed | {"next_attempt_at": now}))


def find_refused(connection: Connection, now: datetime) -> list[int]:
    """Notifications that were refused a while ago: by now their address may be mended."""
    refused = and_(_table.state == "failed", not_(_table.refused_until > now))
    return list(connection.execute(select(_table.id).where(refused).limit(CHUNK)).scalars())


def forget_refused(connection: Connection, ids: Sequence[int]) -> None:
    """Let the next finding of their alerts notify again those who got nothing."""
    refused = select(_table.alert_id).where(_table.id.in_(ids))
    for column, kinds in (("notified_delayed", SUMMARIZED), ("notified_at_once", (_URGENT, _EMAIL))):
        own = alerts.c.id.in_(refused.where(_table.kind.in_(kinds)))
        connection.execute(update(alerts).where(own).values({column: ""}))
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(refused_until=None))


def refused_recipients(connection: Connection, now: datetime) -> dict[str, str]:
    """Find who has refused messages for good within a week, and has accepted none since, each with the last reason."""
    failed = and_(_table.state == "failed", _table.next_attempt_at > now - _REFUSALS_COUNT_FOR)
    own = select(_table.recipient, func.max(_table.next_attempt_at)).where(failed).group_by(_table.recipient)
    found = {}
    for recipient, last in connection.execute(own).all():
        same = (_table.recipient == recipient, failed, _table.next_attempt_at == last)
        later = (_table.kind.in_(_ORDER), _table.sent_at > last, _table.recipient == recipient)
        if connection.execute(select(_table.id).where(*later).limit(1)).first() is None:
            found[recipient] = connection.execute(select(_table.error).where(*same).limit(1)).scalar_one()
    return found


def resend(connection: Connection, about: int | str | None, now: datetime) -> int:
    """Send again what was refused about an alert, by a recipient, or, for None, by anybody within a week.

    Returns how many notifications that are.

    What the recipient was notified of since, by another notification of the same alert, stays as it is.
    """
    newer = notifications.alias()
    since = exists().where(
        newer.c.alert_id == _table.alert_id,
        newer.c.recipient == _table.recipient,
        newer.c.revision > _table.revision,
        newer.c.state.in_(("waiting", "pending", "leaving", "sent")),
    )
    own = _table.next_attempt_at > now - _REFUSALS_COUNT_FOR
    if about is not None:
        own = _table.alert_id == about if isinstance(about, int) else _table.recipient == about
    again = {"state": "leaving", "attempts": 0, "error": "", "refused_until": None, "next_attempt_at": now}
    refused = update(notifications).where(_table.state == "failed", own, not_(since))
    return connection.execute(refused.values(again)).rowcount


def postpone(connection: Connection, ids: Sequence[int], error: str, until: datetime) -> None:
    """They were refused for now."""
    later = {"next_attempt_at": until, "error": error, "attempts": _table.attempts + 1}
    connection.execute(update(notifications).where(_table.id.in_(ids)).values(later))


def counts(connection: Connection) -> dict[str, int]:
    """Notifications that are not sent, by state."""
    unsent = _table.state.in_(("waiting", "pending", "leaving", "muted", "failed"))
    rows = connection.execute(select(_table.state, func.count()).where(unsent).group_by(_table.state))
    return {state: count for state, count in rows}


def stuck(connection: Connection) -> str:
    """Describe what has been tried in vain for minutes; empty if nothing has."""
    tried = and_(_table.state == "leaving", _table.attempts >= _MANY_ATTEMPTS)
    count, recipient, error = func.count(), func.min(_table.recipient), func.min(_table.error)
    row = connection.execute(select(count, recipient, error).where(tried)).one()
    return f"{row[0]:,} notifications fail again and again, such as one to {row[1]}: {row[2]}" if row[0] else ""


def chunks(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Cut `ids` into parts for one statement each."""
    return (ids[first : first + CHUNK] for first in range(0, len(ids), CHUNK))


def _state_of(row: Mapping[Any, Any]) -> GroupState:
    return GroupState(**{name: row[name] for name in GroupState.__dataclass_fields__})
