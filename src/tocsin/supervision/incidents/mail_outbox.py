"""Mails to operators and owners that have not left yet, and how they leave.

Each is a file, so neither a mail server that is away nor a restart loses one. What has left is remembered by its name
for a week, so nothing leaves twice; a process that ends between the server's "accepted" and that note sends the mail
again, with the same Message-ID.

Notifications of alerts wait in the alerts DB. These do not, since they must leave when that DB is what is down.
"""

from __future__ import annotations

import contextlib
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import structlog

from tocsin.alerts.notify.channel import Channels, Delivery, Message, Result
from tocsin.alerts.notify.mail.compose import Envelope, Notice, notice_mail
from tocsin.model.errors import ConfigError
from tocsin.project.settings import Settings
from tocsin.runtime import state_file

_WEEK = 7 * 86_400.0

log = structlog.get_logger()


class Outbox:
    """The mails that wait below one state folder, by name."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "supervision" / "mails"
        self._sent = self.folder / "sent"

    def put(self, name: str, message: Message) -> None:
        """Let `message` wait, unless it has left; it takes the place of what has waited under that name.

        Raises:
            OSError: the disk is full or the folder cannot be written; a retry helps once there is room.
        """
        if not (self._sent / name).exists():
            state_file.write(self._file(name), Message, message)

    def has(self, prefix: str) -> bool:
        """Check whether a mail whose name begins so waits, or has left within the last week."""
        return any(self.folder.glob(f"{prefix}*.json")) or any(self._sent.glob(f"{prefix}*"))

    def read(self, name: str) -> Message | None:
        """Read the mail; None when it has left, or cannot be read."""
        return state_file.read(self._file(name), Message, None)

    def remove(self, name: str) -> None:
        """Note that it has left."""
        self._sent.mkdir(parents=True, exist_ok=True)
        (self._sent / name).touch()
        self._file(name).unlink(missing_ok=True)

    def waiting(self) -> list[str]:
        """List the names of those that wait. What nobody took within a week is given up, and the log says so."""
        now, names = time.time(), []
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):  # it has left since
                if now - file.stat().st_mtime < _WEEK:
                    names.append(file.stem)
                else:
                    mail = self.read(file.stem)
                    about = {"to": mail.recipient, "subject": mail.subject} if mail else {}
                    log.error("mail dropped after a week", **about)
                    file.unlink()
        for note in self._sent.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if now - note.stat().st_mtime >= _WEEK:
                    note.unlink()
        return names

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def addressed(notice: Notice, name: str, to: str, settings: Settings) -> Message:
    """Compose the mail of `notice` to one address; the same `name` is the same Message-ID."""
    message_id = f"<{name}@{settings.smtp.domain}>"
    return notice_mail(notice, Envelope(recipient=to, message_id=message_id, date=datetime.now(UTC)))


def send(outbox: Outbox, name: str, channels: Channels) -> Delivery | None:
    """Send the mail that waits under `name`, None when no such mail waits; one that is refused for good is given up.

    Raises:
        ConfigError: the password of the mail server cannot be read; it waits on.
    """
    mail = outbox.read(name)
    if mail is None:
        return None
    # Dated when it leaves: after days of waiting a mail program would sort it in below what has been read.
    delivery = channels.send(mail.model_copy(update={"date": datetime.now(UTC)}))
    about = {"to": mail.recipient, "subject": mail.subject}
    if delivery.result is Result.SENT:
        log.info("mail sent", **about)
    elif delivery.result is Result.REFUSED:
        log.error("mail refused", error=delivery.reason, **about)
    if delivery.result in (Result.SENT, Result.REFUSED):
        outbox.remove(name)
    return delivery


def send_waiting(settings: Settings) -> bool:
    """Send all that wait; returns whether none waits on. One that cannot leave keeps no other back."""
    outbox = Outbox(settings.state)
    with Channels(settings) as channels:
        try:
            names = outbox.waiting()
            random.shuffle(names)  # two that fail in a row end the round: another order lets others leave
            for name in names:
                send(outbox, name, channels)
        except (ConfigError, OSError) as error:
            log.warning("mails waiting", error=str(error))
            return False
        if channels.away:
            log.warning("mails waiting", error="; ".join(channels.away.values()))
    return not outbox.waiting()
