"""Removal of what is old from the alerts DB, a chunk in one transaction."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, select

from tocsin.alerts.store.schema import alerts, findings, invalid_findings, job_usage, notifications

CHUNK = 500


def prune(connection: Connection, before: datetime) -> int:
    """Remove a chunk of what is older than `before`, UTC; returns how many rows, 0 once nothing is left.

    An alert that is resolved goes with its findings and notifications, whatever superseded them. A finding without an
    alert goes by its moment, or by when it was first found if that is later. An open alert stays, with all that belongs
    to it. Which days were backfilled stays, too, or the indexer would store them again.
    """
    return _alerts(connection, before) or _others(connection, before)


def _alerts(connection: Connection, before: datetime) -> int:
    resolved = (alerts.c.state == "resolved", alerts.c.updated_at < before, alerts.c.period_end < before)
    ids = list(connection.execute(select(alerts.c.id).where(*resolved).limit(CHUNK)).scalars())
    if not ids:
        return 0
    count = connection.execute(delete(notifications).where(notifications.c.alert_id.in_(ids))).rowcount
    chunk = select(findings.c.finding_id).where(findings.c.alert_id.in_(ids)).limit(CHUNK)
    removed = connection.execute(delete(findings).where(findings.c.finding_id.in_(chunk))).rowcount
    if removed < CHUNK:
        count += connection.execute(delete(alerts).where(alerts.c.id.in_(ids))).rowcount
    return count + removed


def _others(connection: Connection, before: datetime) -> int:
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
