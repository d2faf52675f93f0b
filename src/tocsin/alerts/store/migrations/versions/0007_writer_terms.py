"""Keep the term of the lease in which each job has written last."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "writer_terms",
        sa.Column("job", sa.String(200), primary_key=True),
        sa.Column("term", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("writer_terms")
