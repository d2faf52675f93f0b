"""Read the alerts DB for the CLI, the stack and the mails. Nothing here writes.

Before the indexer has made the DB there is nothing to read, and every list is empty.

Raises from every function that reads a `Database`:
    ConfigError: the schema is newer than this code.
    TransientError: the DB cannot be read now; a retry helps.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pydantic import BaseModel, computed_field
from sqlalchemy import ColumnElement, Connection, FromClause, Select, case, func, or_, select

from tocsin.alerts.backfilled.published_day import visible
from tocsin.alerts.evidence.alert_evidence import read_evidence
from tocsin.alerts.finding_merging import StoredFinding
from tocsin.alerts.store.alert_rows import (
    Alert,
    AlertDetails,
    EarlierFinding,
    InvalidFinding,
    JobUsage,
    Transition,
    notification_of,
    stored_finding,
)
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import alert_transitions, alerts, invalid_findings, job_usage, notifications
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.finding import Origin, canonical_entity
from tocsin.declare.model.names import detector_job
from tocsin.declare.model.sizes import entity_text, shortened
from tocsin.declare.settings import Settings
from tocsin.history.backfill.parity.comparison import ReportedFinding, Streamed
from tocsin.history.places import begin, end

SHOWN_FINDINGS = 50
EARLIER_FINDINGS = 20
_ALIKE = 5
COUNTED_DAYS = 7
_TOP = 3
_OWNER = alerts.c.guide["owner"].as_string()


@dataclass(frozen=True, kw_only=True)
class FindingFilter:
    """Choice of findings to list; None leaves a side open.

    Attributes:
        entity: the value of one of its columns, exactly.
        since: start of the window (time of the event) at or after it, UTC.
        superseded: also those that the backfill of their day no longer reproduces.
    """

    detector: str | None = None
    entity: str | None = None
    since: datetime | None = None
    level: str | None = None
    superseded: bool = False
    limit: int = 100


@dataclass(frozen=True, kw_only=True)
class AlertFilter:
    """Choice of alerts to list; None leaves a side open.

    Attributes:
        state: exactly, or "active" for those that are not resolved.
        entity: the value of one of its columns, exactly; `text` a part of one, in whatever case.
    """

    state: str | None = None
    detector: str | None = None
    owner: str | None = None
    level: str | None = None
    entity: str | None = None
    text: str | None = None
    detectors: Collection[str] | None = None
    ids: Collection[int] | None = None
    since: datetime | None = None
    limit: int | None = 100
    offset: int = 0


def open_store(settings: Settings) -> Database:
    """The alerts DB of an installation, for reading only."""
    return Database(settings.alerts_database, read_only=True)


def list_findings(database: Database, wanted: FindingFilter) -> list[StoredFinding]:
    """List findings, the newest window first."""
    if not database.is_ready():
        return []
    with database.read() as connection:
        query = _select_findings(visible(connection), wanted)
        return [stored_finding(row) for row in connection.execute(query).mappings()]


def _select_findings(rows: FromClause, wanted: FindingFilter) -> Select[Any]:
    table = rows.c
    query = select(rows).order_by(table.moment.desc(), table.finding_id).limit(wanted.limit)
    if wanted.detector is not None:
        query = query.where(table.detector == wanted.detector)
    if wanted.entity is not None:
        query = query.where(_has_value(table.entity, wanted.entity))
    if wanted.since is not None:
        query = query.where(table.moment >= wanted.since)
    if wanted.level is not None:
        query = query.where(table.level == wanted.level)
    return query if wanted.superseded else query.where(_counts(rows))


def _has_value(entity: ColumnElement[str], wanted: str) -> ColumnElement[bool]:
    # Not LIKE: SQLite's ignores case. Canonical JSON has no spaces, so a value always follows a colon.
    value = canonical_entity({"": shortened(wanted)}).removeprefix('{""').removesuffix("}")
    return func.replace(entity, value, "") != entity


def find_finding(database: Database, beginning: str) -> StoredFinding:
    """Find the finding whose id begins with `beginning`, also a superseded one; ConfigError for none, or several."""
    found = _find_alike(database, beginning)
    if not found:
        what = "no finding has an id that begins so; `tocsin findings` lists them, and old ones are removed after"
        raise ConfigError.one(beginning, f"{what} alerts.history_days")
    if len(found) > 1:
        ids = ", ".join(stored.finding.finding_id for stored in found)
        raise ConfigError.one(beginning, f"{'many' if len(found) == _ALIKE else len(found)} findings begin so: {ids}")
    return found[0]


def _find_alike(database: Database, beginning: str) -> list[StoredFinding]:
    if not database.is_ready():
        return []
    with database.read() as connection:
        table = (rows := visible(connection)).c
        alike = select(rows).where(table.finding_id.startswith(beginning, autoescape=True))
        found = connection.execute(alike.order_by(table.finding_id).limit(_ALIKE)).mappings()
        return [stored_finding(row) for row in found if row["finding_id"].startswith(beginning)]


def findings_of_day(database: Database, detector: str, day: date) -> list[StoredFinding]:
    """List all findings of a detector that belong to a UTC day, superseded ones too, by moment and id."""
    if not database.is_ready():
        return []
    with database.read() as connection:
        table = (rows := visible(connection)).c
        own = select(rows).where(table.detector == detector, table.moment >= begin(day), table.moment < end(day))
        found = connection.execute(own.order_by(table.moment, table.finding_id)).mappings()
        return [stored_finding(row) for row in found]


def streamed_findings(settings: Settings, detector: str, day: date) -> list[Streamed]:
    """List what the stream said last of each finding of a UTC day, of superseded or replaced ones too."""
    with closing(open_store(settings)) as database:
        found = findings_of_day(database, detector, day)
    streamed = []
    for stored in found:
        if stored.finding.origin is not Origin.BACKFILL:
            streamed.append(Streamed(stored.finding, ReportedFinding.of(stored.finding)))
        elif stored.stream is not None:
            reported = ReportedFinding.model_validate(stored.stream, from_attributes=True)
            streamed.append(Streamed(stored.finding, reported))
    return streamed


def list_alerts(database: Database, wanted: AlertFilter) -> list[Alert]:
    """List alerts, the one that changed last first."""
    if not database.is_ready():
        return []
    with database.read() as connection:
        query = _alerts(visible(connection), _choice(wanted)).order_by(alerts.c.updated_at.desc(), alerts.c.id.desc())
        return [_alert(row) for row in connection.execute(query).mappings()]


def _choice(wanted: AlertFilter) -> Select[Any]:
    """Choose the ids of alerts; before their findings are added up, which for all alerts takes long."""
    table = alerts.c
    query = select(table.id).order_by(table.updated_at.desc(), table.id.desc())
    query = query.limit(wanted.limit).offset(wanted.offset)
    if wanted.state is not None:
        query = query.where(table.state != "resolved" if wanted.state == "active" else table.state == wanted.state)
    for name in ("level", "detector"):
        if (value := getattr(wanted, name)) is not None:
            query = query.where(table[name] == value)
    if wanted.owner is not None:
        query = query.where(wanted.owner == _OWNER)
    if wanted.entity is not None:
        query = query.where(_has_value(table.entity, wanted.entity))
    if wanted.text is not None:
        part = canonical_entity({"": wanted.text})[len('{"":"') : -len('"}')]
        query = query.where(table.entity.icontains(part, autoescape=True))
    for column, values in ((table.detector, wanted.detectors), (table.id, wanted.ids)):
        if values is not None:
            query = query.where(column.in_(values))
    return query if wanted.since is None else query.where(table.updated_at >= wanted.since)


class DetectorDigest(BaseModel, frozen=True):
    """The alerts of one detector that opened in a time.

    Attributes:
        entities: those with the most alerts, three at most, each with their number.
    """

    detector: str
    owner: str
    alerts: int
    urgent: int
    open: int
    acknowledged: int
    true: int
    expected: int
    false: int
    entities: list[tuple[str, int]]


def digest(database: Database, wanted: AlertFilter) -> list[DetectorDigest]:
    """Sum up alerts by detector, without a limit: the one with the most urgent ones first, then with most.

    They are those that opened since `wanted.since`, or within a day, and not those that changed since.
    """
    if not database.is_ready():
        return []
    table, count = alerts.c, func.count()
    tests = {"urgent": table.level == "urgent", "open": table.state == "open"}
    tests |= {"acknowledged": table.state == "acknowledged"}
    tests |= {verdict: table.verdict == verdict for verdict in ("true", "expected", "false")}
    figures = [func.count(case((test, 1))).label(name) for name, test in tests.items()]
    since = wanted.since or datetime.now(UTC) - timedelta(days=1)
    own = [table.opened_at >= since, table.id.in_(_choice(replace(wanted, since=None, limit=None)))]
    sums = select(table.detector, func.max(_OWNER).label("owner"), count.label("alerts"), *figures).where(*own)
    place = func.row_number().over(partition_by=table.detector, order_by=(count.desc(), table.entity))
    ranked = select(table.detector, table.entity, count.label("alerts"), place.label("place")).where(*own)
    ranks = ranked.group_by(table.detector, table.entity).subquery()
    top: dict[str, list[tuple[str, int]]] = {}
    with database.read() as connection:
        for row in connection.execute(select(ranks).where(ranks.c.place <= _TOP).order_by(ranks.c.place)):
            top.setdefault(row.detector, []).append((entity_text(json.loads(row.entity)), row.alerts))
        found = [
            DetectorDigest(**row, entities=top[row["detector"]])
            for row in connection.execute(sums.group_by(table.detector)).mappings()
        ]
    return sorted(found, key=lambda one: (-one.urgent, -one.alerts, one.detector))


class AlertCounts(BaseModel, frozen=True):
    """The alerts of one detector: those opened in the last `COUNTED_DAYS`, and what people have judged at any time.

    Attributes:
        email, urgent: opened in these days, by the level that they have now.
        precision: the share of the verdicts that is true; null without any.
    """

    email: int = 0
    urgent: int = 0
    active: int = 0
    true: int = 0
    expected: int = 0
    false: int = 0

    @computed_field  # type: ignore[prop-decorator]  # mypy has no decorated properties
    @property
    def precision(self) -> float | None:
        """See above."""
        return self.true / self.judged if self.judged else None

    @property
    def judged(self) -> int:
        """How many have a verdict."""
        return self.true + self.expected + self.false

    @property
    def precision_text(self) -> str:
        """The precision in words."""
        return "no verdicts yet" if self.precision is None else f"{100 * self.precision:.0f} % true of {self.judged}"


def count_alerts(database: Database, detector: str | None = None) -> dict[str, AlertCounts]:
    """Count the alerts of each detector that has some, or of one."""
    if not database.is_ready():
        return {}
    table, since = alerts.c, datetime.now(UTC) - timedelta(days=COUNTED_DAYS)
    tests: dict[str, ColumnElement[bool]] = {"active": table.state != "resolved"}
    tests |= {level: (table.opened_at >= since) & (table.level == level) for level in ("email", "urgent")}
    tests |= {verdict: table.verdict == verdict for verdict in ("true", "expected", "false")}
    query = select(table.detector, *(func.count(case((test, 1))).label(name) for name, test in tests.items()))
    query = query if detector is None else query.where(table.detector == detector)
    with database.read() as connection:
        rows = connection.execute(query.group_by(table.detector)).mappings()
        return {row["detector"]: AlertCounts(**{name: row[name] for name in tests}) for row in rows}


def show_alert(database: Database, alert_id: int) -> AlertDetails | None:
    """Read one alert with its findings and notifications; None when there is none with this id."""
    if not database.is_ready():
        return None
    with database.read() as connection:
        return alert_details(connection, alert_id)


def list_invalid(database: Database, limit: int = 100) -> list[InvalidFinding]:
    """List records of the findings topic that were rejected, the latest first."""
    if not database.is_ready():
        return []
    table = invalid_findings.c
    columns = [table[name] for name in InvalidFinding.model_fields]
    latest = select(*columns).order_by(table.seen_at.desc(), table.offset.desc()).limit(limit)
    with database.read() as connection:
        return [InvalidFinding(**row) for row in connection.execute(latest).mappings()]


def list_usage(database: Database, since: date) -> list[JobUsage]:
    """List the resources of each job and day from `since` on: the newest day first, then the job with the most CPU."""
    if not database.is_ready():
        return []
    with database.read() as connection:
        order = (job_usage.c.day.desc(), job_usage.c.cpu_seconds.desc(), job_usage.c.job)
        rows = connection.execute(select(job_usage).where(job_usage.c.day >= since).order_by(*order)).mappings().all()
        current = visible(connection)
        found = {day: _found_on(connection, current, day) for day in {row["day"] for row in rows}}
        last = _last_findings(connection, current)
    return [
        JobUsage(**row, findings=found[row["day"]].get(row["job"], 0), last_finding_at=last.get(row["job"]))
        for row in rows
    ]


def last_findings(database: Database) -> dict[str, datetime]:
    """Return by job when the last finding of each detector's job was first detected; backfills find none."""
    if not database.is_ready():
        return {}
    with database.read() as connection:
        return _last_findings(connection, visible(connection))


def _last_findings(connection: Connection, rows: FromClause) -> dict[str, datetime]:
    query = select(rows.c.detector, func.max(rows.c.first_detected_at)).where(_by_a_job(rows))
    return {detector_job(name): last for name, last in connection.execute(query.group_by(rows.c.detector))}


def _found_on(connection: Connection, rows: FromClause, day: date) -> dict[str, int]:
    detected = rows.c.first_detected_at
    query = select(rows.c.detector, func.count()).where(detected >= begin(day), detected < end(day))
    query = query.where(_by_a_job(rows), _counts(rows))
    return {detector_job(name): count for name, count in connection.execute(query.group_by(rows.c.detector))}


def _counts(rows: FromClause) -> ColumnElement[bool]:
    return rows.c.superseded_at.is_(None)


def _by_a_job(rows: FromClause) -> ColumnElement[bool]:
    return or_(rows.c.origin != Origin.BACKFILL.value, rows.c.stream.is_not(None))


def alert_details(connection: Connection, alert_id: int) -> AlertDetails | None:
    """See `show_alert`; inside the transaction of the caller."""
    rows = visible(connection)
    own_id = select(alerts.c.id).where(alerts.c.id == alert_id)
    row = connection.execute(_alerts(rows, own_id)).mappings().first()
    if row is None:
        return None
    own = select(rows).where(rows.c.alert_id == alert_id)
    if connection.execute(own.where(_counts(rows)).limit(1)).first() is not None:
        own = own.where(_counts(rows))
    latest = own.order_by(rows.c.moment.desc(), rows.c.finding_id).limit(SHOWN_FINDINGS)
    highest = own.order_by(case((rows.c.level == "urgent", 0), else_=1), rows.c.score.desc()).limit(1)
    sent = select(notifications).where(notifications.c.alert_id == alert_id).order_by(notifications.c.id)
    steps = select(*(alert_transitions.c[name] for name in Transition.model_fields))
    history = steps.where(alert_transitions.c.alert_id == alert_id).order_by(alert_transitions.c.id)
    return AlertDetails(
        alert=_alert(row),
        highest=stored_finding(connection.execute(highest).mappings().one()),
        findings=[stored_finding(row) for row in connection.execute(latest).mappings()],
        notifications=[notification_of(row) for row in connection.execute(sent).mappings()],
        history=[Transition(**row) for row in connection.execute(history).mappings()],
        earlier=_earlier(connection, rows, row),
        evidence=read_evidence(connection, alert_id),
    )


def _earlier(connection: Connection, rows: FromClause, alert: Mapping[Any, Any]) -> list[EarlierFinding]:
    """Read the latest findings of the earlier alerts of an entity, by the index of alerts: findings have none of it."""
    same = [alerts.c[name] == alert[name] for name in ("detector", "entity_hash")]
    before = select(alerts.c.id).where(*same, alerts.c.period_start < alert["period_start"])
    ids = connection.execute(before.order_by(alerts.c.period_start.desc()).limit(EARLIER_FINDINGS)).scalars().all()
    columns = [rows.c[name] for name in EarlierFinding.model_fields]
    latest = select(*columns).where(rows.c.alert_id.in_(ids), _counts(rows)).order_by(rows.c.moment.desc())
    found = connection.execute(latest.limit(EARLIER_FINDINGS)).mappings().all()
    return [EarlierFinding(**values) for values in reversed(found)]


def _alerts(rows: FromClause, choice: Select[Any]) -> Select[Any]:
    """The alerts of `choice` with what their findings add up to: those that count, or all where none does any more."""
    chosen = choice.subquery()
    ends = func.coalesce(rows.c.window_end, rows.c.moment)
    moment, score, counts = rows.c.moment, rows.c.score, _counts(rows)
    counting = func.count(case((counts, 1)))
    sums = (
        select(
            rows.c.alert_id,
            func.coalesce(func.min(case((counts, moment))), func.min(moment)).label("first_seen"),
            func.coalesce(func.max(case((counts, ends))), func.max(ends)).label("last_seen"),
            case((counting > 0, counting), else_=func.count()).label("findings"),
            func.coalesce(func.max(case((counts, score))), func.max(score)).label("score"),
        )
        .where(rows.c.alert_id.in_(select(chosen.c.id)))
        .group_by(rows.c.alert_id)
        .subquery()
    )
    return select(alerts, sums).join(sums, sums.c.alert_id == alerts.c.id)


def _alert(row: Mapping[Any, Any]) -> Alert:
    return Alert.model_validate({**row["guide"], **row, "entity": json.loads(row["entity"])})
