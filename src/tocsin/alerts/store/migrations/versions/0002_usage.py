"""Add the resources of each job and day, and the time at which findings were first detected, to count them by day."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the tables and the index."""
    op.create_table(
        "job_usage",
        sa.Column("job", sa.String(length=200), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.Column("rss_bytes", sa.BigInteger(), nullable=False),
        sa.Column("rows_in", sa.BigInteger(), nullable=False),
        sa.Column("rows_out", sa.BigInteger(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "day", name="pk_job_usage"),
    )
    op.create_table(
        "job_counters",
        sa.Column("job", sa.String(length=200), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.Column("rows_in", sa.BigInteger(), nullable=False),
        sa.Column("rows_out", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job", name="pk_job_counters"),
    )
    op.create_index(
        "ix_findings_first_detected_at_detector", "findings", ["first_detected_at", "detector"], unique=False
    )


def downgrade() -> None:
    """Drop them, and all that they hold."""
    op.drop_index("ix_findings_first_detected_at_detector", table_name="findings")
    op.drop_table("job_counters")
    op.drop_table("job_usage")
