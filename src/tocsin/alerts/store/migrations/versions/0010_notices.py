"""Let the outbox hold messages about jobs and runs, which belong to no alert."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the message, and take rows without an alert."""
    with op.batch_alter_table("notifications") as table:
        table.add_column(sa.Column("message", sa.JSON(), nullable=True))
        table.alter_column("alert_id", existing_type=sa.Integer(), nullable=True)
        table.alter_column("finding_id", existing_type=sa.String(64), nullable=True)


def downgrade() -> None:
    """Drop them, also those that have not left."""
    op.execute("DELETE FROM notifications WHERE alert_id IS NULL")
    with op.batch_alter_table("notifications") as table:
        table.drop_column("message")
        table.alter_column("alert_id", existing_type=sa.Integer(), nullable=False)
        table.alter_column("finding_id", existing_type=sa.String(64), nullable=False)
