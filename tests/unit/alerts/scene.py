"""Findings, declarations and clocks for the tests of alerting."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.rig.samples import findings
from tocsin.alerts import recording
from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.finding_feed import FindingRecord
from tocsin.alerts.recording import Recorded, Rules
from tocsin.alerts.store import queries
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter
from tocsin.declare.model.finding import Finding

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
WINDOW = timedelta(seconds=10)

FACTS = DetectorFacts(
    name="failed_logins",
    version="v1",
    title="Bursts of failed logins by one user (credential stuffing, password guessing).",
    owner="security@example.com",
    runbook="docs/runbooks/failed_logins.md",
    live=True,
    dedup_period=timedelta(hours=1),
    page_within=timedelta(minutes=15),
    lateness=timedelta(seconds=10),
    email_limit=50,
    urgent_limit=100,
)
RULES = Rules(facts={FACTS.name: FACTS}, paged=("oncall@example.com",), domain="tocsin.example.com")


def finding(score: float = 60, *, user: str = "mallory", at: datetime = NOON, **changes: Any) -> Finding:
    """A finding of one window of ten seconds that begins at `at`."""
    written = {"event_time_max": at + 5 * SECOND, "detected_at": at + 5 * SECOND}
    return findings.finding(score, user=user, at=at, **(written | changes))


def burst(score: int, *, user: str = "mallory", at: datetime = NOON) -> list[Finding]:
    """What a detector emits while the count rises to `score`: every value above the lowest limit."""
    return [
        finding(count, user=user, at=at, event_time_max=at + count * timedelta(milliseconds=50))
        for count in range(51, score + 1)
    ]


def record(
    one: Finding, offset: int = 0, partition: int = 0, appended_at: datetime = NOON + 5 * SECOND
) -> FindingRecord:
    """A finding as Kafka delivers it."""
    value = one.model_copy(update={"detected_at": None}).to_json()
    return FindingRecord(topic="findings", partition=partition, offset=offset, appended_at=appended_at, value=value)


def index(
    database: Database, batch: Sequence[Finding], rules: Rules = RULES, now: datetime = NOON + 8 * SECOND
) -> Recorded:
    """Record findings as the indexer does."""
    with database.write() as connection:
        return recording.record(connection, batch, rules, now)


def show(database: Database, alert: int | None = None) -> AlertDetails:
    """All that is known of the alert; of the one that changed last, if none is named."""
    details = queries.show_alert(database, alert or queries.list_alerts(database, AlertFilter())[0].id)
    assert details is not None
    return details


def raw(value: bytes | None, offset: int = 0) -> FindingRecord:
    """Any record of the findings topic."""
    return FindingRecord(topic="findings", partition=3, offset=offset, appended_at=NOON, value=value)


def broken(**changes: Any) -> bytes:
    """The JSON of a finding with some fields changed."""
    values = json.loads(finding().model_copy(update={"detected_at": None}).to_json()) | changes
    return json.dumps(values).encode()
