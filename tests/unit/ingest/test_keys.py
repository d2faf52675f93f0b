"""The Kafka key of a raw record: the user, where that can be read cheaply."""

from typing import Any

import pytest

from tocsin.declare.model.source import Format, Source
from tocsin.ingest.producer import key_reader


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
def test_key_value_or_json(line: bytes, key: bytes | None) -> None:
    assert key_reader(source(Format.KEY_VALUE, Format.JSON))(line) == key


def test_json_alone() -> None:
    key_of = key_reader(source(Format.JSON))
    assert (key_of(b'{"user_id": "a"}'), key_of(b"[1]"), key_of(b"\xff")) == (b"a", None, None)


def test_a_pattern() -> None:
    key_of = key_reader(source(Format.REGEX, patterns=(r"(?<at>\S+) (?<user_id>\S+)",)))
    assert (key_of(b"12:00 dave"), key_of(b"12:00")) == (b"dave", None)


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
