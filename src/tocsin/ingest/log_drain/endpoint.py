"""The log drain as an ASGI application: who sends, what, and what is answered.

Success is told only once Kafka has every record. What another attempt may cure is 503: senders such as Logplex drop a
batch for good at 4xx.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.errors import ConfigError, TransientError, nearest
from tocsin.declare.model.source import Format, Source
from tocsin.declare.setting_blocks import DrainSettings
from tocsin.ingest.line_forms import LONE_SURROGATE, syslog_header
from tocsin.ingest.log_drain.batch import BadRequest, Batch, identity_of, number_records, read_frames, read_lines
from tocsin.platform import private

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
        key = headers.get(b"idempotency-key", b"")  # of this body: one that is used again, such as in a script, is new
        if kind == "events":
            return lambda body: read_lines(body, source, identity_of(source, b"events", body, key))
        form = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind == "logs":
            if form not in _FRAMES:
                raise BadRequest(415, "the lines must be application/logplex-1: octet-counted syslog")
            frame = identity_of(source, headers.get(b"logplex-drain-token", b""), headers.get(b"logplex-frame-id", b""))
            expected, only = headers.get(b"logplex-msg-count", b""), self._settings.only.get(source.name, "*")
            return lambda body: read_frames(body, source, frame, expected, only)
        if form not in (_PROTOBUF, _JSON):
            raise BadRequest(415, "logs in OTLP are application/x-protobuf or application/json")
        return lambda body: _read_otlp(body, form == _JSON, source, identity_of(source, b"otlp", body, key))

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

    return number_records(read_export(body, is_json, source), source, identity)


_KEY = "drain.credentials_file"


class Credentials:
    """Passwords by source, kept as digests."""

    def __init__(self, passwords: dict[str, str]) -> None:
        self._digests = {source: _digest(password.encode()) for source, password in passwords.items()}

    def source_of(self, authorization: bytes) -> str | None:
        """Return the source whose name and password a header of HTTP basic authentication holds, else None."""
        scheme, _, text = authorization.partition(b" ")
        if scheme.lower() != b"basic":
            return None
        try:
            user, _, password = base64.b64decode(text.strip(), validate=True).partition(b":")
            source = user.decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        expected = self._digests.get(source, b"")
        return source if hmac.compare_digest(_digest(password), expected) else None


def read_passwords(path: Path) -> dict[str, str]:
    """Read the passwords in `path`, by source; lines that are empty or begin with # do not count.

    ConfigError if the file cannot be read, others can read it, or a line is none of ours or names a source again.
    """
    try:
        private.refuse_shared(path, _KEY)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "is not UTF-8"
        raise ConfigError.one(path, f"cannot be read: {what}", key=_KEY) from error
    passwords: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        source, colon, password = line.strip().partition(":")
        if source.startswith("#") or not (source or colon):
            continue
        if not (source and password):
            raise ConfigError.one(path, "must be source:password", key=_KEY, line=number)
        if source in passwords:
            raise ConfigError.one(path, f"is the second password of '{source}', which has one", key=_KEY, line=number)
        passwords[source] = password
    if not passwords:
        raise ConfigError.one(path, "names no source: write source:password", key=_KEY)
    return passwords


def _digest(password: bytes) -> bytes:
    return hashlib.sha256(password).digest()


_BYTES = ("bytes_value", "trace_id", "span_id")
"""Fields that are no text."""
_NAMES = ("host_name", "service_name", "service_instance_id")
_SEVERITIES = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
"""Names of the ranges of severity numbers: 1 to 4, 5 to 8, and so on."""
_LONE_SURROGATE = re.compile(LONE_SURROGATE)


def read_export(body: bytes, is_json: bool, source: Source) -> Iterator[bytes]:
    """Yield the log records of a request as records of `source`; BadRequest if the body is no such request.

    A source that takes JSON gets one object: the attributes of resource, scope and record, the fields of a structured
    body, and what the record says itself: `time`, `severity`, `severity_number`, `trace_id`, `span_id`, `event_name`,
    `scope_name`, `scope_version` and `body`. What a record does not say stays as the body has it. Dots in names become
    underscores, unless two fields would have one name. Others get the text of the body, logfmt and patterns with the
    header of a syslog line before it.
    """
    request = ExportLogsServiceRequest()
    try:
        if is_json:
            text = _LONE_SURROGATE.sub(r"\1\\ufffd", body.decode("utf-8-sig", "replace"))
            json_format.Parse(text, request, ignore_unknown_fields=True)
        else:
            _read_protobuf(body, request)
    except (DecodeError, json_format.ParseError, RecursionError, ValueError) as error:
        raise BadRequest(400, f"no logs in OTLP: {str(error)[:200]}") from error
    for of_resource in request.resource_logs:
        shared = _fields(of_resource.resource.attributes)
        for of_scope in of_resource.scope_logs:
            scope = of_scope.scope
            of_records = shared | _fields(scope.attributes)
            of_records |= _said(scope_name=scope.name, scope_version=scope.version)
            for record in of_scope.log_records:
                yield _record(record, of_records, source)


def _read_protobuf(body: bytes, request: Protobuf) -> None:
    """Read `body` into `request`, with U+FFFD for what is no UTF-8: for one such text protobuf refuses all of it."""
    try:
        request.ParseFromString(body)
    except DecodeError:
        lenient = _lenient_type().FromString(body)
        _replace_invalid(lenient)
        request.ParseFromString(lenient.SerializeToString())


@cache
def _lenient_type() -> type[Protobuf]:
    """Make the type of a request in which texts are bytes."""
    pool = DescriptorPool()
    for part in (common_pb2, resource_pb2, logs_pb2, logs_service_pb2):
        file = FileDescriptorProto.FromString(part.DESCRIPTOR.serialized_pb)
        for field in (field for message in file.message_type for field in message.field):
            field.type = field.TYPE_BYTES if field.type == field.TYPE_STRING else field.type
        pool.Add(file)
    made: type[Protobuf] = GetMessageClass(pool.FindMessageTypeByName(ExportLogsServiceRequest.DESCRIPTOR.full_name))
    return made


def _replace_invalid(message: Protobuf) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                _replace_invalid(inner)
        elif isinstance(value, bytes) and field.name not in _BYTES:
            setattr(message, field.name, value.decode("utf-8", "replace").encode())


def _record(record: Any, shared: dict[str, Any], source: Source) -> bytes:
    time, body = _time(record.time_unix_nano or record.observed_time_unix_nano), _plain(record.body)
    text = body if isinstance(body, str) else json.dumps(body)
    if Format.JSON in source.formats:
        fields = shared | _fields(record.attributes) | _fields(record.body.kvlist_value.values)
        fields |= _said(
            time=time,
            severity=record.severity_text or _severity(record.severity_number),
            severity_number=record.severity_number,
            trace_id=_id(record.trace_id),
            span_id=_id(record.span_id),
            event_name=record.event_name,
        )
        return json.dumps(_without_dots(fields | {"body": body})).encode()
    line = text.encode("utf-8", "replace")
    if Format.KEY_VALUE in source.formats or syslog_header(line):
        return line
    shared = _without_dots(shared)
    names = (str(shared.get(name, "")).replace(" ", "_") or "-" for name in _NAMES)
    return f"<14>1 {time or '-'} {' '.join(names)} - - ".encode("utf-8", "replace") + line


def _said(**fields: Any) -> dict[str, Any]:
    """Leave out what protobuf has no value for: zero or empty."""
    return {name: value for name, value in fields.items() if value}


def _severity(number: int) -> str:
    return _SEVERITIES[(number - 1) // 4] if 1 <= number <= 4 * len(_SEVERITIES) else ""


def _id(value: bytes) -> str:
    """Write the id of a trace (16 bytes) or a span (8) in hex, which the parser took for base64 in OTLP's JSON."""
    return value.hex() if len(value) in (16, 8) else base64.b64encode(value).decode().lower()


def _fields(pairs: Any) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _without_dots(fields: dict[str, Any]) -> dict[str, Any]:
    """Write `_` for the dots in names, but not where two names would become one."""
    counts = Counter(name.replace(".", "_") for name in fields)
    return {short if counts[short := name.replace(".", "_")] == 1 else name: fields[name] for name in fields}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return _without_dots(_fields(value.kvlist_value.values))
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "bytes_value":
        return value.bytes_value.hex()
    if kind == "double_value" and not math.isfinite(value.double_value):
        return json.dumps(value.double_value)  # as text: JSON has no such number
    return None if kind is None else getattr(value, kind)


def _time(nanoseconds: int) -> str | None:
    return (EPOCH + timedelta(microseconds=nanoseconds // 1000)).isoformat() if nanoseconds else None
