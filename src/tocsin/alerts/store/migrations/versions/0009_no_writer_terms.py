"""Drop the terms of leases, which no job has any more."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Drop the table."""
    op.drop_table("writer_terms")


def downgrade() -> None:
    """Make it again, empty."""
    op.create_table(
        "writer_terms",
        sa.Column("job", sa.String(200), primary_key=True),
        sa.Column("term", sa.BigInteger, nullable=False),
    )
