"""Syslog headers, logfmt lines and paths in JSON, as Python reads them; Spark reads them alike: tests/spark."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.ingest.line_forms import LOGFMT_PAIR, field_at, logfmt_reader, syslog_header, unquoted

HEADER = b"<158>1 2026-01-01T11:59:59.5+00:00 host heroku router - "
_KEYS = st.from_regex(rb"[a-z_.]{1,8}", fullmatch=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (HEADER + b"at=info", b"at=info"),
        (HEADER + b"- at=info", b"at=info"),
        (HEADER + b'[id a="1" b="\\"]"][x y="z"] at=info', b"at=info"),
        (HEADER + b"[INFO] at=info", b"[INFO] at=info"),
        (HEADER + b"-", b""),
        (HEADER, b""),
        (HEADER[:-1], b""),
        (b"<158>2 x x x x x at=info", None),
        (b"at=info", None),
    ],
)
def test_the_message_of_a_syslog_line(line: bytes, message: bytes | None) -> None:
    header = syslog_header(line)
    assert (line[header.end() :] if header else None) == message


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"k=v", b"v"),
        (b"a=1 k=v k=other", b"v"),
        (b'a="k=no k=no" k=v', b"v"),
        (b'k="a \\"b\\" \\\\ \\n"', b'a "b" \\ \\n'),
        (b'k="open a=b', b'"open'),
        (b'k="x"y', b"x"),
        (b"k=a=b", b"a=b"),
        (b"k= a=b", None),
        (b'k=""', None),
        (b"xk=v", None),
        (b"k", None),
        (b"", None),
        (HEADER + b"k=v", b"v"),
    ],
)
def test_a_value_of_a_logfmt_line(line: bytes, value: bytes | None) -> None:
    assert logfmt_reader("k")(line) == value


def test_columns_of_the_header() -> None:
    assert logfmt_reader("syslog_process")(HEADER + b"at=info") == b"router"
    assert [logfmt_reader("syslog_id")(HEADER), logfmt_reader("syslog_time")(b"at=info")] == [None, None]


@given(st.lists(st.tuples(_KEYS, st.binary(max_size=20)), min_size=1, max_size=6))
def test_what_is_written_in_quotes_is_read_back(fields: list[tuple[bytes, bytes]]) -> None:
    quoted = [(key, value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')) for key, value in fields]
    line = b" ".join(b'%s="%s"' % field for field in quoted)
    first = {key: value for key, value in reversed(fields)}
    for key, value in first.items():
        assert logfmt_reader(key.decode())(line) == (value.strip(b" \t\r\n") or None)


@given(st.text(alphabet='k="\\ \tv', max_size=12))
def test_a_column_alone_is_read_as_among_all(text: str) -> None:
    """The reader of one column takes a short cut past the others."""
    pairs = [pair for pair in re.finditer(LOGFMT_PAIR.encode(), text.encode()) if pair[1] == b"k"]
    assert logfmt_reader("k")(text.encode()) == ((unquoted(pairs[0][2]).strip(b" \t") if pairs else b"") or None)


@given(st.binary(max_size=60))
def test_no_line_is_too_strange(line: bytes) -> None:
    logfmt_reader("k")(line)
    assert unquoted(line) in (line, unquoted(line))


@pytest.mark.parametrize(
    ("record", "value"),
    [
        ({"a.b.c": 1, "a": {"b": {"c": 2}}}, 1),
        ({"a": {"b": {"c": 2}}}, 2),
        ({"a": {"b.c": 3}}, 3),
        ({"a.b": {"c": 4}}, 4),
        ({"A": {"B": {"C": 5}}, "a.b": 1}, None),
        ({"A": {"B": {"C": 5}}}, 5),
        ({"a": {"b": [{"c": 6}]}}, None),
        ({"a": None}, None),
        ({}, None),
    ],
)
def test_fields_are_found_by_a_path(record: dict[str, Any], value: Any) -> None:
    assert field_at(record, "a.b.c") == value


def test_case_tells_names_apart_if_asked() -> None:
    assert field_at({"A": 1}, "a") == 1
    assert field_at({"A": 1, "a": 2}, "a") == 2
    assert field_at({"A": 1}, "a", match_case=True) is None


def test_a_path_with_an_empty_name_is_the_name_of_a_field() -> None:
    assert field_at({"a": {"": 1}, "a.": 2}, "a.") == 2
    assert field_at({"a": {"": 1}}, "a.") is None
