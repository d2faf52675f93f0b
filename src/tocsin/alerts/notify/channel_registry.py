"""The channels that there are, and which of them carries a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from tocsin.alerts.notify.channel import Channel, Delivery, Message, Result
from tocsin.alerts.notify.smtp import SmtpChannel
from tocsin.project.settings import Settings

_MAIL = "smtp"
CHANNELS: dict[str, Callable[[Settings], Channel]] = {
    _MAIL: lambda settings: SmtpChannel(settings.smtp),
}


def channel_of(recipient: str) -> str:
    """Name the channel for `recipient`: that of `CHANNEL:ADDRESS`, and mail for anything else."""
    name, colon, _ = recipient.partition(":")
    return name if colon and name in CHANNELS else _MAIL


class Channels:
    """The channels of one installation, each opened with its first message; leave the `with` statement to close them.

    One that is away is not tried again, and keeps no other back. A message that fails may be the cause itself, such as
    a mail at which its server drops the connection; a channel is away if two different ones fail in a row.

    Attributes:
        away: why, by the name of the channel.
    """

    def __init__(self, settings: Settings) -> None:
        """Send by the `settings`; nothing is opened yet."""
        self._settings = settings
        self._open: dict[str, Channel] = {}
        self._failed: dict[str, str] = {}
        self.away: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._open.values():
            channel.close()
        self._open.clear()

    def send(self, message: Message) -> Delivery:
        """Hand over one message to the channel of its recipient; see `Channel.send`."""
        name = channel_of(message.recipient)
        if name in self.away:
            return Delivery(Result.AWAY, self.away[name])
        if name not in self._open:
            self._open[name] = CHANNELS[name](self._settings)
        delivery = self._open[name].send(message)
        failed = self._failed.pop(name, message.id)
        if delivery.result is Result.FAILED:
            self._failed[name] = message.id
        if delivery.result is Result.AWAY or (delivery.result is Result.FAILED and failed != message.id):
            self.away[name] = delivery.reason
        return delivery
