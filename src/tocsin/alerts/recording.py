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

from sqlalchemy import Connection, and_, bindparam, insert, or_, select, update

from tocsin.alerts import actions, alert_policy, alert_states, finding_merging
from tocsin.alerts.alert_policy import DetectorFacts, NotificationKind, SentBefore
from tocsin.alerts.alert_states import Action, AlertState, AlertStatus, Change
from tocsin.alerts.finding_merging import LastWord, StoredFinding
from tocsin.alerts.store.alert_rows import (
    alert_parts,
    entity_hash,
    finding_values,
    message_id,
    notified,
    planned_notification,
    stored_finding,
)
from tocsin.alerts.store.schema import alert_transitions, alerts, backfilled_days, findings, notifications
from tocsin.declare.model.alert_matcher import AlertLabels
from tocsin.declare.model.finding import Finding
from tocsin.declare.routes import NO_ROUTES, Routes

_AT_ONCE = 500
"""Findings in one statement: a DB bounds the number of values in it."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All that decides about a batch; `paged` are the `urgent_recipients` of `routes`, message ids are of `domain`.

    An e-mail waits `incomplete_after` for a window to close while its job is down or behind.
    """

    facts: Mapping[str, DetectorFacts]
    routes: Routes = NO_ROUTES
    paged: tuple[str, ...] = ()
    incomplete_after: timedelta = timedelta(minutes=2)
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
    planned: list[tuple[NotificationKind, Finding]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    changed: bool = False

    def change(self, change: Change | None) -> None:
        """Take a step of its state, which its history keeps."""
        if change is not None:
            self.status, self.changed = change.status, True
            self.changes.append(change)

    def plan(self, kind: NotificationKind, finding: Finding) -> None:
        """Plan a notification. A mail of its own replaces all that was planned before, a delayed line another one."""
        self.change(alert_states.renew(self.status, finding.version))
        self.sent, self.changed = self.sent.plus(kind, finding.level), True
        others = [plan for plan in self.planned if plan[0] is not kind] if kind is NotificationKind.DELAYED else []
        self.planned = [*others, (kind, finding)]


@dataclass(eq=False)
class _Row:
    stored: StoredFinding
    alert: _Alert | None = None
    new: bool = False
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
    """A part of a batch in memory: loaded at once, folded record by record, written at once."""

    def __init__(self, connection: Connection, rules: Rules, now: datetime, done: Recorded) -> None:
        self._connection, self._rules, self._now = connection, rules, now
        self._rows: dict[str, _Row] = {}
        self._last_words: dict[tuple[str, date], LastWord] = {}
        self._alerts: dict[tuple[str, str], list[_Alert]] = {}
        self.done = done

    def load(self, batch: Sequence[Finding]) -> None:
        stored = select(findings).where(findings.c.finding_id.in_({f.finding_id for f in batch}))
        rows = self._connection.execute(stored).mappings().all()
        by_id = self._load_alerts(batch, {row["alert_id"] for row in rows if row["alert_id"] is not None})
        self._rows = {row["finding_id"]: _Row(stored_finding(row), by_id.get(row["alert_id"])) for row in rows}
        self._load_last_words(batch)

    def _load_alerts(self, batch: Sequence[Finding], ids: set[int]) -> dict[int, _Alert]:
        moments = [f.moment for f in batch]
        declared = [(f, self._rules.facts[f.detector]) for f in batch if f.detector in self._rules.facts]
        span = max((facts.dedup_period for _, facts in declared), default=timedelta(0))
        hashes = {entity_hash(alert_policy.dedup_key(f.entity, facts)) for f, facts in declared}
        own_key = and_(alerts.c.detector.in_({f.detector for f in batch}), alerts.c.entity_hash.in_(hashes))
        near = and_(own_key, alerts.c.period_start.between(min(moments) - 2 * span, max(moments) + span))
        by_id = {}
        acknowledged = and_(own_key, alerts.c.acknowledged_until > self._now)  # goes on in later periods
        # Locked: the notifier may end one of them, and a notification of the same revision would be refused.
        own = (
            select(alerts).where(or_(near, acknowledged, alerts.c.id.in_(ids))).order_by(alerts.c.id).with_for_update()
        )
        for row in self._connection.execute(own).mappings():
            before, status = SentBefore(row["told_at_once"], row["told_delayed"]), actions.status_of(row)
            alert = _Alert(row["detector"], row["entity"], row["period_start"], status, id=row["id"], sent=before)
            alert.revision, alert.returned_at = row["revision"], row["returned_at"]
            by_id[row["id"]] = alert
            self._alerts.setdefault((row["detector"], row["entity"]), []).append(alert)
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
            row = _Row(finding_merging.first(finding, declared, last_word, self._now), new=True)
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
        status, goes_on = AlertStatus(AlertState.OPEN, finding.level), False
        if before is not None:
            status = alert_states.follow(before.status, finding.level, self._now)
            goes_on = alert_policy.goes_on(finding, facts, before.period_start, before.sent)
        alert = _Alert(finding.detector, entity, moment, status)
        if goes_on:
            alert.sent = SentBefore(at_once=finding.level)
            alert.plan(NotificationKind.DELAYED, finding)
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
            **{"told_at_once": alert.sent.at_once, "told_delayed": alert.sent.delayed},
            **{"revision": alert.revision, "returned_at": alert.returned_at, "updated_at": self._now},
            "guide": facts.guide,
        }

    def _store_findings(self) -> None:
        new = [row for row in self._rows.values() if row.new]
        if new:
            self._connection.execute(insert(findings), [_values_of(row) for row in new])
        changed = [row for row in self._rows.values() if row.changed and not row.new]
        if changed:
            same = update(findings).where(findings.c.finding_id == bindparam("known_id"))
            rows = [_values_of(row) for row in changed]
            for values in rows:
                # Where the key of a row is set, SQLite looks through all notifications for those that point to it.
                values["known_id"] = values.pop("finding_id")
            self._connection.execute(same, rows)

    def _store_notifications(self, planned: list[_Alert]) -> None:
        """Fill the outbox; a mail of its own replaces all that waits there for its alert, a delayed line another."""
        table, delayed = notifications.c, NotificationKind.DELAYED
        ids = [alert.id for alert in planned if alert.id is not None]
        alone = {alert.id for alert in planned if any(kind is not delayed for kind, _ in alert.planned)}
        # By the alert alone: by the state SQLite would look through all that waits in the outbox.
        own = select(table.id, table.alert_id, table.kind, table.state).where(table.alert_id.in_(ids))
        waiting = [row for row in self._connection.execute(own) if row.state in ("waiting", "muted")]
        replaced = [row.id for row in waiting if row.alert_id in alone or row.kind == delayed]
        self._connection.execute(update(notifications).where(table.id.in_(replaced)).values(state="replaced"))
        before = notified(self._connection, ids)  # an address that refused its mail may get it now; others have it
        rows = [row for alert in planned for row in self._notifications(alert)]
        rows = [row for row in rows if (row["alert_id"], row["kind"], row["recipient"]) not in before]
        if rows:
            self._connection.execute(insert(notifications), rows)

    def _notifications(self, alert: _Alert) -> list[dict[str, Any]]:
        facts, first = self._rules.facts[alert.detector], alert.revision - len(alert.planned) + 1
        rows = []
        for revision, (kind, finding) in enumerate(alert.planned, start=first):
            self.done.notifications[kind] = self.done.notifications.get(kind, 0) + 1
            common = {"alert_id": alert.id, "detector": alert.detector, "revision": revision}
            common |= self._leaving(kind, finding, facts)
            parts = [*alert_parts(alert.detector, alert.entity, alert.period_start), str(revision)]
            rows += [
                common | {"recipient": to, "message_id": message_id(self._rules.domain, [*parts, to])}
                for to in self._recipients(kind, alert, facts)
            ]
        return rows

    def _recipients(self, kind: NotificationKind, alert: _Alert, facts: DetectorFacts) -> list[str]:
        level = alert_policy.routed_level(kind)
        labels = AlertLabels(alert.detector, facts.owner, level, json.loads(alert.entity), facts.tags)
        return [to.recipient for to in self._rules.routes.recipients(labels, self._now, self._rules.paged)]

    def _leaving(self, kind: NotificationKind, finding: Finding, facts: DetectorFacts) -> dict[str, Any]:
        waits = kind is NotificationKind.DELAYED or (kind is NotificationKind.EMAIL and finding.window_end is not None)
        patience = alert_policy.patience(finding, facts, self._rules.incomplete_after, self._now)
        return planned_notification(finding.finding_id, finding.window_end, self._now) | {
            "kind": kind.value,
            "state": "waiting" if waits else "pending",
            "wait_until": patience if kind is NotificationKind.EMAIL else None,
        }


def _values_of(row: _Row) -> dict[str, Any]:
    return finding_values(row.stored) | {"alert_id": row.alert.id if row.alert else None}
