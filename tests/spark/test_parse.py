"""Raw records to events or quarantine: every kind of bad input, and that none of them kills the query."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tocsin.dev.generator import Traffic
from tocsin.ingest.parsing_rules import Reason, reason_class, rule_parts, rules_version
from tocsin.ingest.spark.envelope import OBSERVATION, observed, routed, sized
from tocsin.ingest.spark.parse import parsed
from tocsin.model.names import Names
from tocsin.model.sizes import KEPT_BYTES
from tocsin.model.source import Format, Source
from tocsin.project.source_file import read_source

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


@pytest.fixture
def read(spark: SparkSession) -> Read:
    return reading(spark)


def reading(spark: SparkSession) -> Read:
    """Reads records of `raw.<source>`, in partition 0 from offset 0 on, all appended at NOW."""

    def run(source: Source, *records: Raw | bytes | str | None) -> list[Out]:
        raws = [one if isinstance(one, Raw) else Raw(one.encode() if isinstance(one, str) else one) for one in records]
        topic = f"raw.{source.name}"
        rows = [(raw.key, raw.value, topic, 0, offset, NOW, raw.headers) for offset, raw in enumerate(raws)]
        frame = spark.createDataFrame(rows, SCHEMA).repartition(1)
        written = routed(sized(parsed(frame, source), source), source, Names()).collect()
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


def test_bad_records_go_to_quarantine_with_all_reasons(read: Read) -> None:
    found = read(LOGINS, *[value for value, _ in BAD.values()])
    assert {case: out.reasons for case, out in zip(BAD, found, strict=True)} == {
        case: reasons for case, (_, reasons) in BAD.items()
    }
    assert {out.topic for out in found} == {"quarantine.logins"}


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


def test_good_records_become_events(read: Read) -> None:
    found = read(LOGINS, *[value for value, _ in GOOD_ONES.values()])
    assert {case: out.reasons for case, out in zip(GOOD_ONES, found, strict=True)} == {case: [] for case in GOOD_ONES}
    assert {case: out.columns for case, out in zip(GOOD_ONES, found, strict=True)} == {
        case: EVENT | columns for case, (_, columns) in GOOD_ONES.items()
    }
    assert [out.key for out in found] == [(EVENT | columns)["user_id"] for _, columns in GOOD_ONES.values()]


def test_the_envelope(read: Read) -> None:
    (_, out) = read(LOGINS, "", GOOD)
    assert (out.topic, out.key) == ("events.logins", "mallory")
    assert out.value == EVENT | {
        "raw_topic": "raw.logins",
        "raw_partition": 0,
        "raw_offset": 1,
        "event_time": "2026-01-01T11:59:59.500000Z",
        "ingested_at": "2026-01-01T12:00:00.000000Z",
        "source": "logins",
        "schema_version": 1,
    }


def test_the_quarantine_record_keeps_what_is_needed(read: Read) -> None:
    value = b"user_id: \xff" + b"x" * KEPT_BYTES
    (out,) = read(LOGINS, Raw(value, key=b"k\xfe", headers=[("trace", b"\x00\x01")]))
    assert out.key == "raw.logins/0/0"
    assert base64.b64decode(out.value.pop("payload"), validate=True) == value[:KEPT_BYTES]
    assert out.value == {
        "payload_length": len(value),
        "payload_sha256": hashlib.sha256(value).hexdigest(),
        "reasons": ["too_long"],
        "origin": {"topic": "raw.logins", "partition": 0, "offset": 0, "timestamp": "2026-01-01T12:00:00.000000Z"},
        "source": "logins",
        "schema_version": 1,
        "rules_version": rules_version(rule_parts(LOGINS)),
        "rules": rule_parts(LOGINS),
        "replays": 0,
        "raw_key": base64.b64encode(b"k\xfe").decode(),
        "raw_key_length": 2,
        "raw_key_sha256": hashlib.sha256(b"k\xfe").hexdigest(),
        "headers": [{"key": "trace", "value": "AAE="}],
        "headers_count": 1,
        "headers_length": len('[{"key":"trace","value":"AAE="}]'),
        "headers_sha256": hashlib.sha256(b'[{"key":"trace","value":"AAE="}]').hexdigest(),
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


def test_types(read: Read) -> None:
    found = read(source(), *[as_json(**fields) for fields, _ in TYPED.values()])
    base = {"visitor": "v", "at": "2026-01-01T11:59:59.000000Z"}
    assert {case: out.reasons or out.columns for case, out in zip(TYPED, found, strict=True)} == {
        case: [f"wrong_type:{result}"] if isinstance(result, str) else base | result
        for case, (_, result) in TYPED.items()
    }


TIMES: list[tuple[str, str, Any, str | None]] = [
    ("iso8601", "timestamp", "2026-01-01T11:59:59Z", "2026-01-01T11:59:59.000000Z"),
    ("iso8601", "timestamp", "2026-01-01 11:59:59", "2026-01-01T11:59:59.000000Z"),
    ("iso8601", "timestamp", "2026-01-01T13:59:59.123456789+02:00", "2026-01-01T11:59:59.123456Z"),
    ("iso8601", "timestamp", "2026-01-01T09:29:59-0230", "2026-01-01T11:59:59.000000Z"),
    ("iso8601", "timestamp", "1767268799", None),
    ("iso8601", "string", "2026-01-01T11:59:59Z", "2026-01-01T11:59:59.000000Z"),
    ("iso8601", "string", "noon", None),
    ("epoch-seconds", "timestamp", 1767268799, "2026-01-01T11:59:59.000000Z"),
    ("epoch-seconds", "double", 1767268799.25, "2026-01-01T11:59:59.250000Z"),
    ("epoch-seconds", "bigint", "1767268799", "2026-01-01T11:59:59.000000Z"),
    ("epoch-seconds", "timestamp", "9" * 30, None),
    ("epoch-milliseconds", "bigint", 1767268799001, "2026-01-01T11:59:59.001000Z"),
    ("epoch-milliseconds", "bigint", "x", None),
    ("dd/MMM/yyyy:HH:mm:ss Z", "timestamp", "01/Jan/2026:11:59:59 +0000", "2026-01-01T11:59:59.000000Z"),
    ("dd/MMM/yyyy:HH:mm:ss Z", "timestamp", "2026-01-01T11:59:59Z", None),
    ("yyyy-MM-dd HH:mm:ss", "timestamp", "2026-01-01 11:59:59", "2026-01-01T11:59:59.000000Z"),
    ("yyyy-MM-dd HH:mm:ss", "timestamp", "2026-13-01 11:59:59", None),
]


@pytest.mark.parametrize("form", sorted({form for form, *_ in TIMES}))
def test_event_times(read: Read, form: str) -> None:
    for kind in ("timestamp", "string", "bigint", "double"):
        cases = [(value, expected) for f, k, value, expected in TIMES if (f, k) == (form, kind)]
        if not cases:
            continue
        columns = {"visitor": "string", "at": kind}
        visits = source(columns=columns, optional=frozenset(), event_time_format=form)
        found = read(visits, *[json.dumps({"visitor": "v", "at": value}) for value, _ in cases])
        assert [out.value.get("event_time") for out in found] == [expected for _, expected in cases]
        assert [out.reasons for out in found] == [[] if expected else ["wrong_type:at"] for _, expected in cases]


def test_an_epoch_beyond_all_calendars_kills_nothing(read: Read) -> None:
    visits = source(event_time_format="epoch-seconds")
    numbers = [10**12, -(10**12), 2**62, 253402300800, -62135596801, 10**40]
    *bad, good = read(visits, *[as_json(at=number) for number in numbers], as_json(at=1767268799))
    assert {out.topic for out in bad} == {"quarantine.visits"}
    assert [reason_class(reason) for out in bad for reason in out.reasons] == [
        "time_ahead",
        "time_too_old",
        "wrong_type",
        "time_ahead",
        "time_too_old",
        "wrong_type",
    ]
    assert good.topic == "events.visits"


def test_regular_expressions(read: Read) -> None:
    pattern = r"(?<visitor>\S+) \[(?<at>[^\]]+)\](?: n=(?<n>-?\w*))?"
    columns = {"visitor": "string", "at": "timestamp", "n": "int", "note": "string"}
    visits = source(formats=(Format.REGEX,), pattern=pattern, columns=columns, optional=frozenset({"n", "note"}))
    at = "[2026-01-01T11:59:59Z]"
    found = read(visits, f"v {at} n=5", f"v {at}", f"v {at} n=", f"v {at} n=five", f"v {at} trailing", "nothing", " ")
    assert [out.reasons or out.columns.get("n") for out in found] == [
        5,
        None,
        None,
        ["wrong_type:n"],
        ["no_match"],
        ["no_match"],
        ["empty"],
    ]
    assert found[0].columns == {"visitor": "v", "at": "2026-01-01T11:59:59.000000Z", "n": 5}


def test_regular_expressions_beside_json(read: Read) -> None:
    columns = {"visitor": "string", "at": "timestamp"}
    visits = source(
        formats=(Format.REGEX, Format.JSON),
        pattern="(?<visitor>[a-z]+) (?<at>.+)",
        columns=columns,
        optional=frozenset(),
    )
    found = read(visits, "v 2026-01-01T11:59:59Z", as_json(), "{", "V")
    assert [out.reasons or out.key for out in found] == ["v", "v", ["not_json"], ["no_match"]]


@pytest.mark.parametrize(("pair", "colon"), [(" ", "="), ("\t", ": "), (";", "="), (" || ", " => "), ("; ", ":")])
def test_other_separators(read: Read, pair: str, colon: str) -> None:
    fields = {"visitor": "v", "at": "2026-01-01T11:59:59Z", "n": "5"}
    visits = source(formats=(Format.KEY_VALUE,), pair_separator=pair, key_separator=colon)
    (out,) = read(visits, pair.join(f"{key}{colon}{value}" for key, value in fields.items()))
    assert out.columns == {"visitor": "v", "at": "2026-01-01T11:59:59.000000Z", "n": 5}


def replayed(value: str, **headers: str) -> Raw:
    return Raw(
        value.encode(), headers=[(f"tocsin-{key.replace('_', '-')}", text.encode()) for key, text in headers.items()]
    )


def test_a_replay_keeps_identity_and_append_time(read: Read) -> None:
    headers = {"origin": "raw.logins/0/1", "ingested_at": "2025-12-31T11:00:00.250000Z", "replays": "2"}
    old = GOOD.replace("2026-01-01T11:59:59.5Z", "2025-12-31T10:59:59Z")
    *_, event, bad = read(LOGINS, GOOD, "bad", replayed(old, **headers), replayed("still bad", **headers))
    place = (event.value["raw_partition"], event.value["raw_offset"], event.value["ingested_at"])
    assert place == (0, 1, "2025-12-31T11:00:00.250000Z")
    assert bad.value["origin"] == {
        "topic": "raw.logins",
        "partition": 0,
        "offset": 1,
        "timestamp": "2025-12-31T11:00:00.250000Z",
    }
    assert (bad.key, bad.value["replays"], bad.reasons) == ("raw.logins/0/1", 2, ["not_key_value"])


def test_a_replay_is_judged_by_the_clock_of_its_original(read: Read) -> None:
    headers = {"origin": "raw.logins/0/0", "ingested_at": "2025-12-31T11:00:00Z", "replays": "1"}
    _, out = read(LOGINS, "bad", replayed(GOOD, **headers))
    assert out.reasons == ["time_ahead"]


FORGED: list[dict[str, str | None]] = [
    {"origin": "raw.other/0/0"},
    {"origin": "raw.logins/0"},
    {"origin": "raw.logins/x/0"},
    {"origin": "raw.logins/0/99999999999999999999"},
    {"origin": "raw.logins/3/0"},
    {"origin": "raw.logins/0/7"},
    {"origin": "raw.logins/0/77"},
    {"origin": ""},
    {"ingested_at": "yesterday"},
    {"ingested_at": "2026-01-01T12:00:01Z"},
    {"replays": "0"},
    {"replays": "many"},
    {"replays": None},
    {"ingested_at": None},
    {"origin": None},
]


def test_forged_replay_headers_are_told_and_not_believed(read: Read) -> None:
    known = {"origin": "raw.logins/0/0", "ingested_at": "2025-12-31T11:00:00Z", "replays": "1"}
    written = [{key: text for key, text in (known | change).items() if text is not None} for change in FORGED]
    _, *found = read(LOGINS, "bad", *[replayed(GOOD, **headers) for headers in written])
    assert [out.reasons for out in found] == [["bad_replay_header"]] * len(FORGED)
    assert [out.key for out in found] == [f"raw.logins/0/{offset}" for offset in range(1, len(FORGED) + 1)]


def test_other_headers_are_no_concern(read: Read) -> None:
    (out,) = read(LOGINS, Raw(GOOD.encode(), headers=[("trace", b"\xff"), ("trace", b"2")]))
    assert (out.topic, out.value["raw_offset"]) == ("events.logins", 0)


def test_the_generator_agrees_line_by_line(read: Read) -> None:
    lines = list(Traffic(start=NOW - timedelta(seconds=60), seconds=60, bad_share=0.1).lines())
    found = read(LOGINS, *[line.value for line in lines])
    assert [out.columns.get("user_id") if not out.reasons else None for out in found] == [line.user for line in lines]
    classes = [{reason_class(reason) for reason in out.reasons} for out in found]
    assert all((line.reason in told) if line.reason else not told for line, told in zip(lines, classes, strict=True))


def test_what_is_counted(spark: SparkSession) -> None:
    values = [GOOD, GOOD + " | x: 1 | user_id: v", "{}", b"\xff", "", "junk", None, '{"user_id":1,"a":1,"b":2}']
    rows = [
        (None, v.encode() if isinstance(v, str) else v, "raw.logins", 0, n, NOW, None) for n, v in enumerate(values)
    ]
    counted = observed(parsed(spark.createDataFrame(rows, SCHEMA), LOGINS))
    figures = dict.fromkeys(Reason, 0) | {"records": 8, "quarantined": 6, "missing": 2, "not_utf8": 1, "empty": 1}
    figures |= {"not_key_value": 1, "no_value": 1, "unknown_fields": 3, "repeated_fields": 1, "replayed": 0}
    assert OBSERVATION == "ingest"
    assert _figures(spark, counted) == {str(name): count for name, count in figures.items()} | {
        "latest_event_time": datetime(2026, 1, 1, 11, 59, 59, 500_000)
    }


def _figures(spark: SparkSession, counted: Any) -> dict[str, Any]:
    """The figures of the last run of a frame that has an `observe()`."""
    execution = counted._jdf.queryExecution()
    execution.executedPlan().executeCollect()
    row = execution.observedMetrics().apply(OBSERVATION)
    names = list(row.schema().fieldNames())
    out: dict[str, Any] = {}
    for number, name in enumerate(names):
        value = row.get(number)
        out[name] = datetime.fromisoformat(str(value)) if name == "latest_event_time" else value
    return out
