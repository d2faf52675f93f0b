"""The log drain as an ASGI application: who sends, what, and what is answered.

Success is told only once Kafka has every record. What another attempt may cure is 503: senders such as Logplex drop a
batch for good at 4xx.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import TransientError, nearest
from tocsin.declare.model.source import Source
from tocsin.declare.setting_blocks import DrainSettings
from tocsin.ingest.log_drain.batch import BadRequest, Batch, identity_of, number_records, read_frames, read_lines
from tocsin.ingest.log_drain.credentials import Credentials

MAX_BODY_BYTES = 20_971_520
"""Of one request, packed or unpacked: a batch of the OpenTelemetry collector has 8,192 records."""
MAX_WAITING_BYTES = 67_108_864
"""Of all requests that wait for Kafka, together."""
BODY_SECONDS = 10.0
"""In which a request must have arrived."""

_RECORD_BYTES = 400  # of a record in this process and in Kafka's client, beside its value
_READ_AT_ONCE_BYTES = 1_048_576
_RETRY_AFTER = b"2"
_PROTOBUF, _JSON = b"application/x-protobuf", b"application/json"
_FRAMES = (b"application/logplex-1", b"application/syslog", b"text/plain", b"")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class _Gone(Exception):
    """The client has hung up; nobody waits for an answer."""


class Endpoint:
    """Answers requests.

    `counts` are of `requests`, `lines` stored, lines `left_out`, lines that senders have `lost`, and answers `refused`
    (4xx) and `put_off` (503).
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: DrainSettings,
        credentials: Credentials,
        store: Callable[[Batch], Awaitable[None]],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._catalog, self._settings, self._credentials, self._store = catalog, settings, credentials, store
        self._reserved = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        self.counts["requests"] += 1
        reserved: list[int] = []
        headers: dict[bytes, bytes] = dict(scope["headers"])
        extra: dict[bytes, bytes] = {}
        try:
            status, body = await self._take(scope, headers, receive, reserved)
            if status == 200:
                extra[b"content-type"] = headers[b"content-type"]
        except BadRequest as error:
            self.counts["refused"] += 1
            status, body = error.status, f"{error}\n".encode()
            if status == 401:
                extra[b"www-authenticate"] = b'Basic realm="tocsin"'
        except (TransientError, TimeoutError) as error:
            self.counts["put_off"] += 1
            status, body = 503, f"{str(error) or 'the request took too long to arrive'}; try again\n".encode()
            extra[b"retry-after"] = _RETRY_AFTER
        except _Gone:
            return
        finally:
            self._reserved -= sum(reserved)
        if status >= 400:
            extra[b"connection"] = b"close"  # the rest of its body may still be on the way, and need not come
        if status != 204:
            extra[b"content-length"] = b"%d" % len(body)
        await send({"type": "http.response.start", "status": status, "headers": list(extra.items())})
        await send({"type": "http.response.body", "body": body})

    async def _take(
        self, scope: Message, headers: dict[bytes, bytes], receive: Receive, reserved: list[int]
    ) -> tuple[int, bytes]:
        read = self._route(scope, headers)
        body = await self._body(headers, receive, reserved)
        # A large export in JSON takes seconds to read, in which others are answered.
        batch = read(body) if len(body) <= _READ_AT_ONCE_BYTES else await asyncio.to_thread(read, body)
        self._reserve(_RECORD_BYTES * len(batch.records), reserved)
        await self._store(batch)
        self.counts.update(lines=len(batch.records), left_out=batch.left_out, lost=batch.lost)
        is_otlp = scope["path"] == "/v1/logs"
        return (200, b"{}" if headers[b"content-type"].startswith(_JSON) else b"") if is_otlp else (204, b"")

    def _route(self, scope: Message, headers: dict[bytes, bytes]) -> Callable[[bytes], Batch]:
        path: str = scope["path"]
        kind, slash, name = path.removeprefix("/").partition("/")
        is_known = path == "/v1/logs" or (kind, slash) in (("logs", ""), ("events", "/"))
        if not (path.startswith("/") and is_known):  # a target need not be a path: `OPTIONS *`
            raise BadRequest(404, "there are POST /logs, /events/<source> and /v1/logs")
        if scope["method"] != "POST":
            raise BadRequest(405, "only POST")
        user = self._credentials.source_of(headers.get(b"authorization", b""))
        if user is None:
            raise BadRequest(401, "name and password of a source are needed: basic authentication")
        source = self._source(name if kind == "events" else user)
        if source.name != user:
            raise BadRequest(403, f"the password is that of {user}")
        key = headers.get(b"idempotency-key", b"")
        if kind == "events":
            return lambda body: read_lines(body, source, identity_of(source, b"events", key))
        form = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind == "logs":
            if form not in _FRAMES:
                raise BadRequest(415, "the lines must be application/logplex-1: octet-counted syslog")
            frame = identity_of(source, headers.get(b"logplex-drain-token", b""), headers.get(b"logplex-frame-id", b""))
            expected, only = headers.get(b"logplex-msg-count", b""), self._settings.only.get(source.name, "*")
            return lambda body: read_frames(body, source, frame, expected, only)
        if form not in (_PROTOBUF, _JSON):
            raise BadRequest(415, "logs in OTLP are application/x-protobuf or application/json")
        return lambda body: _read_otlp(body, form == _JSON, source, identity_of(source, b"otlp", key))

    def _source(self, name: str) -> Source:
        known = {name: source for name, source in self._catalog.sources.items() if not source.is_derived}
        if name in known:
            return known[name]
        if f"sources/{name}" in self._catalog.broken:
            raise TransientError(f"the file of source '{name}' cannot be read now")
        near = nearest(name, known)
        raise BadRequest(404, f"there is no source '{name}'" + (f"; did you mean '{near}'?" if near else ""))

    async def _body(self, headers: dict[bytes, bytes], receive: Receive, reserved: list[int]) -> bytes:
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"identity", b"gzip"):
            raise BadRequest(415, "the body may be packed with gzip, and not otherwise")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise self._too_long()
        chunks: list[bytes] = []
        async with asyncio.timeout(BODY_SECONDS):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                chunk, more = message.get("body", b""), message.get("more_body", False)
                self._reserve(len(chunk), reserved)
                chunks.append(chunk)
                if sum(map(len, chunks)) > MAX_BODY_BYTES:
                    raise self._too_long()
        body = b"".join(chunks)
        return body if encoding == b"identity" else self._unpacked(body, reserved)

    def _unpacked(self, body: bytes, reserved: list[int]) -> bytes:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            text = unpacker.decompress(body, MAX_BODY_BYTES + 1)
        except zlib.error as error:
            raise BadRequest(400, f"the body is no gzip: {error}") from error
        self._reserve(len(text), reserved)
        if len(text) > MAX_BODY_BYTES:
            raise self._too_long()
        if not unpacker.eof or unpacker.unused_data:
            raise BadRequest(400, "the body is not one whole gzip")
        return text

    def _reserve(self, size: int, reserved: list[int]) -> None:
        """Count memory that a request takes until it is answered; TransientError if all together take too much."""
        if self._reserved + size > MAX_WAITING_BYTES:
            raise TransientError("too much is waiting for Kafka")
        self._reserved += size
        reserved.append(size)

    def _too_long(self) -> BadRequest:
        return BadRequest(413, f"the body is longer than {MAX_BODY_BYTES:,} bytes")


def _read_otlp(body: bytes, is_json: bool, source: Source, identity: str) -> Batch:
    from tocsin.ingest.log_drain.otlp_logs import read_export  # noqa: PLC0415 - most drains see no OTLP

    return number_records(read_export(body, is_json, source), source, identity)
