"""Mails to operators and owners that have not left yet, and how they leave.

Each is a file, so neither a mail server that is away nor a restart loses one. What has left is remembered by its name
for a week, so nothing leaves twice; a process that ends between the server's "accepted" and that note sends the mail
again, with the same Message-ID.
"""

from __future__ import annotations

import contextlib
import time
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict

from tocsin.alerts.notify.mailer import Mailer, MailPostponed, MailRefused
from tocsin.model.errors import ConfigError, TransientError
from tocsin.project.setting_blocks import SmtpSettings
from tocsin.runtime import state_file

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

    def message(self, name: str, sender: str) -> EmailMessage:
        """The mail as it goes to the server; the same `name` is the same Message-ID."""
        made = EmailMessage(policy=SMTP)
        made["From"], made["To"], made["Subject"] = sender, self.to, " ".join(self.subject.split())
        made["Date"], made["Message-ID"] = formatdate(), f"<{name}@{sender.rpartition('@')[2]}>"
        made["Auto-Submitted"] = "auto-generated"
        made.set_content(self.page, subtype="html", cte="quoted-printable")
        return made


class Outbox:
    """The mails that wait below one state folder, by name."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "supervision" / "mails"
        self._sent = self.folder / "sent"

    def put(self, name: str, mail: Mail) -> None:
        """Let `mail` wait, unless it has left; it takes the place of what has waited under that name.

        Raises:
            OSError: the disk is full or the folder cannot be written; a retry helps once there is room.
        """
        if not (self._sent / name).exists():
            state_file.write(self._file(name), Mail, mail)

    def has(self, prefix: str) -> bool:
        """Whether a mail whose name begins so waits, or has left within the last week."""
        return any(self.folder.glob(f"{prefix}*.json")) or any(self._sent.glob(f"{prefix}*"))

    def read(self, name: str) -> Mail | None:
        """The mail; None when it has left, or cannot be read."""
        return state_file.read(self._file(name), Mail, None)

    def remove(self, name: str) -> None:
        """Note that it has left."""
        self._sent.mkdir(parents=True, exist_ok=True)
        (self._sent / name).touch()
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
        for note in self._sent.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if now - note.stat().st_mtime >= _WEEK:
                    note.unlink()
        return names

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def send(outbox: Outbox, name: str, smtp: SmtpSettings, mailer: Mailer | None = None) -> Mail | None:
    """Send the mail that waits under `name`; returns it, or None when no such mail waits.

    Raises:
        MailRefused: the server refuses it for good; it is given up, and the log says so.
        TransientError: the server takes it not now, or nothing at all; it waits on.
        ConfigError: the password of the mail server cannot be read; it waits on.
    """
    mail = outbox.read(name)
    if mail is None:
        return None
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Mailer(smtp)) if mailer is None else mailer
        try:
            server.send(mail.message(name, smtp.sender), mail.to)
        except MailRefused as error:
            log.error("mail refused", to=mail.to, subject=mail.subject, error=str(error))
            outbox.remove(name)
            raise
    outbox.remove(name)
    log.info("mail sent", to=mail.to, subject=mail.subject)
    return mail


def send_waiting(outbox: Outbox, smtp: SmtpSettings) -> bool:
    """Send all that wait; returns whether none waits on. One that is refused keeps no other back."""
    with Mailer(smtp) as mailer:
        for name in outbox.waiting():
            try:
                send(outbox, name, smtp, mailer)
            except (MailRefused, MailPostponed):
                continue
            except (TransientError, ConfigError, OSError) as error:
                log.warning("mails wait", error=str(error))
                return False
    return not outbox.waiting()
