"""Send events as requests to a web server, as many at once as there are connections."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.ingest.replay.outcomes import NO_ANSWER, Progress, Ticket
from tocsin.ingest.replay.recorded import RecordedEvent

_PATIENCE = 20
_SHOWN_BYTES = 1_048_576
_SAFE = "/?&=%:@!$'()*+,;~-._[]"


@dataclass(frozen=True, kw_only=True)
class Requests:
    """How events become requests.

    Attributes:
        method, path: columns with the method and the path of a request. Without a method it is GET.
        allowed: methods that are sent; the others are left out.
        timeout_seconds: for connecting, and for each part of an answer.
    """

    method: str = "method"
    path: str = "path"
    allowed: frozenset[str] = frozenset({"GET"})
    connections: int = 16
    timeout_seconds: float = 10.0


class HttpTarget:
    """Sends requests. Bodies are not recorded, so none is sent; redirects are not followed."""

    def __init__(self, url: str, requests: Requests, progress: Progress) -> None:
        """Send to the server at `url`, counting in `progress`; ConfigError if it is no address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError.one(url, "is no address of a server; they look like https://staging.example.com")
        self.name, self._requests, self._progress = url, requests, progress
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._local, self._lock = threading.local(), threading.Lock()
        self._pool = ThreadPoolExecutor(requests.connections, thread_name_prefix="request")
        self._free = threading.Semaphore(requests.connections)
        self._connections: list[http.client.HTTPConnection] = []
        self._unanswered = 0

    def refuses(self, event: RecordedEvent) -> str | None:
        """Say why `event` is left out; None if it is sent."""
        method, path = self._method(event), event.values.get(self._requests.path)
        if not isinstance(path, str) or not path.startswith("/"):
            return "without a path"
        return None if method in self._requests.allowed else f"method {method}"

    def send(self, event: RecordedEvent, ticket: Ticket) -> None:
        """Send `event` as soon as a connection is free; TransientError if many requests in a row had no answer."""
        if self._unanswered >= _PATIENCE:
            raise TransientError(f"{self.name} has not answered {_PATIENCE} requests in a row")
        self._free.acquire()
        path = self._base + quote(event.values[self._requests.path], _SAFE)
        self._pool.submit(self._ask, self._method(event), path, ticket)

    def poll(self) -> None:
        """Do nothing: answers settle their tickets in threads of their own."""

    def finish(self) -> None:
        """Wait for the answers to all that was sent, and leave."""
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()

    def _method(self, event: RecordedEvent) -> str:
        return str(event.values.get(self._requests.method) or "GET").upper()

    def _ask(self, method: str, path: str, ticket: Ticket) -> None:
        began = time.monotonic()
        outcome, failure = NO_ANSWER, ""
        try:
            connection = self._connection()
            connection.request(method, path, headers={"User-Agent": "tocsin-replay"})
            answer = connection.getresponse()
            if len(answer.read(_SHOWN_BYTES)) == _SHOWN_BYTES:
                connection.close()
            outcome = str(answer.status)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
            with contextlib.suppress(AttributeError):
                self._local.connection.close()
        finally:
            with self._lock:
                self._unanswered = self._unanswered + 1 if outcome == NO_ANSWER else 0
            self._progress.settle(ticket, outcome, time.monotonic() - began, failure)
            self._free.release()

    def _connection(self) -> http.client.HTTPConnection:
        """Keep one for each thread; it connects again by itself after it was closed."""
        if not hasattr(self._local, "connection"):
            connection = self._kind(self._host, self._port, timeout=self._requests.timeout_seconds)
            self._connections.append(connection)
            self._local.connection = connection
        own: http.client.HTTPConnection = self._local.connection
        return own
