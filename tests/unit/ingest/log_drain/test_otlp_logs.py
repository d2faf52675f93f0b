"""Logs in OTLP: both encodings give the same records."""

import json
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.unit.ingest.log_drain.drain_source import source
from tocsin.declare.model.source import Format
from tocsin.ingest.log_drain.batch import BadRequest
from tocsin.ingest.log_drain.endpoint import read_export

TIME = "1767268799123456789"


def export(*records: dict[str, Any]) -> bytes:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "the shop"}}]}
    return json.dumps(
        {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": list(records)}]}], "later": 1}
    ).encode()


def record(body: Any, **fields: Any) -> dict[str, Any]:
    return {"timeUnixNano": TIME, "severityText": "INFO", "body": body} | fields


BODY = export(
    record({"stringValue": "at=info k=v"}, attributes=[{"key": "http.route", "value": {"intValue": "7"}}]),
    record({"kvlistValue": {"values": [{"key": "k", "value": {"arrayValue": {"values": [{"boolValue": True}]}}}]}}),
    {"observedTimeUnixNano": TIME, "attributes": [{"key": "ratio", "value": {"doubleValue": "NaN"}}]},
)


@pytest.mark.parametrize("is_json", [True, False])
def test_both_encodings(is_json: bool) -> None:
    body = BODY
    if not is_json:
        request = ExportLogsServiceRequest()
        body = json_format.Parse(BODY, request, ignore_unknown_fields=True).SerializeToString()
    time = "2026-01-01T11:59:59.123456+00:00"
    found = [json.loads(one) for one in read_export(body, is_json, source(Format.JSON))]
    shared = {"service_name": "the shop", "time": time}
    assert found == [
        shared | {"http_route": 7, "severity": "INFO", "body": "at=info k=v"},
        shared | {"k": [True], "severity": "INFO", "body": {"k": [True]}},
        shared | {"ratio": "NaN", "body": None},
    ]
    lines = list(read_export(body, is_json, source(Format.LOGFMT)))
    assert lines[0] == f"<14>1 {time} - the_shop - - - at=info k=v".encode()
    assert next(iter(read_export(body, is_json, source(Format.KEY_VALUE)))) == b"at=info k=v"


@pytest.mark.parametrize("is_json", [True, False])
def test_what_a_record_says_of_itself(is_json: bool) -> None:
    ids = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}
    scope = {"name": "lib", "version": "2", "attributes": [{"key": "a.b", "value": {"stringValue": "c"}}]}
    records = [{"severityNumber": 17, "eventName": "e", "body": {"stringValue": "boom"}} | ids, {"severityNumber": 24}]
    export = {"resourceLogs": [{"scopeLogs": [{"scope": scope, "logRecords": records}]}]}
    body = json.dumps(export).encode()
    if not is_json:
        request = json_format.Parse(body, ExportLogsServiceRequest())
        first = request.resource_logs[0].scope_logs[0].log_records[0]
        first.trace_id, first.span_id = bytes.fromhex(ids["traceId"]), bytes.fromhex(ids["spanId"])
        body = request.SerializeToString()
    of_scope = {"scope_name": "lib", "scope_version": "2", "a_b": "c"}
    first_read, second_read = (json.loads(one) for one in read_export(body, is_json, source(Format.JSON)))
    said = {"trace_id": ids["traceId"], "span_id": ids["spanId"], "event_name": "e", "body": "boom"}
    assert first_read == of_scope | said | {"severity": "ERROR", "severity_number": 17}
    assert second_read == of_scope | {"severity": "FATAL", "severity_number": 24, "body": None}


def test_what_a_record_does_not_say_stays_as_its_body_has_it() -> None:
    values = [{"key": key, "value": {"stringValue": key.upper()}} for key in ("severity", "time", "trace_id")]
    body = {"kvlistValue": {"values": values}}
    silent, loud = read_export(export({"body": body}, record(body)), is_json=True, source=source(Format.JSON))
    own = {"severity": "SEVERITY", "time": "TIME", "trace_id": "TRACE_ID"}
    assert {name: json.loads(silent)[name] for name in own} == own
    assert (json.loads(loud)["severity"], json.loads(loud)["trace_id"]) == ("INFO", "TRACE_ID")


def test_names_that_differ_only_by_dots_stay_apart() -> None:
    names = ("service_name", "a.b", "trace.id", "c.d", "e.f")
    attributes = [{"key": name, "value": {"stringValue": name}} for name in names]
    values = [{"key": name, "value": {"intValue": "7"}} for name in ("a.b", "c_d")]
    sent = export(record({"kvlistValue": {"values": values}}, attributes=attributes, traceId="0" * 32))
    (found,) = read_export(sent, is_json=True, source=source(Format.JSON))
    apart = {"service.name": "the shop", "service_name": "service_name", "trace.id": "trace.id", "c.d": "c.d", "c_d": 7}
    assert json.loads(found).items() >= (apart | {"a_b": 7, "e_f": "e.f"}).items()


@pytest.mark.parametrize("is_json", [True, False])
def test_text_that_is_no_utf8_spoils_no_batch(is_json: bool) -> None:
    attributes = [{"key": "kXX", "value": {"bytesValue": "WFg="}}]  # XX
    body = export(
        record({"stringValue": "aXX"}, attributes=attributes, traceId="WFhY" * 5 + "WA=="), record({"intValue": "7"})
    )
    if not is_json:
        body = json_format.Parse(body, ExportLogsServiceRequest(), ignore_unknown_fields=True).SerializeToString()
    bad, good = read_export(body.replace(b"XX", b"\xff\xfe"), is_json, source(Format.JSON))
    said = {"body": "a\ufffd\ufffd", "k\ufffd\ufffd": "5858", "trace_id": "58" * 16}
    if not is_json:
        said |= {"k\ufffd\ufffd": "fffe", "trace_id": "fffe" * 8}
    assert json.loads(bad).items() >= said.items()
    assert json.loads(good)["body"] == 7


def test_half_a_character_spoils_no_batch() -> None:
    texts = ("\ud83d", "\U0001f600", r"\ud83d", "\ude00\ud83d\ud83d\ude00")
    found = read_export(export(*(record({"stringValue": text}) for text in texts)), True, source(Format.JSON))
    assert [json.loads(one)["body"] for one in found] == ["\ufffd", texts[1], texts[2], "\ufffd\ufffd\U0001f600"]


@pytest.mark.parametrize(
    ("body", "is_json"),
    [(b"{", True), (b"\xff", True), (b'{"resourceLogs": 1}', True), (b"\xff", False)],
)
def test_what_is_no_otlp_is_refused(body: bytes, is_json: bool) -> None:
    with pytest.raises(BadRequest):
        list(read_export(body, is_json, source(Format.JSON)))
