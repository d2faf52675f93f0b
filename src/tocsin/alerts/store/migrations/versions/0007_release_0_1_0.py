"""Begin with the schema of release 0.1.0, the oldest that is brought up. A new DB is made whole, without migrations."""

revision = "0007"
down_revision = None


def upgrade() -> None:
    """Do nothing: the tables are there."""
