"""Mails of failed runs that have not left yet.

Each is a file, so neither a mail server that is away nor a restart loses one.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, TypeAdapter

from tocsin import kept

_WEEK = 7 * 86_400.0

log = structlog.get_logger()


class Mail(BaseModel):
    """A mail as it is to leave.

    Attributes:
        to: the address.
        subject: one line.
        page: its HTML.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: str
    subject: str
    page: str


_MAIL = TypeAdapter(Mail | None)


class Outbox:
    """The mails that wait below one state folder, by name."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "supervision" / "mails"

    def put(self, name: str, mail: Mail) -> None:
        """Let `mail` wait; it takes the place of what has waited under that name.

        Raises:
            OSError: the disk is full or the folder cannot be written; a retry helps once there is room.
        """
        kept.write(self._file(name), _MAIL, mail)

    def read(self, name: str) -> Mail | None:
        """The mail; None when it has left, or cannot be read."""
        return kept.read(self._file(name), _MAIL, None)

    def remove(self, name: str) -> None:
        """Note that it has left."""
        self._file(name).unlink(missing_ok=True)

    def waiting(self) -> list[str]:
        """The names of those that wait. What nobody took within a week is given up, and the log says so."""
        now, names = time.time(), []
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):  # it has left since
                if now - file.stat().st_mtime < _WEEK:
                    names.append(file.stem)
                else:
                    mail = self.read(file.stem)
                    log.error("a mail could not leave for a week", to=mail and mail.to, subject=mail and mail.subject)
                    file.unlink()
        return names

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"
