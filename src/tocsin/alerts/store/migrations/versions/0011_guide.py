"""Keep in an alert what its detector declares for people as one document, which new keys join without a migration."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_TEXTS = ("title", "owner", "runbook", "false_positives")
_LIMITS = ("email_limit", "urgent_limit")


def upgrade() -> None:
    """Move the columns into the document."""
    make = "json_object" if op.get_bind().dialect.name == "sqlite" else "json_build_object"
    pairs = ", ".join(f"'{name}', {name}" for name in (*_TEXTS, *_LIMITS))
    op.add_column("alerts", sa.Column("guide", sa.JSON(), nullable=False, server_default="{}"))
    op.execute(f"UPDATE alerts SET guide = {make}({pairs})")
    for name in (*_TEXTS, *_LIMITS):  # one by one: findings point to this table, so SQLite may not make it anew
        op.drop_column("alerts", name)


def downgrade() -> None:
    """Move them back; what else is in the document is lost."""
    for name in _TEXTS:
        op.add_column("alerts", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    for name in _LIMITS:
        op.add_column("alerts", sa.Column(name, sa.Float(), nullable=True))
    values = ", ".join(f"{name} = COALESCE(guide ->> '{name}', '')" for name in _TEXTS)
    values += "".join(f", {name} = CAST(guide ->> '{name}' AS FLOAT)" for name in _LIMITS)
    op.execute(f"UPDATE alerts SET {values}")
    op.drop_column("alerts", "guide")
