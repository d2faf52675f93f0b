"""The settings of leases: how machines that share an installation agree on who leads a job."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pydantic import Field

from tocsin.project.setting_blocks import SettingBlock, secret_in
from tocsin.project.validation import Duration


class LeaseSettings(SettingBlock):
    """The leases of jobs. Without a database, locks of files keep a job from running twice on one machine.

    Attributes:
        database: address of a PostgreSQL, such as postgresql://user@host/database.
        database_file: holds that address instead, when it has a password.
        length: how long a lease holds after it was renewed last. So long jobs go on without the database, and about so
            long nobody leads after a machine was lost.
    """

    database: str | None = None
    database_file: Path | None = None
    length: Duration = Field(default=timedelta(minutes=2), ge=timedelta(seconds=5), le=timedelta(hours=1))

    @property
    def is_on(self) -> bool:
        """Return whether leases in a database decide who leads."""
        return self.database is not None or self.database_file is not None

    def address(self) -> str:
        """Return the address of the database; empty if there is none.

        Raises:
            ConfigError: its file cannot be read.
        """
        if self.database_file is None:
            return self.database or ""
        return secret_in(self.database_file, "leases.database_file")
