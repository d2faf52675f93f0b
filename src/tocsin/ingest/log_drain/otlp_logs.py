"""Logs in OTLP, as protobuf or JSON, to records of a source."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.source import Format, Source
from tocsin.ingest.line_forms import syslog_header
from tocsin.ingest.log_drain.batch import BadRequest

_NAMES = ("host_name", "service_name", "service_instance_id")
_SEVERITIES = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
"""Names of the ranges of severity numbers: 1 to 4, 5 to 8, and so on."""


def read_export(body: bytes, is_json: bool, source: Source) -> Iterator[bytes]:
    """Yield the log records of a request as records of `source`; BadRequest if the body is no such request.

    A source that takes JSON gets one object: the attributes of resource, scope and record, the fields of a structured
    body, and what the record says itself: `time`, `severity`, `severity_number`, `trace_id`, `span_id`, `event_name`,
    `scope_name`, `scope_version` and `body`. What a record does not say stays as the body has it. Dots in names become
    underscores. Others get the text of the body, logfmt and patterns with the header of a syslog line before it.
    """
    request = ExportLogsServiceRequest()
    try:
        if is_json:
            json_format.Parse(body, request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadRequest(400, f"no logs in OTLP: {str(error)[:200]}") from error
    for of_resource in request.resource_logs:
        shared = _fields(of_resource.resource.attributes)
        for of_scope in of_resource.scope_logs:
            scope = of_scope.scope
            of_records = shared | _fields(scope.attributes)
            of_records |= _said(scope_name=scope.name, scope_version=scope.version)
            for record in of_scope.log_records:
                yield _record(record, of_records, source)


def _record(record: Any, shared: dict[str, Any], source: Source) -> bytes:
    time, body = _time(record.time_unix_nano or record.observed_time_unix_nano), _plain(record.body)
    text = body if isinstance(body, str) else json.dumps(body)
    if Format.JSON in source.formats:
        fields = shared | _fields(record.attributes) | (body if isinstance(body, dict) else {})
        fields |= _said(
            time=time,
            severity=record.severity_text or _severity(record.severity_number),
            severity_number=record.severity_number,
            trace_id=_id(record.trace_id),
            span_id=_id(record.span_id),
            event_name=record.event_name,
        )
        return json.dumps(fields | {"body": body}).encode()
    line = text.encode("utf-8", "replace")
    if Format.KEY_VALUE in source.formats or syslog_header(line):
        return line
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
    return {pair.key.replace(".", "_"): _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return _fields(value.kvlist_value.values)
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return None if kind is None else getattr(value, kind)


def _time(nanoseconds: int) -> str | None:
    return (EPOCH + timedelta(microseconds=nanoseconds // 1000)).isoformat() if nanoseconds else None
