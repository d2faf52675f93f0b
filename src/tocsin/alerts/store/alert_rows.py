"""Rows of the alerts DB as what the rest of the program, and the people who read it, see."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime
from typing import Any

from pydantic import BaseModel, computed_field
from sqlalchemy import ColumnElement, Connection, FromClause, and_, exists, select

from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.evidence.alert_evidence import AlertEvidence
from tocsin.alerts.finding_merging import StoredFinding
from tocsin.alerts.store.schema import alerts, detectors, notifications, upsert
from tocsin.declare.model.detector_guide import DetectorGuide
from tocsin.declare.model.finding import Finding, canonical_entity

_SAME_NAME = (
    "finding_id", "detector", "version", "window_start", "window_end", "level", "score", "at_least", "evidence",
    "context", "event_time_max", "run_id", "detected_at", "discriminator",
)  # fmt: skip


class InvalidFinding(BaseModel, frozen=True):
    """A record of the findings topic that is no finding, or one that the alerts DB cannot hold.

    Attributes:
        size: in bytes.
    """

    topic: str
    partition: int
    offset: int
    reasons: list[str]
    size: int
    seen_at: datetime


class Notification(BaseModel, frozen=True):
    """A message about an alert to one recipient.

    Attributes:
        kind: "urgent", "email", "delayed" (found too late), "continuing" (an earlier alert), "returned" (what was
            missing has come back), "update" (a person has answered the alert), or "notice" (about no alert).
        state: "waiting" (for its window to close, or for the next summary), "pending" (leaves with the next message
            of its group), "leaving" (in a message that is sent until it is accepted), "sent", "failed"
            (refused for good; see `error`), "replaced" (by a more urgent one before it left), "muted" (see `muted_by`),
            "dropped" (muted until its alert was resolved).
        finding_id: of the finding that led to it; null for a notice.
    """

    id: int
    kind: str
    state: str
    revision: int
    finding_id: str | None
    recipient: str
    window_end: datetime | None
    wait_until: datetime | None
    incomplete: str
    message_id: str
    created_at: datetime
    next_attempt_at: datetime
    sent_at: datetime | None
    attempts: int
    error: str
    muted_by: str = ""


class Alert(DetectorGuide):
    """The unit that people handle: the findings of one entity, or of those that share a key, in one dedup period.

    Attributes:
        entity: the columns by which its detector tells alerts apart: of the entity, all unless it declares `dedup`.
        state: "open", "acknowledged" or "resolved"; see `tocsin.alerts.alert_states`.
        acknowledged_until, acknowledged_by: null and the person who resolved it, or empty, unless it is acknowledged.
        verdict: of that person, "true", "expected" or "false"; empty if nobody resolved it.
        period_start, period_end: of the dedup period, event time, UTC.
        first_seen, last_seen: start of its first window and end of its last one, event time, UTC.
        findings: how many it has; as all sums here, without superseded ones unless it has no other.
    """

    id: int
    detector: str
    entity: dict[str, str]
    level: str
    state: str
    period_start: datetime
    period_end: datetime
    first_seen: datetime
    last_seen: datetime
    findings: int
    score: float
    opened_at: datetime
    updated_at: datetime
    acknowledged_until: datetime | None = None
    acknowledged_by: str = ""
    verdict: str = ""


class Transition(BaseModel, frozen=True):
    """One line of the history of an alert; `state` is the one after it."""

    at: datetime
    who: str
    action: str
    state: str
    why: str


class EarlierFinding(BaseModel, frozen=True):
    """A finding of an earlier alert of the same entity; `moment` is as in `Finding`."""

    moment: datetime
    score: float
    level: str


class AlertDetails(BaseModel, frozen=True):
    """An alert, its highest finding, its latest ones, the newest first; its notifications and history, the oldest."""

    alert: Alert
    highest: StoredFinding
    findings: list[StoredFinding]
    notifications: list[Notification]
    history: list[Transition] = []
    earlier: list[EarlierFinding] = []
    evidence: AlertEvidence | None = None


class JobUsage(BaseModel, frozen=True):
    """The resources that one job took on one day, as far as its reports were read.

    Attributes:
        day: in UTC; what came between two reports belongs to the day of the second.
        seconds: for which it ran.
        cpu_seconds: of its processes, Python and JVM together.
        rss_bytes: the most that it held resident.
        rows_in, rows_out: records read (without ticks) and written; of a detector rows_out counts updates of findings.
            rows_out is 0 where they are not counted.
        findings: of a detector, that it first detected on this day and that count still; 0 for other jobs.
        last_finding_at: when the last finding of a detector was first detected, on whatever day; null for none.
    """

    job: str
    day: date
    seconds: float
    cpu_seconds: float
    rss_bytes: int
    rows_in: int
    rows_out: int
    findings: int
    restarts: int
    last_finding_at: datetime | None = None

    @computed_field  # type: ignore[prop-decorator]  # mypy has no decorated properties
    @property
    def cores(self) -> float:
        """See above."""
        return self.cpu_seconds / self.seconds if self.seconds > 0 else 0.0


def finding_of(row: Mapping[Any, Any]) -> Finding:
    """The finding in a row of `findings`."""
    values = {name: row[name] for name in _SAME_NAME}
    return Finding(**values, entity=json.loads(row["entity"]), limit=row["score_limit"], origin=row["origin"])


def stored_finding(row: Mapping[Any, Any]) -> StoredFinding:
    """Read a row of `findings`."""
    return StoredFinding(
        finding=finding_of(row),
        first_detected_at=row["first_detected_at"],
        alert=row["alert_id"],
        trajectory=row["trajectory"],
        superseded_at=row["superseded_at"],
        superseded_by=row["superseded_by"],
        stream=row["stream"],
    )


def finding_values(stored: StoredFinding) -> dict[str, Any]:
    """Write a row of `findings`."""
    finding = stored.finding
    return {name: getattr(finding, name) for name in _SAME_NAME} | {
        "entity": canonical_entity(finding.entity),
        "moment": finding.moment,
        "score_limit": finding.limit,
        "origin": finding.origin.value,
        "trajectory": stored.trajectory,
        "first_detected_at": stored.first_detected_at,
        "stream": stored.stream.model_dump(mode="json") if stored.stream else None,
        "superseded_at": stored.superseded_at,
        "superseded_by": stored.superseded_by,
        "alert_id": stored.alert,
    }


def read_facts(connection: Connection) -> dict[str, DetectorFacts]:
    """Read the declarations that were read last, by detector."""
    rows = connection.execute(select(detectors.c.name, detectors.c.facts))
    return {name: DetectorFacts.model_validate(facts) for name, facts in rows}


def write_facts(connection: Connection, declared: Iterable[DetectorFacts]) -> None:
    """Store what is declared, for a start when the file is broken."""
    for facts in declared:
        upsert(connection, detectors, {"name": facts.name}, {"facts": facts.model_dump(mode="json")})


def entity_hash(canonical: str) -> str:
    """Hash a canonical entity for indexes: entities come from logs and may be longer than an index entry."""
    return hashlib.sha256(canonical.encode()).hexdigest()


def message_id(domain: str, parts: Iterable[str]) -> str:
    """Form the Message-ID, with its angle brackets, of what `parts` identify."""
    return f"<{digest(parts)}@{domain}>"


def digest(parts: Iterable[str]) -> str:
    """Hash what identifies something to 32 hex digits."""
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]


def planned_notification(finding_id: str | None, window_end: datetime | None, now: datetime) -> dict[str, Any]:
    """Make what each row of the outbox begins with: about the finding, planned `now`, not yet tried."""
    return {
        "finding_id": finding_id,
        "window_end": window_end,
        "incomplete": "",
        "created_at": now,
        "next_attempt_at": now,
        "attempts": 0,
        "error": "",
    }


def notification_of(row: Mapping[Any, Any]) -> Notification:
    """A row of `notifications` as readers see it."""
    return Notification(**{name: row[name] for name in Notification.model_fields})


def further_notifications(
    alert: Any, revision: int, recipients: Iterable[str], about: Mapping[str, Any], domain: str
) -> list[dict[str, Any]]:
    """Make rows of the outbox, one for each recipient; `about` as of `planned_notification`.

    `alert` is a row of `alerts`, or has its id, detector, entity (canonical) and period_start.
    """
    parts = [*alert_parts(alert.detector, alert.entity, alert.period_start), str(revision)]
    common = {**about, "alert_id": alert.id, "detector": alert.detector, "revision": revision}
    return [common | {"recipient": to, "message_id": message_id(domain, [*parts, to])} for to in recipients]


def is_followed() -> ColumnElement[bool]:
    """Tell of each of `alerts` in a query whether its entity has a later one."""
    later = alerts.alias()
    return exists().where(same_entity(later), later.c.period_start > alerts.c.period_start)


def same_entity(other: FromClause) -> ColumnElement[bool]:
    """Tell of each of `alerts` in a query whether it is about the entity of `other`, an alias of `alerts`."""
    return and_(other.c.detector == alerts.c.detector, other.c.entity_hash == alerts.c.entity_hash)


def notified(connection: Connection, about: Collection[int]) -> set[tuple[int, str, str]]:
    """Of some alerts, who knows, or will at once, by a mail of which kind; since what was missing came back last."""
    table = notifications.c
    columns = (table.alert_id, table.kind, table.recipient, table.state, table.revision)
    # By the alert alone: by a state SQLite would look through the notifications of all alerts.
    rows = connection.execute(select(*columns).where(table.alert_id.in_(about)).order_by(table.revision)).all()
    ends = {row.alert_id: row.revision for row in rows if row.kind == "returned"}
    sent = [row for row in rows if row.kind in ("urgent", "email") and row.state in ("sent", "pending", "leaving")]
    return {(row.alert_id, row.kind, row.recipient) for row in sent if row.revision > ends.get(row.alert_id, 0)}


def alert_parts(detector: str, canonical: str, period_start: datetime) -> list[str]:
    """List what identifies an alert beyond one database."""
    return [detector, entity_hash(canonical), period_start.isoformat()]
