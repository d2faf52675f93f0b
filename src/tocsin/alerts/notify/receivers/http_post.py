"""Post a message over HTTPS, and judge the answer. No redirect is followed, and every certificate is verified."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx

from tocsin.alerts.notify.channel import Delivery, Result

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
    """Read `Retry-After`, seconds or a date; None if it says neither."""
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
