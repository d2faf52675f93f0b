"""Add to alerts what their detectors declare of false positives."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column."""
    op.add_column("alerts", sa.Column("false_positives", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    """Drop it, and all that it holds."""
    op.drop_column("alerts", "false_positives")
