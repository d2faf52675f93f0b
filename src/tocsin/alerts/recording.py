"""A transaction of the indexer: findings, their alerts and the outbox, together or not at all.

Every step may be repeated: a record that was already stored changes nothing, since Kafka delivers it again when the
process dies between this transaction and the commit of the offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, insert, or_, select, update

from tocsin.alerts import actions, alert_policy, alert_states, finding_merging
from tocsin.alerts.alert_policy import SUMMARIZED, DetectorFacts, NotificationKind, SentBefore
from tocsin.alerts.alert_states import Action, AlertState, AlertStatus, Change
from tocsin.alerts.finding_merging import LastWord, StoredFinding
from tocsin.alerts.store.alert_rows import (
    entity_hash,
    finding_values,
    further_notifications,
    notified,
    planned_notification,
    stored_finding,
)
from tocsin.alerts.store.schema import alert_transitions, alerts, backfilled_days, findings, notifications
from tocsin.declare.model.alert_matcher import Level
from tocsin.declare.model.finding import Finding
from tocsin.declare.routes import NO_ROUTES, Routes

_AT_ONCE = 500
"""Findings in one statement: a DB bounds the number of values in it."""
_ALERTS = select(
    *(alerts.c[name] for name in ("id", "detector", "entity", "period_start", "revision", "returned_at")),
    *(alerts.c[name] for name in ("level", "state", "notified_at_once", "notified_delayed")),
    *(alerts.c[name] for name in ("acknowledged_until", "acknowledged_by", "verdict")),
)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All that decides about a batch; `paged` are the `urgent_recipients` of `routes`, message ids are of `domain`.

    What continues an alert waits `repeat_interval` for a summary.
    """

    facts: Mapping[str, DetectorFacts]
    routes: Routes = NO_ROUTES
    paged: tuple[str, ...] = ()
    repeat_interval: timedelta = timedelta(days=1)
    domain: str = "localhost.localdomain"


@dataclass
class Recorded:
    """Counts of new findings, of alerts that a batch has opened and, by kind, of notifications that it has planned.

    `undeclared` are records of detectors that were never declared here, stored without an alert; `superseded` are
    findings that counted and that the backfill of their day no longer reproduces.
    """

    findings: int = 0
    alerts: int = 0
    undeclared: int = 0
    notifications: dict[NotificationKind, int] = field(default_factory=dict)
    superseded: int = 0

    def add(self, other: Recorded) -> None:
        """Count the changes of one more batch."""
        self.findings += other.findings
        self.alerts += other.alerts
        self.undeclared += other.undeclared
        self.superseded += other.superseded
        for kind, count in other.notifications.items():
            self.notifications[kind] = self.notifications.get(kind, 0) + count


@dataclass(eq=False)
class _Alert:
    detector: str
    entity: str
    period_start: datetime
    status: AlertStatus
    id: int | None = None
    sent: SentBefore = field(default_factory=SentBefore)
    revision: int = 0
    returned_at: datetime | None = None
    continued: _Alert | None = None  # whose line in the next summary it replaces
    planned: list[tuple[NotificationKind, Finding]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    changed: bool = False

    def change(self, change: Change | None) -> None:
        if change is not None:
            self.status, self.changed = change.status, True
            self.changes.append(change)

    def plan(self, kind: NotificationKind, finding: Finding) -> None:
        """Plan a notification. A mail of its own replaces all that was planned before, a line of a summary another."""
        self.change(alert_states.renew(self.status, finding.version))
        self.sent, self.changed = self.sent.plus(kind, finding.level), True
        others = [plan for plan in self.planned if plan[0] not in SUMMARIZED] if kind in SUMMARIZED else []
        self.planned = [*others, (kind, finding)]


@dataclass(eq=False)
class _Row:
    """A finding; `before` are the values of its row in the DB, None for a new one."""

    stored: StoredFinding
    alert: _Alert | None = None
    before: dict[str, Any] | None = None
    changed: bool = False


def record(connection: Connection, batch: Sequence[Finding], rules: Rules, now: datetime) -> Recorded:
    """Store any number of findings, in the order of the topic, with all that follows from them.

    Every finding must have `detected_at` and no `finding_merging.faults_of`.
    """
    done = Recorded()
    for first in range(0, len(batch), _AT_ONCE):
        part, work = batch[first : first + _AT_ONCE], _Work(connection, rules, now, done)
        work.load(part)
        for finding in part:
            work.take(finding)
        work.store()
    return done


class _Work:
    def __init__(self, connection: Connection, rules: Rules, now: datetime, done: Recorded) -> None:
        self._connection, self._rules, self._now = connection, rules, now
        self._rows: dict[str, _Row] = {}
        self._last_words: dict[tuple[str, date], LastWord] = {}
        self._alerts: dict[tuple[str, str], list[_Alert]] = {}
        self._replaced_lines: dict[int | None, datetime | None] = {}
        self.done = done

    def load(self, batch: Sequence[Finding]) -> None:
        stored = select(findings).where(findings.c.finding_id.in_({f.finding_id for f in batch}))
        names = findings.c.keys()
        rows = [dict(zip(names, row, strict=True)) for row in self._connection.execute(stored).all()]
        alert_of = {row["finding_id"]: row["alert_id"] for row in rows if row["alert_id"] is not None}
        by_id = self._load_alerts([f for f in batch if f.finding_id not in alert_of], set(alert_of.values()))
        self._rows = {row["finding_id"]: _Row(stored_finding(row), by_id.get(row["alert_id"]), row) for row in rows}
        self._load_last_words(batch)

    def _load_alerts(self, without: Sequence[Finding], ids: set[int]) -> dict[int, _Alert]:
        own: ColumnElement[bool] = alerts.c.id.in_(ids)
        declared = [(f, self._rules.facts[f.detector]) for f in without if f.detector in self._rules.facts]
        if declared:
            moments, span = [f.moment for f, _ in declared], max(facts.dedup_period for _, facts in declared)
            hashes = {entity_hash(alert_policy.dedup_key(f.entity, facts)) for f, facts in declared}
            own_key = and_(alerts.c.detector.in_({f.detector for f, _ in declared}), alerts.c.entity_hash.in_(hashes))
            near = and_(own_key, alerts.c.period_start.between(min(moments) - 2 * span, max(moments) + span))
            acknowledged = and_(own_key, alerts.c.acknowledged_until > self._now)  # extends to later periods
            own = or_(own, near, acknowledged)
        by_id = {}
        # Locked: the notifier may end one of them, and a notification of the same revision would be refused.
        for row in self._connection.execute(_ALERTS.where(own).order_by(alerts.c.id).with_for_update()).all():
            alert = _Alert(row.detector, row.entity, row.period_start, actions.status_of(row._mapping), id=row.id)
            alert.sent = SentBefore(row.notified_at_once, row.notified_delayed)
            alert.revision, alert.returned_at = row.revision, row.returned_at
            by_id[row.id] = alert
            self._alerts.setdefault((row.detector, row.entity), []).append(alert)
        return by_id

    def _load_last_words(self, batch: Sequence[Finding]) -> None:
        days = {f.day for f in batch}
        table = backfilled_days.c
        query = select(table.detector, table.day, table.version, table.run_id).where(
            table.detector.in_({f.detector for f in batch}), table.day.in_(days)
        )
        for detector, day, version, run_id in self._connection.execute(query):
            self._last_words[detector, day] = LastWord(version, run_id)

    def take(self, finding: Finding) -> None:
        facts = self._rules.facts.get(finding.detector)
        row = self._merge(finding, facts.version if facts else None)
        if facts is None:
            self.done.undeclared += 1
        elif row.stored.superseded_at is None and alert_policy.notifies(finding, facts, self._now):
            if row.alert is None:
                row.alert, row.changed = self._alert(finding, facts), True
            alert = row.alert
            alert.change(alert_states.raise_level(alert.status, finding.level, finding.version))
            if alert.returned_at is not None and (finding.window_end or finding.moment) > alert.returned_at:
                # Missing again: that is news, also of what a person has judged.
                alert.change(alert_states.reopen(alert.status, finding.version))
                alert.sent, alert.returned_at = SentBefore(), None
            kind = alert_policy.notification(finding, facts, alert.sent, self._now)
            if kind is not None:
                alert.plan(kind, finding)

    def _merge(self, finding: Finding, declared: str | None) -> _Row:
        last_word = self._last_words.get((finding.detector, finding.day))
        row = self._rows.get(finding.finding_id)
        if row is None:
            row = _Row(finding_merging.first(finding, declared, last_word, self._now))
            self._rows[finding.finding_id] = row
            self.done.findings += 1
            return row
        stored = finding_merging.after(row.stored, finding, declared, last_word)
        if stored != row.stored:
            row.stored, row.changed = stored, True
        return row

    def _alert(self, finding: Finding, facts: DetectorFacts) -> _Alert:
        entity = alert_policy.dedup_key(finding.entity, facts)
        near, moment = self._alerts.setdefault((finding.detector, entity), []), finding.moment
        start = alert_policy.alert_start(moment, [alert.period_start for alert in near], facts.dedup_period)
        if start is not None:
            return next(alert for alert in near if alert.period_start == start)
        before = max(near, key=lambda alert: alert.period_start, default=None)
        status = AlertStatus(AlertState.OPEN, finding.level)
        if before is not None:
            status = alert_states.follow(before.status, finding.level, self._now)
        alert = _Alert(finding.detector, entity, moment, status)
        if before is not None and alert_policy.continues(finding, facts, before.period_start, before.sent):
            alert.sent, alert.continued = SentBefore(at_once=finding.level), before.continued or before
            before.planned = [plan for plan in before.planned if plan[0] is not NotificationKind.CONTINUING]
            alert.plan(NotificationKind.CONTINUING, finding)
        why = f"acknowledged by {status.by} with the alert before" if status.by else ""
        alert.change(Change(status, Action.OPENED, f"detector {finding.version}", why))
        near.append(alert)
        self.done.alerts += 1
        return alert

    def store(self) -> None:
        """Write alerts, findings and notifications, in this order (each points to the one before)."""
        changed = [alert for near in self._alerts.values() for alert in near if alert.changed]
        self._store_alerts(changed)
        self._store_findings()
        planned = [alert for alert in changed if alert.planned]
        if planned:
            self._store_notifications(planned)

    def _store_alerts(self, changed: list[_Alert]) -> None:
        for alert in changed:
            alert.revision += len(alert.planned)
        new = [alert for alert in changed if alert.id is None]
        if new:
            returning = insert(alerts).returning(alerts.c.id, sort_by_parameter_order=True)
            rows = self._connection.execute(returning, [self._identity(a) | self._values(a) for a in new])
            for alert, row in zip(new, rows, strict=True):
                alert.id = row.id
        updated = [alert for alert in changed if alert not in new]
        if updated:
            changes = [self._values(alert) | {"alert": alert.id} for alert in updated]
            self._connection.execute(update(alerts).where(alerts.c.id == bindparam("alert")), changes)
        steps = [
            actions.transition_values(alert.id, change, self._now)
            for alert in changed
            if alert.id is not None
            for change in alert.changes
        ]
        if steps:
            self._connection.execute(insert(alert_transitions), steps)

    def _identity(self, alert: _Alert) -> dict[str, Any]:
        identity = {"detector": alert.detector, "entity": alert.entity, "entity_hash": entity_hash(alert.entity)}
        return identity | {"period_start": alert.period_start, "opened_at": self._now}

    def _values(self, alert: _Alert) -> dict[str, Any]:
        facts = self._rules.facts[alert.detector]  # an alert changes only through a declared detector
        return {
            "period_end": alert.period_start + facts.dedup_period,
            **actions.status_values(alert.status),
            **{"notified_at_once": alert.sent.at_once, "notified_delayed": alert.sent.delayed},
            **{"revision": alert.revision, "returned_at": alert.returned_at, "updated_at": self._now},
            "guide": facts.guide,
        }

    def _store_findings(self) -> None:
        new = [_values_of(row) for row in self._rows.values() if row.before is None]
        if new:
            self._connection.execute(insert(findings), new)
        changed = [(row.before, _values_of(row)) for row in self._rows.values() if row.changed and row.before]
        # Setting a column costs as much as reading it, and where it is the key, SQLite looks through all notifications.
        names = {name for before, values in changed for name, value in values.items() if value != before[name]}
        if names:
            same = update(findings).where(findings.c.finding_id == bindparam("known_id"))
            rows = [
                {name: values[name] for name in names} | {"known_id": values["finding_id"]} for _, values in changed
            ]
            self._connection.execute(same, rows)

    def _store_notifications(self, planned: list[_Alert]) -> None:
        """Fill the outbox; a mail of its own replaces all that waits there for its alert, a line of a summary another.

        The line of what continues replaces that of the alert before, and leaves when that one would have left.
        """
        table = notifications.c
        ids = {alert.id for alert in planned}
        alone = {alert.id for alert in planned if any(kind not in SUMMARIZED for kind, _ in alert.planned)}
        # By the alert alone: by the state SQLite would look through all that waits in the outbox.
        columns = (table.id, table.alert_id, table.kind, table.state, table.wait_until)
        own = select(*columns).where(table.alert_id.in_(ids | {a.continued.id for a in planned if a.continued}))
        unsent = [row for row in self._connection.execute(own) if row.state in ("waiting", "muted", "pending")]
        lines = [row for row in unsent if row.kind == NotificationKind.CONTINUING]
        late = [row for row in unsent if row.alert_id in ids and row.kind == NotificationKind.DELAYED]
        # An e-mail may gather for long, but what is urgent, or has returned, is about to leave.
        mails = [row for row in unsent if row.alert_id in alone and (row.state != "pending" or row.kind == "email")]
        replaced = {row.id for row in (*lines, *late, *mails)}
        self._connection.execute(update(notifications).where(table.id.in_(replaced)).values(state="replaced"))
        self._replaced_lines = {row.alert_id: row.wait_until for row in lines}
        # An address that refused its mail may get it now; others have it.
        before = notified(self._connection, [alert for alert in ids if alert is not None])
        rows = [row for alert in planned for row in self._notifications(alert)]
        rows = [row for row in rows if (row["alert_id"], row["kind"], row["recipient"]) not in before]
        if rows:
            self._connection.execute(insert(notifications), rows)

    def _notifications(self, alert: _Alert) -> list[dict[str, Any]]:
        facts, first = self._rules.facts[alert.detector], alert.revision - len(alert.planned) + 1
        rows = []
        for revision, (kind, finding) in enumerate(alert.planned, start=first):
            self.done.notifications[kind] = self.done.notifications.get(kind, 0) + 1
            about, to = self._leaving(kind, finding, alert, facts), self._recipients(kind, alert, facts)
            rows += further_notifications(alert, revision, to, about, self._rules.domain)
        return rows

    def _recipients(self, kind: NotificationKind, alert: _Alert, facts: DetectorFacts) -> list[str]:
        level: Level = "urgent" if kind is NotificationKind.URGENT else "email"  # a line of a summary pages nobody
        labels = facts.labels(alert.detector, level, json.loads(alert.entity))
        return [to.recipient for to in self._rules.routes.recipients(labels, self._now, self._rules.paged)]

    def _leaving(self, kind: NotificationKind, finding: Finding, alert: _Alert, facts: DetectorFacts) -> dict[str, Any]:
        waits = kind in SUMMARIZED or (kind is NotificationKind.EMAIL and finding.window_end is not None)
        wait_until = None
        if kind is NotificationKind.EMAIL:
            wait_until = alert_policy.patience(finding, facts, self._now)
        elif kind is NotificationKind.CONTINUING:
            replaced = self._replaced_lines.get(alert.continued.id) if alert.continued else None
            wait_until = replaced or self._now + self._rules.repeat_interval
        return planned_notification(finding.finding_id, finding.window_end, self._now) | {
            "kind": kind.value,
            "state": "waiting" if waits else "pending",
            "wait_until": wait_until,
        }


def _values_of(row: _Row) -> dict[str, Any]:
    return finding_values(row.stored) | {"alert_id": row.alert.id if row.alert else None}
