"""The settings of the history of events."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tocsin.declare.setting_blocks import SettingBlock, secret_in
from tocsin.declare.validation import Duration

SERVER = "postgresql"


class HistorySettings(SettingBlock):
    """The history of events beyond Kafka.

    Attributes:
        catalog: SQLAlchemy address of the Iceberg catalogue; SQLite in the folder of history when None.
        catalog_file: holds that address instead, when it has a password.
        grace: how long after its end a day is waited for before it is sealed.
    """

    catalog: str | None = None
    catalog_file: Path | None = None
    grace: Duration = timedelta(hours=1)

    @property
    def has_server(self) -> bool:
        """Return whether a server keeps the catalogue, as far as settings tell: what a file holds is seen later."""
        return self.catalog_file is not None or (self.catalog or "").startswith(SERVER)

    def address(self, folder: Path) -> str:
        """SQLAlchemy address of the catalogue, in `folder` unless another is given.

        Raises:
            ConfigError: its file cannot be read.
        """
        if self.catalog_file is not None:
            return secret_in(self.catalog_file, "history.catalog_file")
        return self.catalog or f"sqlite:///{folder / 'catalog.db'}"
