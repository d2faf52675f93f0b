"""Syslog headers, logfmt lines, paths in JSON and keys, as Python reads them; Spark reads them alike: tests/spark."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.declare.model.source import Format, Source
from tocsin.ingest.line_forms import LOGFMT_PAIR, field_at, logfmt_reader, syslog_header, unquoted
from tocsin.ingest.producer import key_reader

HEADER = b"<158>1 2026-01-01T11:59:59.5+00:00 host heroku router - "
_KEYS = st.from_regex(rb"[a-z_.]{1,8}", fullmatch=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (HEADER + b"at=info", b"at=info"),
        (HEADER + b"- at=info", b"at=info"),
        (HEADER + b'[id a="1" b="\\"]"][x y="z"] at=info', b"at=info"),
        (HEADER + b"[INFO] at=info", b"[INFO] at=info"),
        (HEADER + b"- \xef\xbb\xbfat=info", b"at=info"),
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
        (b'a="open k=b', None),
        (b'k="x"y', b"x"),
        (b"a='k=no \"' k='a \\'b\\' \"c\"'", b"a 'b' \"c\""),
        (b"a='tis k=o'clock' b='x'", b"o'clock'"),
        (b"k='open a=b", b"'open"),
        (b"k=''", None),
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


@given(st.text(alphabet="k=\"\\' \tv", max_size=12))
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


def source(*formats: Format, **more: Any) -> Source:
    columns = {"user_id": "string", "at": "timestamp"}
    fields: dict[str, Any] = {"name": "s", "title": "t", "owner": "a@b", "key": "user_id", "event_time": "at"}
    return Source(formats=formats, columns=columns, **fields, **more)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b"user_id: alice | at: x", b"alice"),
        (b"at: x | user_id: bob", b"bob"),
        (b"at: x | user_id: bob | note: | user_id: victim", b"bob"),
        (b"user_id:  | at: x", None),
        (b"user_id: caf\xe9 | at: x", b"caf\xe9"),
        (b"other_user_id: eve | at: x", None),
        (b"", None),
        (b'{"user_id": "carol"}', b"carol"),
        (b' {"user_id": 5}', b"5"),
        (b'{"user_id": null}', None),
        (b'{"user_id": ["x"]}', None),
        (b'{"user_id": "\\ud800"}', b"?"),
        (b'{"user_id": "carol"', None),
        (b"{" * 100_000, None),
    ],
)
def test_the_key_of_key_value_or_json(line: bytes, key: bytes | None) -> None:
    assert key_reader(source(Format.KEY_VALUE, Format.JSON))(line) == key


def test_the_key_of_json_alone() -> None:
    key_of = key_reader(source(Format.JSON))
    assert (key_of(b'{"user_id": "a"}'), key_of(b"[1]"), key_of(b"\xff")) == (b"a", None, None)


def test_the_key_by_a_pattern() -> None:
    key_of = key_reader(source(Format.REGEX, patterns=(r"(?<at>\S+) (?<user_id>\S+)",)))
    assert (key_of(b"12:00 dave\r\n"), key_of(b"12:00")) == (b"dave", None)


def test_the_first_pattern_that_matches_says_the_key() -> None:
    first, second = r"(?<at>\S+) login of (?<user_id>\S+)", r"(?<at>\S+) (?<user_id>\S+) .*"
    key_of = key_reader(source(Format.REGEX, patterns=(first, second)))
    assert [key_of(b"12:00 login of dave"), key_of(b"12:00 erin left"), key_of(b"12:00")] == [b"dave", b"erin", None]


def test_a_pattern_that_only_java_reads_gives_no_key() -> None:
    assert key_reader(source(Format.REGEX, patterns=(r"\p{Alpha}(?<user_id>\S+) (?<at>\S+)",)))(b"a b") is None


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"source.user": "top", "source": {"user": "a"}}', b"top"),
        (b'{"source": {"user": "a"}}', b"a"),
        (b'{"SOURCE": {"User": "a"}}', b"a"),
        (b'{"source": {"user": {"name": "a"}}}', None),
        (b'{"source": "a"}', None),
        (b'{"user_id": "a"}', None),
    ],
)
def test_a_key_by_a_path(line: bytes, key: bytes | None) -> None:
    assert key_reader(source(Format.JSON, paths={"user_id": "source.user"}))(line) == key


def test_the_key_of_other_forms_may_be_named_otherwise() -> None:
    assert key_reader(source(Format.LOGFMT, paths={"user_id": "user.id"}))(b"at=x user.id=bob") == b"bob"
    assert key_reader(source(Format.KEY_VALUE, paths={"user_id": "user.id"}))(b"at: x | user.id: bob") == b"bob"


def test_lines_of_two_forms_each_have_their_key() -> None:
    key_of = key_reader(source(Format.LOGFMT, Format.JSON))
    lines = (b' user_id="/a b" \r\n', b'{"user_id": "/c"}', b"{ user_id=x")
    assert [*map(key_of, lines)] == [b"/a b", b"/c", None]
