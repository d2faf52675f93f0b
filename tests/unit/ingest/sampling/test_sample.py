"""Guessing a source from a sample: forms, types, key, event time, and what cannot be guessed."""

import json
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.scaffold import source_text
from tocsin.declare.source_file import read_source
from tocsin.ingest.replay.shifted_lines import LineTimes
from tocsin.ingest.sampling.sample import read_schema

LOGIN = "user_id: {u} | timestamp: 2026-01-31T14:05:0{n}Z | ip_address: 192.0.2.{n} | action: login failed"
ROUTER = (
    "<158>1 2026-01-31T14:05:0{n}.123456+00:00 host heroku router - at=info method=GET "
    'path="/{u}?a=1" connect=1ms service=18ms status=200 bytes=1548{more}'
)


def sampled(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "sample"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return path


def test_lines_of_pairs(tmp_path: Path) -> None:
    schema = read_schema(sampled(tmp_path, *(LOGIN.format(u="ab"[n % 2], n=n) for n in range(6)), ""))
    assert (schema.format, schema.lines, schema.key, schema.event_time) == ("key-value", 6, "user_id", "timestamp")
    assert schema.columns == {"user_id": "string", "timestamp": "timestamp", "ip_address": "string", "action": "string"}


def test_lines_of_a_router_with_a_field_that_some_lack(tmp_path: Path) -> None:
    lines = [ROUTER.format(u="xy"[n % 2], n=n, more=" desc=late" if n == 2 else "") for n in range(4)]
    schema = read_schema(sampled(tmp_path, *lines))
    assert (schema.format, schema.key, schema.event_time) == ("logfmt", "path", "syslog_time")
    kinds = {name: schema.columns[name] for name in ("path", "connect", "status", "bytes")}
    assert kinds == {"path": "string", "connect": "double", "status": "int", "bytes": "int"}
    assert schema.optional == {"desc": "string"}


def test_json_with_numbers_as_times_and_a_file_that_goes_on(tmp_path: Path) -> None:
    values = [
        {"ts": 1769868309123 + n, "shop": n % 3, "price": n + 0.5, "ok": True, "n": 2**40, "x": "x" if n == 3 else n}
        for n in range(9)
    ]
    schema = read_schema(sampled(tmp_path, *map(json.dumps, values)))
    assert (schema.event_time, schema.event_time_format, schema.key) == ("ts", "epoch-milliseconds", "shop")
    kinds = {"ts": "bigint", "shop": "int", "price": "double", "ok": "boolean", "n": "bigint", "x": "string"}
    assert schema.columns == kinds
    path = sampled(tmp_path, *[json.dumps(values[0] | {"pad": "p" * 5000})] * 300)
    assert 150 < read_schema(path).lines < 201


def test_the_key_is_a_customer_rather_than_one_of_two_states_or_the_id_of_one_event(tmp_path: Path) -> None:
    events = [
        {"at": f"2026-01-31T14:05:{n:02}Z", "order_id": n, "state": "yn"[n % 2], "customer": "abc"[n % 3]}
        for n in range(12)
    ]
    assert read_schema(sampled(tmp_path, *map(json.dumps, events))).key == "customer"


ACCESS = '203.0.113.{n} - {u} [31/Jan/2026:14:05:0{n} +0000] "GET /{u}?a={n} HTTP/1.1" 200 {more} "-" "curl (x; {u})"'
SYSLOG = "Jan 31 14:05:0{n} web1 {u}[4{n}]: {more}"


@pytest.mark.parametrize(
    ("lines", "form", "columns"),
    [
        (
            [ACCESS.format(u="ab"[n % 2], n=n, more=n * 1000) for n in range(4)],
            "dd/MMM/yyyy:HH:mm:ss Z",
            "address string, word string, at string, method string, path string, status int, number int, "
            "quoted string, quoted_2 string",
        ),
        (
            [SYSLOG.format(u="sshd", n=n, more="x" * n + " of 1") for n in range(4)] + ["Jan  1 00:00:00 web1 cron: a"],
            "syslog",
            "at string, host string, program string, message string",
        ),
        (
            [f"2026-01-31T14:05:0{n}.1Z [INFO] (it's) user={u}, from 192.0.2.1" for n, u in enumerate("abab")],
            "iso8601",
            "at timestamp, level string, user string, address string",
        ),
        (
            ["2026-01-31 14:05:09,123 ERROR in cart", "2026-01-31 14:05:09,124 INFO paid by c1 c2"],
            "yyyy-MM-dd HH:mm:ss,SSS",
            "at string, level string, message string",
        ),
        (
            ["2026/01/31 14:05:09 host=a done", "2026/01/31 14:05:09 host=a done in time"],
            "yyyy/MM/dd HH:mm:ss",
            "at string, host string",
        ),
        (
            ["20260131-14:05:09:11|Steps|3|one 1", "20260131-14:5:0:7|Pulse|4|two 1 | 2", "20260131-14:5:1:7|Steps|3|"],
            "yyyyMMdd-H:m:s:SSS",
            "at string, word string, number int",
        ),
        (
            ["a;2026-01-31 14:05:09;x y", "b;2026-01-31 14:05:10;x", "a;2026-01-31 14:05:10;x"],
            "iso8601",
            "word string, at timestamp, message string",
        ),
        (
            [
                "- 1769868309 2026.01.31 n1 up",
                "FATAL 1769868310 2026.01.31 n2 is down",
                "- 1769868310 2026.01.31 n3 up",
            ],
            "epoch-seconds",
            "word string, at string, date string, message string",
        ),
        (
            [f"app.log.1.2026-01-30_13:53:08 2026-01-31 14:05:09.{n} 25 INFO m" for n in range(3)],
            "iso8601",
            "word string, at timestamp, number int, level string",
        ),
    ],
)
def test_plain_lines_are_read_by_a_pattern(tmp_path: Path, lines: list[str], form: str, columns: str) -> None:
    path = tmp_path / "guessed.toml"
    path.write_text(source_text("guessed", read_schema(sampled(tmp_path, *lines)), "a@example.com"))
    source = read_source(path)
    assert source.event_time_format == form
    required = {name: kind for name, kind in source.columns.items() if name not in source.optional}
    assert required == dict(column.split() for column in columns.split(", "))
    times = LineTimes(source)
    assert {times.find(line.encode()).moment.strftime("%H:%M") for line in lines} <= {"14:05", "00:00"}


@pytest.mark.parametrize("form", ["pairs", "router", "json"])
def test_what_was_guessed_is_a_source_that_can_be_read(tmp_path: Path, form: str) -> None:
    lines = {
        "pairs": [LOGIN.format(u="ab"[n % 2], n=n) for n in range(5)],
        "router": [ROUTER.format(u="ab"[n % 2], n=n, more=" desc=late" if n else "") for n in range(5)],
        "json": [json.dumps({"time": 1769868309 + n, "who": "ab"[n % 2], "no column": 1}) for n in range(5)],
    }[form]
    path = tmp_path / "guessed.toml"
    path.write_text(source_text("guessed", read_schema(sampled(tmp_path, *lines)), "a@example.com"))
    source = read_source(path)
    assert source.key in source.columns
    assert source.columns.keys() >= source.optional


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([""], "holds no line"),
        ([b"\xff\xfe\x00\x01"], "is UTF-16"),
        (["Jan 31 sshd: Failed password for root"] * 3, 'with format = "regex": no time that is known is in line 1'),
        (["Jan 31 14:05:09 a", "a 2026-01-31 14:05:09"], "do not hold a time of one form at one place"),
        (["2026-01-31 14:05:09 a b", "2026-01-31 14:05:09 c"], "could be the key; write the source by hand, from patt"),
        (['{"a": 1}', '{"a": 1}', "no JSON"], ":3: most lines are json, but not this one"),
        (['{"a": "x", "b": "y"}'], "has no column in all lines that is a time"),
        (['{"at": "2026-01-31T14:05:09Z"}'], "could be the key"),
        (["x" * 1_100_000], "begins with a line of over a megabyte"),
    ],
)
def test_what_cannot_be_guessed_is_told(tmp_path: Path, lines: list[str | bytes], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_schema(sampled(tmp_path, *lines))
    assert told in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_schema(tmp_path / "missing")
