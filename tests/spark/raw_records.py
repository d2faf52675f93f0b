"""Raw records of every kind, and what must come out of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tocsin.declare.model.names import Names
from tocsin.declare.model.source import Format, Source
from tocsin.declare.source_file import read_source
from tocsin.ingest.spark.envelope import add_event, route
from tocsin.ingest.spark.parse import parsed

ROOT = Path(__file__).parents[2]
LOGINS = read_source(ROOT / "sources/logins.toml")
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " headers array<struct<key:string,value:binary>>"
)
REST = " | ip_address: 10.0.0.1 | action: login failed"
GOOD = f"user_id: mallory | timestamp: 2026-01-01T11:59:59.5Z{REST}"
EVENT = {"user_id": "mallory", "timestamp": "2026-01-01T11:59:59.500000Z", "ip_address": "10.0.0.1"} | {
    "action": "login failed"
}


@dataclass(frozen=True)
class Raw:
    """A raw record."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None


@dataclass(frozen=True)
class Out:
    """A record that was written."""

    topic: str
    key: str
    value: dict[str, Any]

    @property
    def reasons(self) -> list[str]:
        return list(self.value.get("reasons", []))

    @property
    def columns(self) -> dict[str, Any]:
        """The declared columns of an event."""
        envelope = ("raw_topic", "raw_partition", "raw_offset", "event_time", "ingested_at", "source", "schema_version")
        return {key: value for key, value in self.value.items() if key not in envelope}


Read = Callable[..., list[Out]]


def reading(spark: SparkSession) -> Read:
    """Reads records of `raw.<source>`, in partition 0 from offset 0 on, all appended at NOW."""

    def run(source: Source, *records: Raw | bytes | str | None) -> list[Out]:
        raws = [one if isinstance(one, Raw) else Raw(one.encode() if isinstance(one, str) else one) for one in records]
        topic = f"raw.{source.name}"
        rows = [(raw.key, raw.value, topic, 0, offset, NOW, raw.headers) for offset, raw in enumerate(raws)]
        frame = spark.createDataFrame(rows, SCHEMA).repartition(1)
        written = route(add_event(parsed(frame, source), source), source, Names()).collect()
        outs = [Out(row.topic, row.key, json.loads(row.value)) for row in written]
        return sorted(outs, key=lambda out: out.value.get("raw_offset", out.value.get("origin", {}).get("offset")))

    return run


def source(**fields: Any) -> Source:
    """Visits with one column of each type; all but the first two optional."""
    columns = {"visitor": "string", "at": "timestamp", "n": "int", "big": "bigint", "x": "double", "ok": "boolean"}
    columns |= {"seen": "timestamp"}
    known: dict[str, Any] = {"name": "visits", "title": "t", "owner": "a@b", "formats": (Format.JSON,)}
    known |= {"key": "visitor", "event_time": "at", "columns": columns, "optional": frozenset(list(columns)[2:])}
    return Source(**(known | fields))


def as_json(**fields: Any) -> str:
    return json.dumps({"visitor": "v", "at": "2026-01-01T11:59:59Z"} | fields)


BAD: dict[str, tuple[bytes | str | None, list[str]]] = {
    "null": (None, ["no_value"]),
    "nothing": ("", ["empty"]),
    "whitespace": (" \t\r\n", ["empty"]),
    "byte order mark": ("\ufeff", ["empty"]),
    "latin-1": (b"user_id: caf\xe9 | timestamp: x", ["not_utf8"]),
    "utf-16": (GOOD.encode("utf-16"), ["not_utf8"]),
    "surrogate": (b"user_id: \xed\xa0\x80", ["not_utf8"]),
    "prose": ("Traceback (most recent call last):", ["not_key_value"]),
    "truncated json": ('{"user_id": "a", "timest', ["not_json"]),
    "json array": ('[{"user_id": "a"}]', ["not_key_value"]),
    "two objects": ('{"user_id": "a"}{"user_id": "b"}', ["not_json"]),
    "two objects with a comma": ('{"user_id": "a"},{"user_id": "b"}', ["not_json"]),
    "text behind the object": ('{"user_id": "a"} and more', ["not_json"]),
    "single quotes": ("{'user_id': 'a'}", ["not_json"]),
    "no number": ('{"user_id": NaN}', ["not_json"]),
    "deep nesting": ('{"a":' * 5_000 + "1" + "}" * 5_000, ["not_json"]),
    "empty object": ("{}", ["missing:user_id", "missing:timestamp", "missing:ip_address", "missing:action"]),
    "null user": (
        '{"user_id": null, "timestamp": "2026-01-01T11:59:59Z", "ip_address": "x", "action": "y"}',
        ["missing:user_id"],
    ),
    "blank user in json": (
        '{"user_id": " \\t", "timestamp": "2026-01-01T11:59:59Z", "ip_address": "x", "action": "y"}',
        ["missing:user_id"],
    ),
    "empty user": (f"user_id:  | timestamp: 2026-01-01T11:59:59Z{REST}", ["missing:user_id"]),
    "user without a blank": (f"user_id: | timestamp: 2026-01-01T11:59:59Z{REST}", ["missing:user_id"]),
    "missing fields": ("user_id: a | action: b", ["missing:timestamp", "missing:ip_address"]),
    "several at once": (f"user_id: | timestamp: noon{REST}", ["missing:user_id", "wrong_type:timestamp"]),
    "no time": (f"user_id: a | timestamp: {REST}", ["missing:timestamp"]),
    "a date alone": (f"user_id: a | timestamp: 2026-01-01{REST}", ["wrong_type:timestamp"]),
    "a time alone": (f"user_id: a | timestamp: 11:59:59{REST}", ["wrong_type:timestamp"]),
    "no such day": (f"user_id: a | timestamp: 2026-02-30T11:59:59Z{REST}", ["wrong_type:timestamp"]),
    "year 9999": (f"user_id: a | timestamp: 9999-12-31T23:59:59Z{REST}", ["time_ahead"]),
    "1970": (f"user_id: a | timestamp: 1970-01-01T00:00:00Z{REST}", ["time_too_old"]),
    "year 0": (f"user_id: a | timestamp: 0000-01-01T00:00:00Z{REST}", ["time_too_old"]),
    "just too far ahead": (f"user_id: a | timestamp: 2026-01-01T12:00:05.001Z{REST}", ["time_ahead"]),
    "too long": (GOOD + "x" * 262_144, ["too_long"]),
    "a megabyte": (b"x" * 1_048_576, ["too_long"]),
}
GOOD_ONES: dict[str, tuple[bytes | str, dict[str, Any]]] = {
    "a line": (GOOD, {}),
    "crlf": (GOOD + "\r\n", {}),
    "byte order mark": ("\ufeff" + GOOD, {}),
    "wide gaps": (GOOD.replace(": mallory", ":   mallory  "), {}),
    "another order": (f"action: login failed | ip_address: 10.0.0.1 | {GOOD.partition(' | ip')[0]}", {}),
    "json": (json.dumps(EVENT), {}),
    "json with a gap": ("  " + json.dumps(EVENT) + " \n", {}),
    "with a message": (f"{GOOD} | message: hi", {"message": "hi"}),
    "a separator in a value": (f"{GOOD} | message: a | b || c", {"message": "a | b || c"}),
    "an empty optional field": (f"{GOOD} | message: ", {}),
    "an empty optional field, trimmed": (f"{GOOD} | message:", {}),
    "an address in a value": (f"{GOOD} | message: see http://x", {"message": "see http://x"}),
    "a forged user": (f"{GOOD} | message: hi | user_id: victim | action: login succeeded", {"message": "hi"}),
    "a forged user in json": (json.dumps(EVENT)[:-1] + ', "user_id": "victim"}', {}),
    "unknown fields": (f"{GOOD} | level: 7 | message: hi", {"message": "hi"}),
    "unknown fields in json": (json.dumps(EVENT | {"level": {"a": [1]}}), {}),
    "not ascii": (GOOD.replace("mallory", "mällory \u2028 \U0001f600"), {"user_id": "mällory \u2028 \U0001f600"}),
    "html and header injection": (
        json.dumps(EVENT | {"user_id": "<b>x</b>\r\nBcc: y"}),
        {"user_id": "<b>x</b>\r\nBcc: y"},
    ),
    "nested json in a text column": (json.dumps(EVENT | {"message": {"a": [1, None]}}), {"message": '{"a":[1,null]}'}),
    "a number in a text column": (json.dumps(EVENT | {"user_id": 42}), {"user_id": "42"}),
    "as far ahead as allowed": (GOOD.replace("11:59:59.5", "12:00:05"), {"timestamp": "2026-01-01T12:00:05.000000Z"}),
    "long, but not too long": (GOOD + " | message: " + "x y|" * 65_000, {"message": "x y|" * 65_000}),
}
TYPED: dict[str, tuple[dict[str, Any], dict[str, Any] | str]] = {
    "numbers": ({"n": 7, "big": 2**40, "x": 1.5, "ok": True}, {"n": 7, "big": 2**40, "x": 1.5, "ok": True}),
    "numbers as text": ({"n": " 7", "x": "1e3", "ok": "false"}, {"n": 7, "x": 1000.0, "ok": False}),
    "nulls": ({"n": None, "x": None, "seen": None}, {}),
    "a fraction is no int": ({"n": 7.5}, "n"),
    "too big for an int": ({"n": 2**31}, "n"),
    "too big for a bigint": ({"big": 2**63}, "big"),
    "text is no int": ({"n": "seven"}, "n"),
    "empty is no int": ({"n": ""}, "n"),
    "an object is no int": ({"n": {"a": 1}}, "n"),
    "infinity": ({"x": "Infinity"}, "x"),
    "not a number": ({"x": "NaN"}, "x"),
    "beyond a double": ({"x": "1e999"}, "x"),
    "maybe": ({"ok": "maybe"}, "ok"),
    "a second time": ({"seen": "2026-01-01T01:00:00+01:00"}, {"seen": "2026-01-01T00:00:00.000000Z"}),
    "no second time": ({"seen": "later"}, "seen"),
}
TIMES: list[tuple[str, str, Any, str | None]] = [
    ("iso8601", "timestamp", "2026-01-01T11:59:59Z", "2026-01-01T11:59:59.000000Z"),
    ("iso8601", "timestamp", "2026-01-01 11:59:59", "2026-01-01T11:59:59.000000Z"),
    ("iso8601", "timestamp", "2026-01-01T13:59:59.123456789+02:00", "2026-01-01T11:59:59.123456Z"),
    ("iso8601", "timestamp", "2026-01-01T09:29:59-0230", "2026-01-01T11:59:59.000000Z"),
    ("iso8601", "timestamp", "2026-01-01 12:59:59+01", "2026-01-01T11:59:59.000000Z"),
    ("iso8601", "timestamp", "1767268799", None),
    ("iso8601", "string", "2026-01-01T11:59:59Z", "2026-01-01T11:59:59.000000Z"),
    ("iso8601", "string", "noon", None),
    ("epoch-seconds", "timestamp", 1767268799, "2026-01-01T11:59:59.000000Z"),
    ("epoch-seconds", "double", 1767268799.25, "2026-01-01T11:59:59.250000Z"),
    ("epoch-seconds", "double", 1767268799.9999998, "2026-01-01T11:59:59.999999Z"),
    ("epoch-seconds", "bigint", "1767268799", "2026-01-01T11:59:59.000000Z"),
    ("epoch-seconds", "timestamp", "9" * 30, None),
    ("epoch-milliseconds", "bigint", 1767268799001, "2026-01-01T11:59:59.001000Z"),
    ("epoch-milliseconds", "bigint", "x", None),
    ("dd/MMM/yyyy:HH:mm:ss Z", "timestamp", "01/Jan/2026:11:59:59 +0000", "2026-01-01T11:59:59.000000Z"),
    ("dd/MMM/yyyy:HH:mm:ss Z", "timestamp", "2026-01-01T11:59:59Z", None),
    ("yyyy-MM-dd HH:mm:ss", "timestamp", "2026-01-01 11:59:59", "2026-01-01T11:59:59.000000Z"),
    ("yyyy-MM-dd HH:mm:ss", "timestamp", "2026-13-01 11:59:59", None),
    ("epoch-microseconds", "bigint", 1767268799000001, "2026-01-01T11:59:59.000001Z"),
    ("epoch-nanoseconds", "string", "1767268799000001999", "2026-01-01T11:59:59.000001Z"),
    ("EEE MMM [ ]d HH:mm:ss yyyy", "string", "Thu Jan  1 11:59:59 2026", "2026-01-01T11:59:59.000000Z"),
    ("EEE MMM [ ]d HH:mm:ss yyyy", "string", "Thu Jan 01 11:59:59 2026", "2026-01-01T11:59:59.000000Z"),
    ("EEE, d MMM yyyy HH:mm:ss Z", "string", "Thu, 1 Jan 2026 13:29:59 +0130", "2026-01-01T11:59:59.000000Z"),
    ("yyyyMMdd-H:m:s:SSS", "string", "20260101-11:59:59:7", "2026-01-01T11:59:59.007000Z"),
    ("yyyyMMdd-H:m:s:SSS", "string", "20260101-11:59:9:12", "2026-01-01T11:59:09.012000Z"),
    ("yyyyMMdd-H:m:s:SSS", "string", "20260101-11:59:9:123", "2026-01-01T11:59:09.123000Z"),
    ("yyyy-MM-dd HH:mm:ss[,SSSSSS] XXX", "string", "2026-01-01 06:59:59,5 -05:00", "2026-01-01T11:59:59.500000Z"),
    ("yyyy-MM-dd HH:mm:ss X", "string", "2026-01-01 12:59:59 +01", "2026-01-01T11:59:59.000000Z"),
    ("M/d/yy h:mm:ss a", "string", "1/1/26 11:59:59 am", "2026-01-01T11:59:59.000000Z"),
    ("yyyy-MM-dd HH:mm:ss z", "string", "2026-01-01 06:59:59 EST", "2026-01-01T11:59:59.000000Z"),
    ("yyyy-MM-dd HH:mm:ss z", "string", "2026-01-01 07:59:59 EDT", "2026-01-01T11:59:59.000000Z"),
    ("yyyy-MM-dd HH:mm:ss z", "string", "2026-01-01 11:59:59 BST", None),
    ("yyyy-MM-dd HH:mm:ss z", "string", "2026-01-01 11:59:59 +00:00", None),
]
