"""Evidence of an alert as it is stored: sample events, and what differs from what its entity usually does."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection, select

from tocsin.alerts.store.schema import alert_evidence, upsert


class ValueShare(BaseModel, frozen=True):
    """A value of a column with its share of the events.

    Attributes:
        value: as text, shortened; "(none)" for null.
        usual: of the events of the entity before the window; null if too few were read.
    """

    value: str
    share: float
    usual: float | None


class UnusualColumn(BaseModel, frozen=True):
    """A column whose values are distributed otherwise than usual.

    Attributes:
        difference: half the sum of the differences of all shares (total variation distance), from 0 to 1; 0 if what is
            usual is not known.
    """

    column: str
    difference: float
    values: list[ValueShare]


class SourceEvidence(BaseModel, frozen=True):
    """Events of one source about the entity, as Kafka held them.

    Attributes:
        events: the latest in order: columns with a value, shortened, and `event_time` in ISO 8601.
        before: how many of the entity were read that lie before the window.
        since: time of the earliest of these, UTC.
        note: why some, or all, may be missing; empty else.
    """

    source: str
    count: int = 0
    events: list[dict[str, Any]] = []
    before: int = 0
    since: datetime | None = None
    unusual: list[UnusualColumn] = []
    note: str = ""


class AlertEvidence(BaseModel, frozen=True, extra="ignore"):
    """Evidence of an alert, about its finding `finding_id`."""

    finding_id: str
    sources: list[SourceEvidence] = []
    note: str = ""


def read_evidence(connection: Connection, alert_id: int) -> AlertEvidence | None:
    """Read the evidence of an alert; None if none is stored."""
    stored = select(alert_evidence.c.evidence).where(alert_evidence.c.alert_id == alert_id)
    found = connection.execute(stored).scalar()
    return None if found is None else AlertEvidence.model_validate(found)


def store_evidence(connection: Connection, alert_id: int, evidence: AlertEvidence, now: datetime) -> None:
    """Store the evidence of an alert in place of an earlier one."""
    values = {"evidence": evidence.model_dump(mode="json"), "gathered_at": now}
    upsert(connection, alert_evidence, {"alert_id": alert_id}, values)
