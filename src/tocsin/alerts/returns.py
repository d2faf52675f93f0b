"""End alerts about what was missing: it has come back once a later window has closed without a finding.

Nothing has to be said by the detector. Its findings are in the DB and its watermark is reported, so this comes out the
same however often a process dies in between: an alert ends, and its notifications are planned, in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, Connection, and_, exists, func, insert, or_, select, update

from tocsin.alerts import alert_policy
from tocsin.alerts.alert_policy import LastReports, NotificationKind
from tocsin.alerts.indexer import remembered
from tocsin.alerts.store.alert_rows import alert_parts, message_id, notified, planned_notification
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import alerts, findings, notifications
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
    """An alert about something that was missing, and of which people were notified at once.

    Attributes:
        id, revision: of the alert.
        detector: its name.
        last_end: end of the last window in which it was missing, UTC.
    """

    id: int
    detector: str
    revision: int
    last_end: datetime


class Returns:
    """Looks which alerts have ended, and ends them."""

    def __init__(self, database: Database, reports: Callable[[], Mapping[str, JobReport]], domain: str) -> None:
        """End alerts in `database`, with message ids below `domain`; `reports` gives the latest report of each job."""
        self._database, self._reports, self._domain = database, reports, domain
        self._closed_at: dict[Missing, datetime] = {}

    def look(self, now: datetime) -> None:
        """End the alerts that have ended by `now`; none while the reports cannot be read.

        Raises:
            TransientError: the DB cannot be used now.
        """
        with self._database.read() as connection:
            every = {name: one.looks_every for name, one in remembered(connection).items() if one.looks_every}
            missing = missing_of(connection, every, now) if every else []
        try:
            reports = self._reports() if missing else {}
        except TransientError:
            return
        self._closed_at = {one: at for one, at in self._closed_at.items() if one in missing}
        for one in missing:
            jobs = LastReports(reports.get(detector_job(one.detector)), reports.get(INDEXER))
            known = self._closed_at.get(one)
            closing = alert_policy.closing(one.last_end + every[one.detector], _NEVER, jobs, now, known)
            if closing.closed_at is not None:
                self._closed_at[one] = closing.closed_at
            if closing.ready:
                with self._database.write() as connection:
                    self._end(connection, one, every, now)

    def _end(self, connection: Connection, one: Missing, every: Mapping[str, timedelta], now: datetime) -> None:
        """End the alert of `one` and notify those who were notified of it, unless it has changed meanwhile."""
        if one not in missing_of(connection, every, now):
            return
        row = connection.execute(select(alerts).where(alerts.c.id == one.id)).one()
        revision = one.revision + 1
        ended = {"returned_at": one.last_end, "revision": revision, "state": "resolved", "updated_at": now}
        same = and_(alerts.c.id == one.id, alerts.c.revision == one.revision)  # the indexer may write beside it
        if connection.execute(update(alerts).where(same).values(ended)).rowcount == 0:
            return
        parts = [*alert_parts(row.detector, row.entity, row.period_start), str(revision)]
        last = select(findings.c.finding_id).where(_counts(one.id)).order_by(findings.c.moment.desc()).limit(1)
        about = planned_notification(connection.execute(last).scalar_one(), one.last_end, now)
        about |= {"alert_id": one.id, "revision": revision, "kind": _RETURNED, "state": "pending"}
        planned = [
            about | {"recipient": to, "message_id": message_id(self._domain, [*parts, to])}
            for to in sorted({to for _, _, to in notified(connection, [one.id])})
        ]
        if planned:
            connection.execute(insert(notifications), planned)
        _log.info("alert ended", alert=one.id, detector=one.detector, until=one.last_end.isoformat())


def missing_of(connection: Connection, every: Mapping[str, timedelta], now: datetime) -> list[Missing]:
    """List the alerts about what is missing that have not ended, are the last of their entity, and have been told.

    Args:
        connection: in a transaction.
        every: from the start of one window to the next, of each detector that expects entities.
        now: UTC.
    """
    later = alerts.alias()
    followed = exists().where(
        later.c.detector == alerts.c.detector,
        later.c.entity_hash == alerts.c.entity_hash,
        later.c.period_start > alerts.c.period_start,
    )
    waits = exists().where(notifications.c.alert_id == alerts.c.id, notifications.c.state == "waiting")
    last_end = select(func.max(findings.c.window_end)).where(_counts(alerts.c.id)).scalar_subquery()
    query = select(alerts.c.id, alerts.c.detector, alerts.c.revision, last_end.label("last_end")).where(
        alerts.c.detector.in_(every),
        alerts.c.told_at_once != "",
        last_end > now - (_LOOKS_BACK + max(every.values())),
        ~followed,
        ~waits,
        or_(alerts.c.returned_at.is_(None), alerts.c.returned_at < last_end),
    )
    return [Missing(*row) for row in connection.execute(query) if row.last_end is not None]


def _counts(alert: int | ColumnElement[int]) -> ColumnElement[bool]:
    return and_(findings.c.alert_id == alert, findings.c.superseded_at.is_(None))
