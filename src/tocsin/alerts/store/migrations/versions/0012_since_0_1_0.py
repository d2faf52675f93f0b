"""Bring a DB of release 0.1.0 to what is not released yet; new tables and indexes are made by the schema itself.

After a release write them out here, and begin another migration: a migration that is released no longer changes.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from tocsin.alerts.store.schema import metadata

revision = "0012"
down_revision = "0007"

_TEXTS = ("title", "owner", "runbook", "false_positives")
_LIMITS = ("email_limit", "urgent_limit")
_EMPTY: dict[str, Any] = {"nullable": False, "server_default": ""}


def upgrade() -> None:
    """Change the tables that are there, then make what is new."""
    op.drop_table("writer_terms")
    _change_notifications()
    _change_alerts()
    metadata.create_all(op.get_bind())
    for index in metadata.tables["notifications"].indexes:
        index.create(op.get_bind(), checkfirst=True)


def _change_notifications() -> None:
    op.drop_index("ix_notifications_state_next_attempt_at", "notifications")
    with op.batch_alter_table("notifications") as table:
        table.add_column(sa.Column("message", sa.JSON(), nullable=True))
        table.alter_column("alert_id", existing_type=sa.Integer(), nullable=True)
        table.alter_column("finding_id", existing_type=sa.String(64), nullable=True)
    op.add_column("notifications", sa.Column("detector", sa.String(200), **_EMPTY))
    op.add_column("notifications", sa.Column("muted_by", sa.Text(), **_EMPTY))
    op.execute("UPDATE notifications SET detector = (SELECT detector FROM alerts WHERE alerts.id = alert_id)")
    # Their messages are composed, or fixed since a first attempt: a receiver may have taken one already.
    tried = "kind = 'delayed' OR attempts > 0 OR claimed_until IS NOT NULL"
    op.execute(f"UPDATE notifications SET state = 'leaving' WHERE state = 'pending' AND ({tried})")
    op.execute("ALTER TABLE notifications RENAME COLUMN claimed_until TO refused_until")


def _change_alerts() -> None:
    """Move what the detector declares into one document, and add what people say."""
    make = "json_object" if op.get_bind().dialect.name == "sqlite" else "json_build_object"
    pairs = ", ".join(f"'{name}', {name}" for name in (*_TEXTS, *_LIMITS))
    op.add_column("alerts", sa.Column("guide", sa.JSON(), nullable=False, server_default="{}"))
    op.execute(f"UPDATE alerts SET guide = {make}({pairs})")
    for name in (*_TEXTS, *_LIMITS):  # one by one: findings point to this table, so SQLite may not make it anew
        op.drop_column("alerts", name)
    op.add_column("alerts", sa.Column("acknowledged_until", sa.DateTime(timezone=True)))
    op.add_column("alerts", sa.Column("acknowledged_by", sa.Text(), **_EMPTY))
    op.add_column("alerts", sa.Column("verdict", sa.String(10), **_EMPTY))
    for name in ("at_once", "delayed"):
        op.execute(f"ALTER TABLE alerts RENAME COLUMN told_{name} TO notified_{name}")
