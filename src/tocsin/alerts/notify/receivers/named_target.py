"""Base of the channels whose recipients name a block of the settings with a secret in a file."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import httpx

from tocsin.alerts.notify.channel import Delivery, Message, Result
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


_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_LATER = (408, 429)


class HttpPost:
    """Connections that open with the first message."""

    def __init__(self) -> None:
        self._client: httpx.Client | None = None

    def close(self) -> None:
        """End the connections, if there are any."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> Delivery:
        """Post JSON: 2xx has sent it; 408, 429 and 5xx postpone it, by `Retry-After` if that is said; others refuse it.

        Reasons name the server alone: the rest of an address may be a secret.
        """
        place = f"{urlsplit(url).hostname}"
        headers = {"Content-Type": "application/json", "User-Agent": "tocsin", **headers}
        try:
            with self._opened().stream("POST", url, content=body, headers=headers) as response:
                if response.is_success:
                    return Delivery(Result.SENT)
                return _refusal(place, response)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            return Delivery(Result.AWAY, f"{place} takes no connection: {_line(error)}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Delivery(Result.FAILED, f"{place}: {_line(error)}")

    def _opened(self) -> httpx.Client:
        if self._client is None:
            # Plain HTTP leads to this machine alone, where no proxy belongs.
            self._client = httpx.Client(
                timeout=_TIMEOUT, verify=ssl.create_default_context(), mounts={"http://": httpx.HTTPTransport()}
            )
        return self._client


def _refusal(place: str, response: httpx.Response) -> Delivery:
    code = response.status_code
    try:
        text = next(response.iter_bytes(500), b"")[:500].decode("utf-8", "replace")
    except httpx.HTTPError:
        text = ""
    reason = f"{place} answers {code} {' '.join(text.split())}".strip()
    if code not in _LATER and code < 500:
        return Delivery(Result.REFUSED, reason)
    return Delivery(Result.POSTPONED, reason, _seconds(response.headers.get("Retry-After", "")))


def _seconds(after: str) -> float | None:
    try:
        return max(0.0, float(after))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(after) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
