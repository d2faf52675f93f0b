"""Note in an alert that what was missing has come back."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column."""
    op.add_column("alerts", sa.Column("returned_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Drop it; who was told of a return is not told again, since the notifications stay."""
    op.drop_column("alerts", "returned_at")
