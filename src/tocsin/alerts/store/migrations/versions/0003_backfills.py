"""Add what backfills say of findings, and which of their days are in the DB."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add the columns and the table."""
    op.add_column("findings", sa.Column("superseded_at", _TIME, nullable=True))
    op.add_column("findings", sa.Column("superseded_by", sa.Text(), nullable=False, server_default=""))
    op.add_column("findings", sa.Column("stream", sa.JSON(), nullable=True))
    op.create_table(
        "backfilled_days",
        sa.Column("detector", sa.String(length=200), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("findings", sa.Integer(), nullable=False),
        sa.Column("applied_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("detector", "day", name="pk_backfilled_days"),
    )


def downgrade() -> None:
    """Drop them, and all that they hold."""
    op.drop_table("backfilled_days")
    for name in ("stream", "superseded_by", "superseded_at"):
        op.drop_column("findings", name)
