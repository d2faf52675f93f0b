"""Base of the channels whose recipients name a block of the settings with a secret in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from tocsin.alerts.notify.channel import Delivery, Message, Result
from tocsin.alerts.notify.receivers.http_post import HttpPost
from tocsin.declare.blocks.receiver_settings import ReceiverTarget
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import secret_in
from tocsin.declare.settings import Settings

_Target = TypeVar("_Target", bound=ReceiverTarget)


class NamedTargetChannel(ABC, Generic[_Target]):
    """Sends to the `[receivers.KIND.NAME]` of a recipient `KIND:NAME`.

    Attributes:
        secret: the field of such a block that names the file of its secret.
    """

    secret: str

    def __init__(self, settings: Settings) -> None:
        self._receivers, self._http = settings.receivers, HttpPost()

    def send(self, message: Message) -> Delivery:
        """See `Channel.send`; refused if there is no such block, postponed while its secret cannot be used."""
        kind, _, name = message.recipient.partition(":")
        target: _Target | None = self._receivers.get(kind, {}).get(name)
        if target is None:
            return Delivery(Result.REFUSED, f"the settings have no block [receivers.{kind}.{name}]")
        try:
            secret = secret_in(getattr(target, self.secret), f"receivers.{kind}.{name}.{self.secret}")
            return self.send_to(target, secret, message)
        except ConfigError as error:
            return Delivery(Result.POSTPONED, str(error))

    @abstractmethod
    def send_to(self, target: _Target, secret: str, message: Message) -> Delivery:
        """Send one message with the secret of its target; ConfigError if that is none."""

    def close(self) -> None:
        """See `Channel.close`."""
        self._http.close()
