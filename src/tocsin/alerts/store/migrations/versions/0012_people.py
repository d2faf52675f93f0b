"""Let people answer alerts: what they said, silences, evidence, and what bounds the messages of a detector."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_TIME = sa.DateTime(timezone=True)
_NOTIFICATION_INDEX = "ix_notifications_state_recipient_detector_kind"


def upgrade() -> None:
    """Add them; what was notified before gets the detector of its alert."""
    op.add_column("alerts", sa.Column("acknowledged_until", _TIME))
    for name, kind in (("acknowledged_by", sa.Text()), ("verdict", sa.String(10))):
        op.add_column("alerts", sa.Column(name, kind, nullable=False, server_default=""))
    for name, kind in (("detector", sa.String(200)), ("muted_by", sa.Text())):
        op.add_column("notifications", sa.Column(name, kind, nullable=False, server_default=""))
    own = "SELECT alerts.detector FROM alerts WHERE alerts.id = notifications.alert_id"
    op.execute(f"UPDATE notifications SET detector = ({own}) WHERE alert_id IS NOT NULL")
    op.create_index(_NOTIFICATION_INDEX, "notifications", ["state", "recipient", "detector", "kind"])
    # Their messages are composed, or fixed since a first attempt: a receiver may have taken one already.
    tried = "kind IN ('notice', 'delayed') OR attempts > 0 OR claimed_until IS NOT NULL"
    op.execute(f"UPDATE notifications SET state = 'leaving' WHERE state = 'pending' AND ({tried})")
    op.execute("ALTER TABLE notifications RENAME COLUMN claimed_until TO refused_until")
    for name in ("at_once", "delayed"):
        op.execute(f"ALTER TABLE alerts RENAME COLUMN told_{name} TO notified_{name}")
    _make_history()
    _make_silences()
    _make_groups()


def _make_history() -> None:
    op.create_table(
        "alert_transitions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("alert_id", sa.Integer(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name="fk_alert_transitions_alert_id"),
        sa.PrimaryKeyConstraint("id", name="pk_alert_transitions"),
    )
    op.create_index("ix_alert_transitions_alert_id", "alert_transitions", ["alert_id"])
    op.create_table(
        "alert_evidence",
        sa.Column("alert_id", sa.Integer(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("gathered_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name="fk_alert_evidence_alert_id"),
        sa.PrimaryKeyConstraint("alert_id", name="pk_alert_evidence"),
    )


def _make_silences() -> None:
    op.create_table(
        "silences",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("matcher", sa.JSON(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("starts_at", _TIME, nullable=False),
        sa.Column("ends_at", _TIME, nullable=False),
        sa.Column("ended_by", sa.Text(), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_silences"),
    )
    op.create_index("ix_silences_ends_at", "silences", ["ends_at"])


def _make_groups() -> None:
    op.create_table(
        "notification_groups",
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("detector", sa.String(200), nullable=False),
        sa.Column("last_sent_at", _TIME, nullable=False),
        sa.Column("counted_from", _TIME, nullable=False),
        sa.Column("messages", sa.Integer(), nullable=False),
        sa.Column("storm_since", _TIME),
        sa.Column("storm_urgent", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("recipient", "detector", name="pk_notification_groups"),
    )


def downgrade() -> None:
    """Drop them, with all that people have said."""
    for name in ("notification_groups", "silences", "alert_evidence", "alert_transitions"):
        op.drop_table(name)
    op.execute("UPDATE alerts SET state = 'open' WHERE state = 'acknowledged'")
    op.execute("UPDATE notifications SET state = 'pending' WHERE state IN ('leaving', 'muted')")
    op.execute("UPDATE notifications SET kind = 'delayed' WHERE kind = 'continuing'")
    op.execute("DELETE FROM notifications WHERE state = 'dropped' OR kind = 'update'")
    op.drop_index(_NOTIFICATION_INDEX, "notifications")
    op.execute("ALTER TABLE notifications RENAME COLUMN refused_until TO claimed_until")
    for name in ("at_once", "delayed"):
        op.execute(f"ALTER TABLE alerts RENAME COLUMN notified_{name} TO told_{name}")
    for name in ("muted_by", "detector"):
        op.drop_column("notifications", name)
    for name in ("verdict", "acknowledged_by", "acknowledged_until"):
        op.drop_column("alerts", name)
