"""Define a message to people, the channel that each kind of receiver implements, and the channels of an installation.

To add one, write a module with its `Channel` and enter its record in `tocsin.declare.receivers`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pkgutil import resolve_name
from typing import Protocol, Self

from pydantic import BaseModel, ConfigDict

from tocsin.alerts.notify.alert_facts import AlertFacts
from tocsin.declare.model.errors import TransientError
from tocsin.declare.receivers import MAIL, RECEIVERS, kind_of
from tocsin.declare.settings import Settings

SENDING_SECONDS = 3600.0
"""Within which a channel has handed over a message or given up: whoever waits so long does not hang."""

PICTURE = "chart@tocsin"
"""The id under which the HTML of a message shows its picture, as `cid:chart@tocsin`."""


class Message(BaseModel):
    """Message to one recipient, in every form that a channel may need.

    Attributes:
        id: a Message-ID with its angle brackets; the same at each attempt, so that a receiver knows a repetition.
        recipient: an e-mail address, or `KIND:ADDRESS`.
        thread: the id that all messages about one alert share; empty for none.
        series: by which a receiver may filter, such as the detector; empty for none.
        picture: PNG that `html` shows; empty for none.
        several: of a message about several alerts those of the ones that it shows, the highest first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    id: str
    recipient: str
    subject: str
    text: str
    html: str
    date: datetime
    thread: str = ""
    series: str = ""
    urgent: bool = False
    picture: bytes = b""
    facts: AlertFacts | None = None
    several: tuple[AlertFacts, ...] = ()
    alerts: int = 0


class Result(StrEnum):
    """Outcome of a message, by what to do about it."""

    SENT = "sent"
    """It was accepted: never send it again."""
    REFUSED = "refused"
    """It, or its recipient, was refused for good: give it up."""
    POSTPONED = "postponed"
    """It, or its recipient, was refused for now: try it again later, and others at once."""
    FAILED = "failed"
    """It did not get through, and nobody said why: try it again later. If the next message fails, too, so does the
    channel."""
    AWAY = "away"
    """The channel takes nothing now: try all its messages again later."""


@dataclass(frozen=True)
class Delivery:
    """Delivery of a message, and why if it was not sent.

    Attributes:
        retry_after: seconds for which a postponed one should wait at least, if the receiver said so.
    """

    result: Result
    reason: str = ""
    retry_after: float | None = None


class ChannelAway(TransientError):
    """A channel takes nothing now; what it should carry waits in its outbox."""


class Channel(Protocol):
    """Carries messages to receivers of one kind.

    It is handed one at a time, by one thread at a time. Messages to other recipients leave side by side, each through a
    channel of its own.
    """

    def send(self, message: Message) -> Delivery:
        """Hand over one message. ConfigError: a setting or secret is wrong, so that a retry does not help."""

    def close(self) -> None:
        """End the connection, if there is one."""


def server_of(recipient: str) -> str:
    """Name the server that takes the messages of `recipient`: one takes all mails, any other has its own."""
    kind = kind_of(recipient)
    return kind if kind == MAIL else recipient


class Channels:
    """The channels of one installation, each opened when there is a message for it and none idle. Threads may share it.

    Leave the `with` statement to close them; one that is sending is closed afterwards. A server that is away is not
    tried again (`away` says why, by `server_of`), and delays no other. A message that fails may be the cause
    itself, such as a mail at which its server drops the connection; a server is away if two different ones fail in a
    row.
    """

    def __init__(self, settings: Settings, away: Mapping[str, str] | None = None) -> None:
        """Open channels of `settings`; the servers of `away` are away from the start."""
        self._settings, self._lock, self._closed = settings, threading.Lock(), False
        self._idle: dict[str, list[Channel]] = defaultdict(list)
        self._failed: dict[str, str] = {}
        self.away = dict(away or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            idle = [channel for channels in self._idle.values() for channel in channels]
            self._idle.clear()
        for channel in idle:
            channel.close()

    def send(self, message: Message) -> Delivery:
        """Hand over one message to a channel of its recipient; see `Channel.send`."""
        name, server = kind_of(message.recipient), server_of(message.recipient)
        with self._lock:
            if server in self.away:
                return Delivery(Result.AWAY, self.away[server])
            idle = self._idle[name].pop() if self._idle[name] else None
        channel = idle or resolve_name(RECEIVERS[name].channel)(self._settings)
        try:
            delivery = channel.send(message)
        except BaseException:
            channel.close()
            raise
        with self._lock:
            if is_reusable := not self._closed:
                self._idle[name].append(channel)
            failed = self._failed.pop(server, message.id)
            if delivery.result is Result.FAILED:
                self._failed[server] = message.id
            if delivery.result is Result.AWAY or (delivery.result is Result.FAILED and failed != message.id):
                self.away[server] = delivery.reason
        if not is_reusable:
            channel.close()
        return delivery
