"""Findings of backfilled days that the alerts DB does not hold yet: the indexer brings them there once it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, date, datetime

from tocsin.alerts import merging
from tocsin.alerts.backfilled.published_day import UnusableDay, applied, read
from tocsin.alerts.store.alert_rows import StoredFinding
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import FindingFilter
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills, BrokenFindings, backfilled


def list_waiting(settings: Settings, database: Database, wanted: FindingFilter) -> list[StoredFinding]:
    """List those that are `wanted`, the newest window first; days that cannot be read are left out.

    Raises:
        ConfigError: the schema of the DB is newer than this code.
        TransientError: the DB cannot be read now.
    """
    found = [finding for finding in _waiting(settings, database) if _is_wanted(finding, wanted)]
    found.sort(key=lambda finding: (finding.moment, finding.finding_id), reverse=True)
    stored = [merging.first(finding, None, None, datetime.now(UTC)) for finding in found[: wanted.limit]]
    return [
        StoredFinding(finding=one.finding, first_detected_at=one.first_detected_at, alert=None, trajectory=one.points)
        for one in stored
    ]


def _waiting(settings: Settings, database: Database) -> Iterator[Finding]:
    for detector in backfilled(settings):
        ledger, held = Backfills(settings, detector), dict[date, str]()
        if database.is_ready():
            with database.read() as connection:
                held = applied(connection, detector)
        for day, published in ledger.read().published.items():
            if held.get(day) != published.run:
                with contextlib.suppress(BrokenFindings, UnusableDay):
                    yield from read(detector, day, published, list(ledger.findings(day, published))).findings


def _is_wanted(finding: Finding, wanted: FindingFilter) -> bool:
    return (
        wanted.detector in (None, finding.detector)
        and (wanted.entity is None or wanted.entity in finding.entity.values())
        and (wanted.since is None or finding.moment >= wanted.since)
        and wanted.level in (None, finding.level)
    )
