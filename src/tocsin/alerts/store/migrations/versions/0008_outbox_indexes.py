"""Find what is due, whose summary is due, and what points to a finding without reading the whole outbox."""

from alembic import op

revision = "0008"
down_revision = "0007"

_NEW = (
    ("state", "kind", "next_attempt_at"),
    ("state", "kind", "recipient", "created_at"),
    ("kind", "sent_at", "recipient"),
    ("finding_id",),
)


def upgrade() -> None:
    """Add the indexes, one of them in place of the one with fewer columns."""
    op.drop_index("ix_notifications_state_next_attempt_at", "notifications")
    for columns in _NEW:
        op.create_index(f"ix_notifications_{'_'.join(columns)}", "notifications", columns)


def downgrade() -> None:
    """Drop them."""
    for columns in _NEW:
        op.drop_index(f"ix_notifications_{'_'.join(columns)}", "notifications")
    op.create_index("ix_notifications_state_next_attempt_at", "notifications", ["state", "next_attempt_at"])
