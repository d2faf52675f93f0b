"""JSON as it comes: fields by a path and with any name, and values as they are written."""

import json
from typing import Any

import pytest

from tests.spark.raw_records import Read, source
from tocsin.declare.model.source import Format

AT = '"@timestamp":"2026-01-01T11:59:59Z"'
PATHS = {
    "at": "@timestamp",
    "client": "id.orig_h",
    "kind": "detail-type",
    "emitter": "source",
    "name": "detail.user.name",
    "port": "detail.port",
    "pod": "host.os.kernel",
    "line": "$",
    "obj": "Obj",
}
COLUMNS = {name: "string" for name in PATHS} | {"at": "timestamp", "port": "int", "x": "double"}
OPTIONAL = frozenset(COLUMNS.keys() - {"at", "client"})
PATHED: dict[str, Any] = {"key": "client", "columns": COLUMNS, "optional": OPTIONAL, "paths": PATHS}


def line(fields: str) -> str:
    return "{" + AT + ',"id.orig_h":"c",' + fields + "}"


@pytest.mark.parametrize("more", [{}, {"formats": (Format.LOGFMT, Format.JSON)}])
def test_fields_by_a_path(read: Read, more: dict[str, Any]) -> None:
    cases: dict[str, dict[str, Any]] = {
        line('"detail-type":"t","source":"aws"'): {"kind": "t", "emitter": "aws"},
        line('"detail":{"user":{"name":"ann"},"port":22}'): {"name": "ann", "port": 22},
        line('"detail":{"user.name":"ann"},"detail.port":23'): {"name": "ann", "port": 23},
        line('"detail.user":{"name":"ann"}'): {"name": "ann"},
        line('"detail.user.name":"top","detail":{"user":{"name":"ann"}}'): {"name": "top"},
        line('"detail":{"user":"none","port":null}'): {},
        line('"detail":"{\\"port\\": 24}"'): {"port": 24},
        line('"host.os":{"kernel":1.50},"host":{"os":7}'): {"pod": "1.50"},
        line('"DETAIL":{"User":{"NAME":"ann"}},"Detail-Type":"T"'): {"name": "ann", "kind": "T"},
        line('"Source":"other","source":"aws"'): {"emitter": "aws"},
        line('"x":1e2'): {"x": 100.0},
    }
    found = read(source(**PATHED | more), *cases, '{"ID":{"ORIG_H":"c"},"@TIMESTAMP":"2026-01-01T11:59:59Z"}')
    base = {"client": "c", "at": "2026-01-01T11:59:59.000000Z"}
    assert [out.reasons for out in found] == [[]] * len(found)
    *outs, last = [out.columns for out in found]
    assert outs == [base | fields | {"line": written} for written, fields in cases.items()]
    assert {name: last[name] for name in base} == base
    assert [out.key for out in found] == ["c"] * len(found)


def test_case_tells_names_apart_if_asked(read: Read) -> None:
    (out,) = read(source(**PATHED, match_case=True), line('"Source":"other","detail":{"Port":1}'))
    assert out.columns.keys() == {"at", "client", "line"}


WRITTEN = [
    ("12345678.9", "12345678.9"),
    ("1.10", "1.10"),
    ("1e400", "1e400"),
    ("-0", "-0"),
    ("0.12345678901234567890", "0.12345678901234567890"),
    ("9" * 1200, "9" * 1200),
    ("true", "true"),
    ("null", None),
    ('"1.10"', "1.10"),
    ('"a 1.5, 2 \\" 3"', 'a 1.5, 2 " 3'),
    ('"\\ud800?\\uDFFF\\ud83d\\ude00\\\\ud800"', "\ufffd?\ufffd\U0001f600\\ud800"),
    ('{"n": 1.50, "e":1e3,"s" : [1,  2.0, "7.0"]}', '{"n":1.50,"e":1e3,"s":[1,2.0,"7.0"]}'),
    ('{"a":"\U0001f600 \\ud83d\\ude00 \\u00e4"}', '{"a":"\U0001f600 \U0001f600 ä"}'),
    ('{"a\\"":"\U0001f600\\n\\\\"}', '{"a\\"":"\U0001f600\\n\\\\"}'),
    ('["\U0001f600", -1.0e-7]', '["\U0001f600",-1.0e-7]'),
    ('"{\\"a\\":\\"\\\\uD83D\\\\uDE00\\"}"', '{"a":"\\uD83D\\uDE00"}'),
]


@pytest.mark.parametrize("path", ["Obj", "in.Obj"])
def test_values_are_text_as_they_are_written(read: Read, path: str) -> None:
    before, after = ('"in":{', "}") if "." in path else ("", "")
    lines = [line(f'{before}"Obj":{written}{after}') for written, _ in WRITTEN]
    found = read(source(**PATHED | {"paths": PATHS | {"obj": path}}), *lines)
    assert [out.columns.get("obj") for out in found] == [text for _, text in WRITTEN]
    assert all(json.loads(out.columns["line"]) for out in found)


BROKEN = ['"a":01', '"a":1.', '"a":-', '"a":+1', '"a":1 2', '"a":.5', "1:2", "1", '"a":1e', '"a":"x"1', '"a":tru1', '"']
NO_NUMBERS = ["7d", "30F", "0x1p3", "1D", "."]


def test_what_is_no_json_stays_none_and_what_only_java_takes_for_a_number(read: Read) -> None:
    found = read(source(**PATHED), *map(line, BROKEN), *[line(f'"x":"{text}"') for text in NO_NUMBERS])
    reasons = [["not_json"]] * len(BROKEN) + [["wrong_type:x"]] * len(NO_NUMBERS)
    assert [out.reasons for out in found] == reasons


def test_long_records_overflow_nothing(read: Read) -> None:
    longs = ["[" + "1," * 400_000 + "1]", "[" + '"a\\"",' * 120_000 + "1]", '"' + "1" * 900_000 + '"', "1" * 900_000]
    found = read(source(**PATHED, max_bytes=1_048_576), *[line(f'"y":{text}') for text in longs])
    assert [out.columns["client"] for out in found] == ["c"] * len(longs)
