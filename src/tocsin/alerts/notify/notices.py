"""Store messages about jobs and runs as files until the notifier takes them into its outbox, within a second.

The supervisor may lack the driver of the alerts DB (Airflow's environment does), and must be heard while that DB or the
notifier is down. What the notifier has not taken within `PATIENCE_SECONDS` leaves from its file: the supervisor sends
it, and so does a notifier whose DB is away.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from tocsin.alerts.notify.channel import Channels, Message, Result
from tocsin.alerts.notify.mail.compose import Envelope, Notice, notice_mail
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.lock import Lock, LockHeld, hold

PATIENCE_SECONDS = 60.0
_WEEK = 7 * 86_400.0

log = structlog.get_logger()


class NoticeFiles:
    """The messages below one state folder, by name. What has left it is remembered for a week: it does not return."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "supervision" / "mails"
        self._gone = self._folder / "sent"

    def put(self, name: str, message: Message) -> None:
        """Store or replace `message`, unless one of that name has left; OSError if the disk is full or not writable."""
        if not (self._gone / name).exists():
            state_file.write(self._file(name), Message, message)

    def has(self, prefix: str) -> bool:
        """Check whether a message whose name begins so waits, or has left within the last week."""
        return any(self._folder.glob(f"{prefix}*.json")) or any(self._gone.glob(f"{prefix}*"))

    def read(self, name: str) -> Message | None:
        """Read the message; None when it has left, or cannot be read."""
        return state_file.read(self._file(name), Message, None)

    def remove(self, name: str) -> None:
        """Note that it has left, and forget what left more than a week ago."""
        self._gone.mkdir(parents=True, exist_ok=True)
        (self._gone / name).touch()
        self._file(name).unlink(missing_ok=True)
        for note in self._gone.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - note.stat().st_mtime >= _WEEK:
                    note.unlink()

    def waiting(self) -> dict[str, float]:
        """List the names of those that wait, each with the epoch seconds at which it was put down."""
        found = {}
        for file in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):  # it has left since
                found[file.stem] = file.stat().st_mtime
        return found

    def lock(self) -> Lock:
        """Keep others from taking messages out: two would send one twice. LockHeld if one does, OSError as of `put`."""
        return hold(self._folder / ".lock")

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def operators(catalog: Catalog, settings: Settings) -> list[str]:
    """List who hears of what is nobody's: the recipients of urgent mails, else the owners of all sources."""
    return list(settings.alerts.urgent_recipients) or sorted({source.owner for source in catalog.sources.values()})


def compose_notice(notice: Notice, name: str, to: str, settings: Settings) -> Message:
    """Compose the message of `notice` to one address; the same `name` is the same Message-ID."""
    message_id = f"<{name}@{settings.smtp.domain}>"
    return notice_mail(notice, Envelope(recipient=to, message_id=message_id, date=datetime.now(UTC)))


def put(notice: Notice, name: str, to: Sequence[str], settings: Settings) -> None:
    """Store a message for each of `to`, as `name` and its number; on an OSError those before it are stored."""
    for own, message in _compose_each(notice, name, to, settings):
        NoticeFiles(settings.state).put(own, message)


def post(notice: Notice, name: str, to: Sequence[str], settings: Settings, reached: Collection[str] = ()) -> set[str]:
    """Do as `put`, and send at once where no file can be written; returns for whom no other try is needed.

    Those whom an earlier try has `reached` are left out; the others keep their numbers. ConfigError if the password of
    the mail server cannot be read.
    """
    done = set(reached)
    with Channels(settings) as channels:
        for own, message in _compose_each(notice, name, to, settings):
            if message.recipient in done:
                continue
            try:
                NoticeFiles(settings.state).put(own, message)
                done.add(message.recipient)
            except OSError as error:
                delivery = channels.send(message)
                about = {"to": message.recipient, "subject": message.subject}
                about |= {"result": delivery.result, "why": delivery.reason}
                log.warning("message not stored, sent at once", error=str(error), **about)
                if delivery.result in (Result.SENT, Result.REFUSED):
                    done.add(message.recipient)
    return done


def _compose_each(notice: Notice, name: str, to: Sequence[str], settings: Settings) -> Iterator[tuple[str, Message]]:
    for number, address in enumerate(to):
        own = f"{name}-{number}"
        yield own, compose_notice(notice, own, address, settings)


def list_overdue(settings: Settings, patience: float = PATIENCE_SECONDS) -> list[str]:
    """List the names of the messages that the notifier has not taken within `patience` seconds."""
    now = time.time()
    ages = {name: now - at for name, at in NoticeFiles(settings.state).waiting().items()}
    return [name for name, age in ages.items() if not 0 <= age < patience]  # below 0 the clock was set back


def send_overdue(settings: Settings, patience: float = PATIENCE_SECONDS) -> bool:
    """Send them from their files; returns whether none waits on. One that cannot leave delays no other."""
    files = NoticeFiles(settings.state)
    names = list_overdue(settings, patience)
    if not names:
        return True
    random.shuffle(names)  # two that fail in a row end the round: another order lets others leave
    try:
        with files.lock(), Channels(settings) as channels:
            for name in names:
                _send(files, name, channels)
            if channels.away:
                log.warning("messages waiting", error="; ".join(channels.away.values()))
    except LockHeld:
        pass
    except (ConfigError, OSError) as error:
        log.warning("messages waiting", error=str(error))
    return not list_overdue(settings, patience)


def _send(files: NoticeFiles, name: str, channels: Channels) -> None:
    message = files.read(name)
    if message is None:  # broken: nothing writes half a file
        log.error("message unreadable, dropped", name=name)
        files.remove(name)
        return
    # Dated when it leaves: after days of waiting a mail program would sort it in below what has been read.
    delivery = channels.send(message.model_copy(update={"date": datetime.now(UTC)}))
    about = {"to": message.recipient, "subject": message.subject}
    if delivery.result is Result.SENT:
        log.info("message sent from its file", **about)
    elif delivery.result is Result.REFUSED:
        log.error("message refused", error=delivery.reason, **about)
    if delivery.result in (Result.SENT, Result.REFUSED):
        files.remove(name)
