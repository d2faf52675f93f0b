"""A backfilled day on its way into the findings."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "staged_findings",
        sa.Column("position", sa.Integer(), nullable=False),
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
        sa.Column("superseded_at", _TIME, nullable=True),
        sa.Column("superseded_by", sa.Text(), nullable=False, server_default=""),
        sa.Column("stream", sa.JSON(), nullable=True),
        sa.Column("alert_id", sa.Integer(), nullable=True),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("published", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("position", name="pk_staged_findings"),
        sa.UniqueConstraint("finding_id", name="uq_staged_findings_finding_id"),
    )


def downgrade() -> None:
    """Drop it; a day that was on its way is stored again from the ledger once its row in `backfilled_days` is gone."""
    op.execute(
        "DELETE FROM backfilled_days WHERE EXISTS (SELECT 1 FROM staged_findings s WHERE s.detector ="
        " backfilled_days.detector AND s.day = backfilled_days.day)"
    )
    op.drop_table("staged_findings")
