"""Tables of the alerts DB. A change here needs a file in `migrations/versions`; a test compares the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    insert,
    update,
)


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC with microseconds; SQLite, which knows no time zones, stores it without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    # Not `process_bind_param` and `process_result_value`: with these, times took a tenth of the indexer's CPU.
    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], datetime | str | None]:
        """To UTC."""
        return _to_text if dialect.name == "sqlite" else _to_utc

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        """Back, with its time zone."""
        return _from_text if dialect.name == "sqlite" else _to_utc


def _to_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)


def _to_text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def _from_text(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


def upsert(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Set `values` in the row of `table` that has `key`; it is inserted if it is not there."""
    if connection.execute(update(table).filter_by(**key).values(**values)).rowcount == 0:
        connection.execute(insert(table).values(**key, **values))


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

detectors = Table(
    "detectors",
    metadata,
    Column("name", String(200), primary_key=True),
    # The last declaration that could be read: a file that breaks must not silence its running job.
    Column("facts", JSON, nullable=False),
)

alerts = Table(
    "alerts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("detector", String(200), nullable=False),
    Column("entity", Text, nullable=False),
    # Entities come from logs and may be longer than an index entry may be.
    Column("entity_hash", String(64), nullable=False),
    Column("period_start", UtcDateTime, nullable=False),
    Column("period_end", UtcDateTime, nullable=False),
    Column("level", String(10), nullable=False),
    Column("state", String(20), nullable=False),
    Column("notified_at_once", String(10), nullable=False),
    Column("notified_delayed", String(10), nullable=False),
    Column("revision", Integer, nullable=False),
    # What its detector declared for people when it last changed: `tocsin.declare.model.detector_guide.DetectorGuide`.
    Column("guide", JSON, nullable=False, server_default="{}"),
    # The end of the last window in which something was missing, once that has come back: see `alerts.alert_lifecycle`.
    Column("returned_at", UtcDateTime),
    # What people have said of it: see `tocsin.alerts.alert_states`.
    Column("acknowledged_until", UtcDateTime),
    Column("acknowledged_by", Text, nullable=False, server_default=""),
    Column("verdict", String(10), nullable=False, server_default=""),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    UniqueConstraint("detector", "entity_hash", "period_start"),
    Index(None, "state", "updated_at"),
)


def _finding_columns() -> list[Column[Any]]:
    """The columns of a finding but for its identity and its alert; new ones at each call, for one table each."""
    return [
        Column("detector", String(200), nullable=False),
        Column("version", String(64), nullable=False),
        Column("entity", Text, nullable=False),
        Column("moment", UtcDateTime, nullable=False),
        Column("window_start", UtcDateTime),
        Column("window_end", UtcDateTime),
        Column("level", String(10), nullable=False),
        Column("score", Float, nullable=False),
        Column("score_limit", Float, nullable=False),
        Column("at_least", Boolean, nullable=False),
        Column("evidence", JSON, nullable=False),
        Column("context", JSON, nullable=False),
        Column("event_time_max", UtcDateTime),
        Column("origin", String(10), nullable=False),
        Column("run_id", Text, nullable=False),
        Column("discriminator", Text, nullable=False),
        Column("first_detected_at", UtcDateTime, nullable=False),
        Column("detected_at", UtcDateTime, nullable=False),
        Column("trajectory", JSON, nullable=False),
        # Since when a complete backfill of its day no longer reproduces it, and which run that was.
        Column("superseded_at", UtcDateTime),
        Column("superseded_by", Text, nullable=False, server_default=""),
        # What the stream said last, where a backfill has the last word; see `tocsin.alerts.finding_merging.StreamWord`.
        Column("stream", JSON(none_as_null=True)),
    ]


findings = Table(
    "findings",
    metadata,
    Column("finding_id", String(64), primary_key=True),
    *_finding_columns(),
    Column("alert_id", Integer, ForeignKey("alerts.id"), index=True),
    Index(None, "detector", "moment"),
    Index(None, "moment"),
    Index(None, "first_detected_at", "detector"),
)

staged_findings = Table(
    "staged_findings",
    metadata,
    # Rows as they will be in `findings`, of one detector and day at a time; see `published_day`.
    Column("position", Integer, primary_key=True),
    Column("finding_id", String(64), nullable=False, unique=True),
    *_finding_columns(),
    Column("alert_id", Integer),
    Column("day", Date, nullable=False),
    Column("run", Text, nullable=False),
    # The backfill's finding as JSON; NULL where the backfill supersedes the row.
    Column("published", Text),
)

backfilled_days = Table(
    "backfilled_days",
    metadata,
    Column("detector", String(200), primary_key=True),
    Column("day", Date, primary_key=True),
    # As in the ledger of the detector's backfills: this run's findings are in `findings`.
    Column("run", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("version", String(64), nullable=False),
    Column("findings", Integer, nullable=False),
    Column("applied_at", UtcDateTime, nullable=False),
)

alert_transitions = Table(
    "alert_transitions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("alert_id", Integer, ForeignKey("alerts.id"), nullable=False, index=True),
    Column("at", UtcDateTime, nullable=False),
    # A person (their address or login), or the rule that did it.
    Column("who", Text, nullable=False),
    Column("action", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("why", Text, nullable=False),
)

alert_evidence = Table(
    "alert_evidence",
    metadata,
    Column("alert_id", Integer, ForeignKey("alerts.id"), primary_key=True),
    # Events behind the alert, stored because Kafka forgets them: see `tocsin.alerts.evidence`.
    Column("evidence", JSON, nullable=False),
    Column("gathered_at", UtcDateTime, nullable=False),
)

silences = Table(
    "silences",
    metadata,
    Column("id", Integer, primary_key=True),
    # A `tocsin.declare.model.alert_matcher.AlertMatcher`.
    Column("matcher", JSON, nullable=False),
    Column("owner", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("starts_at", UtcDateTime, nullable=False),
    # Ended early: the time of that, and by whom.
    Column("ends_at", UtcDateTime, nullable=False, index=True),
    Column("ended_by", Text, nullable=False, server_default=""),
)

notification_groups = Table(
    "notification_groups",
    metadata,
    # What bounds the messages to one recipient: see `tocsin.alerts.notify.grouping`.
    Column("recipient", Text, primary_key=True),
    # Or the name of a group of several, as in `tocsin.alerts.notify.outbox`.
    Column("detector", String(200), primary_key=True),
    Column("last_sent_at", UtcDateTime, nullable=False),
    # Messages since `counted_from`, and whether the gathered ones leave as a digest only.
    Column("counted_from", UtcDateTime, nullable=False),
    Column("messages", Integer, nullable=False),
    Column("storm_since", UtcDateTime),
    Column("storm_urgent", Boolean, nullable=False),
)

notifications = Table(
    "notifications",
    metadata,
    Column("id", Integer, primary_key=True),
    # NULL, like the finding, for a message about a job or a run: that one is in `message`, composed.
    Column("alert_id", Integer, ForeignKey("alerts.id")),
    Column("revision", Integer, nullable=False),
    Column("recipient", Text, nullable=False),
    # Of the alert, for grouping without a join; empty for a message about no alert.
    Column("detector", String(200), nullable=False, server_default=""),
    Column("kind", String(10), nullable=False),
    Column("state", String(10), nullable=False),
    Column("finding_id", String(64), ForeignKey("findings.finding_id")),
    Column("message", JSON(none_as_null=True)),
    Column("window_end", UtcDateTime),
    Column("wait_until", UtcDateTime),
    Column("incomplete", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("next_attempt_at", UtcDateTime, nullable=False),
    # Of what was refused: until when its alert counts as notified; NULL once that is over.
    Column("refused_until", UtcDateTime),
    Column("attempts", Integer, nullable=False),
    Column("sent_at", UtcDateTime),
    Column("error", Text, nullable=False),
    # Why it does not leave: the silence, the wider alert or the person; see `tocsin.alerts.notify.muting`.
    Column("muted_by", Text, nullable=False, server_default=""),
    # The promise that nobody is notified twice.
    UniqueConstraint("alert_id", "revision", "recipient"),
    Index(None, "state", "kind", "next_attempt_at"),
    Index(None, "state", "kind", "recipient", "created_at"),
    Index(None, "state", "recipient", "detector", "kind"),
    Index(None, "kind", "sent_at", "recipient"),
    # Whoever removes a finding, or sets its key, looks for notifications that point to it.
    Index(None, "finding_id"),
)

invalid_findings = Table(
    "invalid_findings",
    metadata,
    Column("topic", String(249), primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("reasons", JSON, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("size", Integer, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
)

job_usage = Table(
    "job_usage",
    metadata,
    Column("job", String(200), primary_key=True),
    Column("day", Date, primary_key=True),
    Column("seconds", Float, nullable=False),
    Column("cpu_seconds", Float, nullable=False),
    Column("rss_bytes", BigInteger, nullable=False),
    Column("rows_in", BigInteger, nullable=False),
    Column("rows_out", BigInteger, nullable=False),
    Column("restarts", Integer, nullable=False),
)

job_counters = Table(
    "job_counters",
    metadata,
    Column("job", String(200), primary_key=True),
    # The process whose counters these are, as far as `job_usage` holds them; they begin at 0 with each process.
    Column("pid", Integer, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("cpu_seconds", Float, nullable=False),
    Column("rows_in", BigInteger, nullable=False),
    Column("rows_out", BigInteger, nullable=False),
)
