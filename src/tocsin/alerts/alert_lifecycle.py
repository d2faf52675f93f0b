"""End alerts, and remove old ones: what `recording` has opened.

An alert is resolved once its period is over and nothing waits to be sent. One about something missing ends earlier,
when a later window has closed without a finding. That follows from the findings in the DB and the reported watermark,
and an alert ends in one transaction with its notifications: the result is the same however often a process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, not_, or_, select, update

from tocsin.alerts import actions, alert_policy, alert_states
from tocsin.alerts.alert_policy import LastReports, NotificationKind
from tocsin.alerts.alert_states import Action, AlertState, AlertStatus, Change
from tocsin.alerts.notify import outbox
from tocsin.alerts.notify.outbox import CHUNK
from tocsin.alerts.store.alert_rows import (
    further_notifications,
    is_followed,
    notified,
    planned_notification,
    read_facts,
)
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import (
    alert_evidence,
    alert_transitions,
    alerts,
    findings,
    invalid_findings,
    job_usage,
    notifications,
)
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.model.names import INDEXER, detector_job

_LOOKS_BACK = timedelta(days=1)
"""So long after the next window has ended an alert may still end this way."""
_RETURNED = NotificationKind.RETURNED.value
_NEVER = datetime.max.replace(tzinfo=UTC)
_log = structlog.get_logger()


@dataclass(frozen=True)
class Missing:
    """An alert about something that was missing, and of which people were notified at once."""

    id: int
    detector: str
    revision: int
    last_end: datetime  # of the last window in which it was missing, UTC


class Returns:
    """Looks which alerts have ended, and ends them."""

    def __init__(self, database: Database, reports: Callable[[], Mapping[str, JobReport]], domain: str) -> None:
        self._database, self._reports, self._domain = database, reports, domain
        self._closed_at: dict[Missing, datetime] = {}

    def look(self, now: datetime) -> None:
        """End the alerts that are over by `now`, none while reports cannot be read; TransientError as of `Database`."""
        with self._database.read() as connection:
            every = {name: facts.looks_every for name, facts in read_facts(connection).items() if facts.looks_every}
            missing = missing_of(connection, every, now) if every else []
        try:
            reports = self._reports() if missing else {}
        except TransientError:
            return
        self._closed_at = {alert: at for alert, at in self._closed_at.items() if alert in missing}
        for alert in missing:
            jobs = LastReports(reports.get(detector_job(alert.detector)), reports.get(INDEXER))
            known = self._closed_at.get(alert)
            closing = alert_policy.closing(alert.last_end + every[alert.detector], _NEVER, jobs, now, known)
            if closing.closed_at is not None:
                self._closed_at[alert] = closing.closed_at
            if closing.ready:
                with self._database.write() as connection:
                    self._end(connection, alert, every, now)

    def _end(self, connection: Connection, alert: Missing, every: Mapping[str, timedelta], now: datetime) -> None:
        if alert not in missing_of(connection, every, now):
            return
        row = connection.execute(select(alerts).where(alerts.c.id == alert.id)).one()
        revision = alert.revision + 1
        before = actions.status_of(row._mapping)
        status = before if before.state is AlertState.RESOLVED else AlertStatus(AlertState.RESOLVED, row.level)
        ended = {"returned_at": alert.last_end, "revision": revision, "updated_at": now}
        ended |= actions.status_values(status)
        same = and_(alerts.c.id == alert.id, alerts.c.revision == alert.revision)  # the indexer may write beside it
        if connection.execute(update(alerts).where(same).values(ended)).rowcount == 0:
            return
        change = Change(status, Action.RETURNED, "tocsin", "what was missing has come back")
        connection.execute(insert(alert_transitions).values(actions.transition_values(alert.id, change, now)))
        last = select(findings.c.finding_id).where(_counts(alert.id)).order_by(findings.c.moment.desc()).limit(1)
        about = planned_notification(connection.execute(last).scalar_one(), alert.last_end, now)
        about |= {"kind": _RETURNED, "state": "pending"}
        to = sorted({to for _, _, to in notified(connection, [alert.id])})
        planned = further_notifications(row, revision, to, about, self._domain)
        if planned:
            connection.execute(insert(notifications), planned)
        _log.info("alert ended", alert=alert.id, detector=alert.detector, until=alert.last_end.isoformat())


def missing_of(connection: Connection, every: Mapping[str, timedelta], now: datetime) -> list[Missing]:
    """List the alerts about what is missing that have not ended, are the last of their entity, and have been notified.

    `every` is the time from the start of one window to the next, of each detector that expects entities.
    """
    # Its end would overtake a notification that gathers, or hide in one message with it.
    waits = exists().where(notifications.c.alert_id == alerts.c.id, notifications.c.state.in_(("waiting", "pending")))
    # Where another refused it, `outbox.forget_refused` has emptied `notified_at_once`.
    has_reached = exists().where(
        notifications.c.alert_id == alerts.c.id,
        notifications.c.kind.in_(("urgent", "email")),
        notifications.c.state == "sent",
    )
    last_end = select(func.max(findings.c.window_end)).where(_counts(alerts.c.id)).scalar_subquery()
    query = select(alerts.c.id, alerts.c.detector, alerts.c.revision, last_end.label("last_end")).where(
        alerts.c.detector.in_(every),
        or_(alerts.c.notified_at_once != "", has_reached),
        last_end > now - (_LOOKS_BACK + max(every.values())),
        ~is_followed(),
        ~waits,
        or_(alerts.c.returned_at.is_(None), alerts.c.returned_at < last_end),
    )
    return [Missing(*row) for row in connection.execute(query) if row.last_end is not None]


def _counts(alert: int | ColumnElement[int]) -> ColumnElement[bool]:
    return and_(findings.c.alert_id == alert, findings.c.superseded_at.is_(None))


def find_over(connection: Connection, now: datetime) -> list[int]:
    """Open alerts whose period is over and which have nothing left to send."""
    return list(connection.execute(select(alerts.c.id).where(_is_over(now)).limit(CHUNK)).scalars())


def resolve(connection: Connection, ids: Sequence[int], now: datetime) -> None:
    """Resolve alerts, if they are over still."""
    own = select(alerts).where(alerts.c.id.in_(ids), _is_over(now)).order_by(alerts.c.id).with_for_update()
    rows = connection.execute(own).mappings()
    ends = {row["id"]: alert_states.end_quietly(actions.status_of(row)) for row in rows}
    changes = {alert: change for alert, change in ends.items() if change}
    actions.write_changes(connection, changes, now)
    outbox.add_updates(connection, list(changes), now)


def _is_over(now: datetime) -> ColumnElement[bool]:
    states = ("waiting", "pending", "leaving")
    # A line that waits a day for its summary does not keep its alert open.
    awaited = (notifications.c.state.in_(states), notifications.c.kind != NotificationKind.CONTINUING.value)
    unsent = exists().where(notifications.c.alert_id == alerts.c.id, *awaited)
    return and_(alerts.c.state == "open", alerts.c.period_end <= now, not_(unsent))


def prune(connection: Connection, before: datetime) -> int:
    """Remove a chunk of what is older than `before`, UTC; returns how many rows, 0 once nothing is left.

    An alert that is resolved goes with its findings and notifications, whatever superseded them. A finding without an
    alert goes by its moment, or by when it was first found if that is later. An open alert stays, with all that belongs
    to it. Which days were backfilled stays, too, or the indexer would store them again.
    """
    return _prune_alerts(connection, before) or _prune_others(connection, before)


def _prune_alerts(connection: Connection, before: datetime) -> int:
    resolved = (alerts.c.state == "resolved", alerts.c.updated_at < before, alerts.c.period_end < before)
    ids = list(connection.execute(select(alerts.c.id).where(*resolved).limit(CHUNK)).scalars())
    if not ids:
        return 0
    count = connection.execute(delete(notifications).where(notifications.c.alert_id.in_(ids))).rowcount
    chunk = select(findings.c.finding_id).where(findings.c.alert_id.in_(ids)).limit(CHUNK)
    removed = connection.execute(delete(findings).where(findings.c.finding_id.in_(chunk))).rowcount
    if removed < CHUNK:
        for table in (alert_transitions, alert_evidence):
            count += connection.execute(delete(table).where(table.c.alert_id.in_(ids))).rowcount
        count += connection.execute(delete(alerts).where(alerts.c.id.in_(ids))).rowcount
    return count + removed


def _prune_others(connection: Connection, before: datetime) -> int:
    lone = (findings.c.alert_id.is_(None), findings.c.moment < before, findings.c.first_detected_at < before)
    chunk = select(findings.c.finding_id).where(*lone).limit(CHUNK)
    count = connection.execute(delete(findings).where(findings.c.finding_id.in_(chunk))).rowcount
    own = notifications.c
    notices = (own.kind == "notice", own.state.in_(("sent", "failed")), own.created_at < before)
    count += connection.execute(delete(notifications).where(*notices)).rowcount
    count += connection.execute(delete(job_usage).where(job_usage.c.day < before.date())).rowcount
    seen_at = invalid_findings.c.seen_at
    edge = connection.execute(select(seen_at).where(seen_at < before).order_by(seen_at).offset(CHUNK).limit(1)).scalar()
    return count + connection.execute(delete(invalid_findings).where(seen_at < (edge or before))).rowcount
