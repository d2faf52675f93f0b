"""The facts of a message about an alert, for receivers that are programs: none of them reads its text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, select

from tocsin.alerts.alert_policy import NotificationKind
from tocsin.alerts.alert_states import Action
from tocsin.alerts.evidence.alert_evidence import AlertEvidence
from tocsin.alerts.store.alert_rows import AlertDetails, Notification, alert_parts, digest
from tocsin.alerts.store.schema import alerts
from tocsin.declare.model.finding import canonical_entity

_OF_ALERT = (
    "detector", "title", "owner", "state", "entity", "first_seen", "findings", "tags", "references", "runbook",
    "false_positives",
)  # fmt: skip
_OF_FINDING = ("version", "level", "score", "limit", "evidence", "context")
_AGAIN = (Action.EXPIRED, Action.REOPENED)
_AT_ONCE = (NotificationKind.URGENT, NotificationKind.EMAIL)


class AlertFacts(BaseModel):
    """An alert at the moment of a message, and what happened to it. Texts are as they were logged or declared.

    Attributes:
        key: the same in all messages about the alert, and of no other: up to 64 letters, digits and `-`.
        who, why: of a person or rule that acted; empty else.
        level, score, limit, at_least: of its highest finding; the score of one that is `at_least` may be higher.
        window_start, window_end: of that finding, UTC; null for a detector of single events.
        first_seen: event time, UTC.
        gathered: sample events and unusual values that Tocsin found; null if nothing was gathered by then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    happened: Action
    who: str = ""
    why: str = ""
    alert: int
    detector: str
    version: str
    title: str
    owner: str
    level: str
    state: str
    entity: dict[str, str]
    finding: str
    score: float
    limit: float
    at_least: bool
    window_start: datetime | None
    window_end: datetime | None
    is_window_open: bool
    first_seen: datetime
    findings: int
    tags: tuple[str, ...]
    references: tuple[str, ...]
    runbook: str
    false_positives: str
    evidence: list[Any]
    gathered: AlertEvidence | None = None
    context: dict[str, Any]
    incomplete: str
    links: dict[str, str] = {}

    @classmethod
    def of(
        cls, details: AlertDetails, notification: Notification, date: datetime, links: Mapping[str, str] | None = None
    ) -> AlertFacts:
        """Take the facts for `notification`, a message that leaves at `date`, UTC."""
        alert, finding = details.alert, details.highest.finding
        is_open = finding.window_end is not None and finding.window_end > date and not notification.incomplete
        same = {name: getattr(alert, name) for name in _OF_ALERT}
        same |= {name: getattr(finding, name) for name in _OF_FINDING}
        return cls(
            **_step(details, notification),
            key=_key(alert.id, alert_parts(alert.detector, canonical_entity(alert.entity), alert.period_start)),
            alert=alert.id,
            finding=finding.finding_id,
            at_least=finding.at_least or is_open,
            window_start=finding.window_start,
            window_end=finding.window_end,
            is_window_open=is_open,
            incomplete=notification.incomplete,
            links=dict(links or {}),
            gathered=details.evidence,
            **same,
        )


def find_by_key(connection: Connection, key: str) -> int | None:
    """Return the number of the alert whose messages have `key`; None if there is none, also when its DB was emptied."""
    number = key.partition("-")[0]
    if not (number.isascii() and number.isdecimal() and len(number) <= 9):
        return None
    row = connection.execute(select(alerts).where(alerts.c.id == int(number))).first()
    own = None if row is None else _key(row.id, alert_parts(row.detector, row.entity, row.period_start))
    return int(number) if key == own else None


def _key(alert: int, parts: list[str]) -> str:
    return f"{alert}-{digest(parts)}"


def _step(details: AlertDetails, notification: Notification) -> dict[str, Any]:
    # It is planned with that step, in one transaction; there may have been others since.
    own = [step for step in details.history if step.at == notification.created_at]
    if own and (notification.kind == NotificationKind.UPDATE or own[-1].action in _AGAIN):
        return {"happened": Action(own[-1].action), "who": own[-1].who, "why": own[-1].why}
    return {"happened": _happened(details, notification)}


def _happened(details: AlertDetails, notification: Notification) -> Action:
    if notification.kind == NotificationKind.RETURNED:
        return Action.RETURNED
    before = [other for other in details.notifications if other.revision < notification.revision]
    before = [other for other in before if other.state != "replaced"]
    ended = max((other.revision for other in before if other.kind == NotificationKind.RETURNED), default=0)
    is_known = any(other.kind in _AT_ONCE and other.revision > ended for other in before)
    return Action.RAISED if is_known else Action.OPENED
