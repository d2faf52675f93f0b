"""Figures of findings, alerts and notifications, from the alerts DB.

What is counted here begins at 0 with the exporter, as counters do. Each reading looks at what is new alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from sqlalchemy import ColumnElement, Connection, Row, Select, func, or_, select

from tocsin.alerts.alert_policy import NotificationKind
from tocsin.alerts.finding_merging import time_of
from tocsin.alerts.notify.notices import NoticeFiles
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import alerts, findings, notifications
from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.finding import Origin
from tocsin.declare.settings import Settings
from tocsin.web.metrics.job_figures import gauge, moments

_FOUND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_SENT_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
# A transaction is seen some time after the moment that it notes.
_SLACK = timedelta(minutes=1)
# Less than a scrape may wait, so that it says what is wrong.
_BUSY_SECONDS = 1.0
_AT_ONCE = (NotificationKind.URGENT, NotificationKind.EMAIL)
_UNSENT = ("waiting", "pending", "leaving", "muted", "failed")


class AlertFigures:
    """Reads the alerts DB. For one thread.

    `stored_until` is up to when every appended finding is stored, as the indexer says; None when unknown.
    """

    def __init__(self, settings: Settings, stored_until: Callable[[], datetime | None]) -> None:
        self._settings, self._stored_until = settings, stored_until
        self._database: Database | None = None
        self._findings, self._sent, self._failed = _New(), _New(), _New()
        self._last_alert: int | None = None
        self._last_finding: dict[str, datetime] = {}
        own = self._counted = CollectorRegistry()
        self._found = Counter("tocsin_findings", "New findings of jobs", ["detector"], registry=own)
        self._opened = Counter("tocsin_alerts_opened", "New alerts", ["detector"], registry=own)
        self._left = Counter("tocsin_notifications", "Notifications that left", ["kind", "result"], registry=own)
        self._found_after = Histogram(
            "tocsin_event_to_finding_seconds",
            "From the time of the event that crossed the lowest limit to the append of the first finding",
            ["detector"],
            registry=own,
            buckets=_FOUND_BUCKETS,
        )
        self._sent_after = Histogram(
            "tocsin_crossing_to_mail_seconds",
            "From the time of the event that crossed the limit to the mail server's receipt",
            ["kind"],
            registry=own,
            buckets=_SENT_BUCKETS,
        )
        for kind in NotificationKind:
            for result in ("sent", "failed"):
                self._left.labels(kind, result)
        for kind in _AT_ONCE:
            self._sent_after.labels(kind)

    def families(self, detectors: Iterable[str]) -> Iterator[Metric]:
        """Read what is new, and make the families; those of `detectors` begin at 0.

        Raises:
            ConfigError: the schema is newer than this code.
            TransientError: the DB cannot be read now.
        """
        for detector in detectors:  # a series that begins above 0 hides its first increase
            for family in (self._found, self._opened, self._found_after):
                family.labels(detector)
        self._database = self._database or Database(
            self._settings.alerts_database, read_only=True, busy_seconds=_BUSY_SECONDS
        )
        if self._database.is_ready():
            with self._database.read() as connection:
                yield from self._states(connection)
                self._count(connection)
            yield from self._counted.collect()
            last = [((name,), at) for name, at in self._last_finding.items()]
            text = "When its job last found something new"
            yield moments("tocsin_last_finding_timestamp_seconds", text, ("detector",), last)

    def _states(self, connection: Connection) -> Iterator[Metric]:
        table = alerts.c
        opened = select(table.detector, table.level, func.count()).where(table.state == "open")
        rows = connection.execute(opened.group_by(table.detector, table.level)).all()
        labels = ("detector", "level")
        yield gauge("tocsin_alerts_open", "Alerts that are open", labels, [(row[:2], row[2]) for row in rows])
        own = notifications.c
        unsent = select(own.kind, own.state, func.count(), func.min(own.created_at)).where(own.state.in_(_UNSENT))
        left = connection.execute(unsent.group_by(own.kind, own.state)).all()
        text, labels = "Notifications that have not left, or never will", ("kind", "state")
        yield gauge("tocsin_notifications_unsent", text, labels, [(row[:2], row[2]) for row in left])
        files = NoticeFiles(self._settings.state).waiting().values()
        outboxes: dict[str, tuple[int, list[float]]] = {"alerts": (0, []), "conditions": (len(files), [*files])}
        for kind, state, count, oldest in (row for row in left if row[1] in ("pending", "leaving")):
            gathers = (state, kind) == ("pending", NotificationKind.EMAIL)
            since = oldest + self._settings.alerts.group_interval if gathers else oldest
            name = "conditions" if kind == NotificationKind.NOTICE else "alerts"
            outboxes[name] = (outboxes[name][0] + count, [*outboxes[name][1], since.timestamp()])
        counts = [((name,), float(count)) for name, (count, _) in outboxes.items()]
        yield gauge("tocsin_outbox_mails", "Mails that may leave and have not", ("outbox",), counts)
        first = [((name,), min(made)) for name, (_, made) in outboxes.items() if made]
        text = "Since when the oldest of them may leave"
        yield gauge("tocsin_outbox_oldest_timestamp_seconds", text, ("outbox",), first)

    def _count(self, connection: Connection) -> None:
        now = datetime.now(UTC)
        self._count_findings(connection, now)
        self._count_alerts(connection)
        self._count_notifications(connection, now)

    def _count_findings(self, connection: Connection, now: datetime) -> None:
        table = findings.c
        by_a_job = or_(table.origin != Origin.BACKFILL.value, table.stream.is_not(None))
        if not self._findings.begun:
            last = select(table.detector, func.max(table.first_detected_at)).where(by_a_job).group_by(table.detector)
            self._last_finding = {name: at for name, at in connection.execute(last)}
        until = min(self._stored_until() or now, now) - _SLACK
        columns = select(table.finding_id, table.detector, table.first_detected_at, table.trajectory)
        for row in self._findings.rows(connection, columns.where(by_a_job), table.first_detected_at, until):
            self._found.labels(row.detector).inc()
            before = self._last_finding.get(row.detector, row.first_detected_at)
            self._last_finding[row.detector] = max(row.first_detected_at, before)
            if row.trajectory:
                after = row.first_detected_at - time_of(row.trajectory[0][0])
                self._found_after.labels(row.detector).observe(after.total_seconds())

    def _count_alerts(self, connection: Connection) -> None:
        newest = connection.execute(select(func.max(alerts.c.id))).scalar() or 0
        since = newest if self._last_alert is None else self._last_alert
        for (detector,) in connection.execute(select(alerts.c.detector).where(alerts.c.id > since)):
            self._opened.labels(detector).inc()
        self._last_alert = newest

    def _count_notifications(self, connection: Connection, now: datetime) -> None:
        own, of = notifications.c, (alerts.c.guide, findings.c.trajectory)
        joined = select(own.id, own.kind, own.sent_at, *of).outerjoin(alerts, alerts.c.id == own.alert_id)
        sent = joined.outerjoin(findings, findings.c.finding_id == own.finding_id).where(own.state == "sent")
        for row in self._sent.rows(connection, sent, own.sent_at, now - _SLACK):
            self._left.labels(row.kind, "sent").inc()
            limit = (row.guide or {}).get(f"{row.kind}_limit")
            crossed = next((at for at, score in row.trajectory or () if limit is not None and score > limit), None)
            if row.kind in _AT_ONCE and crossed is not None:
                self._sent_after.labels(row.kind).observe((row.sent_at - time_of(crossed)).total_seconds())
        failed = select(own.id, own.kind).where(own.state == "failed")
        for row in self._failed.rows(connection, failed, own.created_at, EPOCH):
            self._left.labels(row.kind, "failed").inc()


class _New:
    """Picks the rows that were not there the last time, of those since a moment before which none comes any more."""

    def __init__(self) -> None:
        self._since: datetime | None = None
        self._known: set[Any] = set()

    @property
    def begun(self) -> bool:
        """Return whether rows were read before; the first ones are not new."""
        return self._since is not None

    def rows(
        self, connection: Connection, query: Select[Any], moment: ColumnElement[Any], until: datetime
    ) -> list[Row[Any]]:
        """Return the new rows of `query`; from now on none comes whose `moment` is before `until`."""
        since = self._since or until
        rows = connection.execute(query.where(moment >= since)).all()
        new = [row for row in rows if row[0] not in self._known] if self.begun else []
        self._since, self._known = max(since, until), {row[0] for row in rows}
        return new
