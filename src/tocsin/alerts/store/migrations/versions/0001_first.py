"""Findings, alerts, notifications, and what the indexer put aside."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables, those that others point to first."""
    _alerts()
    _detectors()
    _invalid_findings()
    _findings()
    _notifications()


def downgrade() -> None:
    """Drop them, and all that they hold."""
    op.drop_table("notifications")
    op.drop_table("findings")
    op.drop_table("invalid_findings")
    op.drop_table("detectors")
    op.drop_table("alerts")


def _alerts() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("detector", sa.String(length=200), nullable=False),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("entity_hash", sa.String(length=64), nullable=False),
        sa.Column("period_start", _TIME, nullable=False),
        sa.Column("period_end", _TIME, nullable=False),
        sa.Column("level", sa.String(length=10), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("told_at_once", sa.String(length=10), nullable=False),
        sa.Column("told_delayed", sa.String(length=10), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("runbook", sa.Text(), nullable=False),
        sa.Column("email_limit", sa.Float(), nullable=True),
        sa.Column("urgent_limit", sa.Float(), nullable=True),
        sa.Column("opened_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
        sa.UniqueConstraint(
            "detector", "entity_hash", "period_start", name="uq_alerts_detector_entity_hash_period_start"
        ),
    )
    op.create_index("ix_alerts_state_updated_at", "alerts", ["state", "updated_at"], unique=False)


def _detectors() -> None:
    op.create_table(
        "detectors",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_detectors"),
    )


def _invalid_findings() -> None:
    op.create_table(
        "invalid_findings",
        sa.Column("topic", sa.String(length=249), nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("reasons", sa.JSON(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("seen_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("topic", "partition", "offset", name="pk_invalid_findings"),
    )


def _findings() -> None:
    op.create_table(
        "findings",
        sa.Column("finding_id", sa.String(length=64), nullable=False),
        sa.Column("detector", sa.String(length=200), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("moment", _TIME, nullable=False),
        sa.Column("window_start", _TIME, nullable=True),
        sa.Column("window_end", _TIME, nullable=True),
        sa.Column("level", sa.String(length=10), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.Column("score_limit", sa.Float(), nullable=False),
        sa.Column("at_least", sa.Boolean(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("context", sa.JSON(), nullable=False),
        sa.Column("event_time_max", _TIME, nullable=True),
        sa.Column("origin", sa.String(length=10), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("discriminator", sa.Text(), nullable=False),
        sa.Column("first_detected_at", _TIME, nullable=False),
        sa.Column("detected_at", _TIME, nullable=False),
        sa.Column("trajectory", sa.JSON(), nullable=False),
        sa.Column("alert_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name="fk_findings_alert_id"),
        sa.PrimaryKeyConstraint("finding_id", name="pk_findings"),
    )
    op.create_index("ix_findings_alert_id", "findings", ["alert_id"], unique=False)
    op.create_index("ix_findings_detector_moment", "findings", ["detector", "moment"], unique=False)
    op.create_index("ix_findings_moment", "findings", ["moment"], unique=False)


def _notifications() -> None:
    op.create_table(
        "notifications",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("alert_id", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("finding_id", sa.String(length=64), nullable=False),
        sa.Column("window_end", _TIME, nullable=True),
        sa.Column("wait_until", _TIME, nullable=True),
        sa.Column("incomplete", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("next_attempt_at", _TIME, nullable=False),
        sa.Column("claimed_until", _TIME, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("sent_at", _TIME, nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name="fk_notifications_alert_id"),
        sa.ForeignKeyConstraint(["finding_id"], ["findings.finding_id"], name="fk_notifications_finding_id"),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
        sa.UniqueConstraint("alert_id", "revision", "recipient", name="uq_notifications_alert_id_revision_recipient"),
    )
    op.create_index(
        "ix_notifications_state_next_attempt_at", "notifications", ["state", "next_attempt_at"], unique=False
    )
