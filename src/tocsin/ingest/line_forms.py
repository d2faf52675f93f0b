r"""Forms of log lines, read alike by Spark and by Python: patterns of text and of bytes, and paths in JSON.

A logfmt line is `key=value key="a quoted value" key='another'`: a value ends with the next blank or tab, or with its
quotation mark; a single one ends a value only before a blank. A line that ends within double quotes was cut off, and is
no logfmt line. In quotes `\"`, `\'` and `\\` stand for the character behind the backslash. Words without `=` are no
field. Before the fields may stand the header of a syslog line (RFC 5424), with structured data, `-`, or neither of
them, as Heroku writes it.

A path in a JSON record is the name of a field, or names joined by dots: `id.orig_h` is first the field of that name,
then field `orig_h` of the object `id`. Names that differ only by case are the same, unless a record has both or
`match_case` is set. Spark reads them in `tocsin.ingest.spark.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tocsin.declare.model.source import Source

_Value = TypeVar("_Value")
BLANK = " \t\r\n\ufeff"
"""What may surround a record: whitespace, line ends of either kind, a byte order mark."""

SYSLOG_COLUMNS = ("syslog_time", "syslog_host", "syslog_app", "syslog_process", "syslog_id")
"""Columns of a logfmt source that are filled from the header of a line; `-` there is no value."""

_WORD, _BOM = r"([^ ]++)", "\ufeff"
# An element needs a parameter, so that a message which begins with [INFO] is none.
_ELEMENT = r'\[[^ "\]]++(?: [^ "=\]]++="[^"\\]*+(?:\\.[^"\\]*+)*+")++\]'
SYSLOG_HEADER = (
    rf"(?s)\A<[0-9]{{1,3}}>1 {_WORD} {_WORD} {_WORD} {_WORD} {_WORD} ?(?:- |-\Z|(?:{_ELEMENT})++ ?)?(?:{_BOM})?"
)
"""The header of a syslog line, with the columns as its groups; a byte order mark may follow, as RFC 5424 asks."""

# Possessive quantifiers: Java's matcher would recurse on a long value, or try each length in turn.
_QUOTED = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SINGLE = r"'[^'\\]*+(?:\\.[^'\\]*+)*+'(?![^ \t\r\n])"
LOGFMT_PAIR = rf'(?s)(?:\A|(?<=[ \t\r\n]))([^ \t\r\n="]++)=({_QUOTED}|{_SINGLE}|".*+|[^ \t\r\n]*+)'
"""One field: group 1 is the key, group 2 the value as it is written: all of the line if its quotes are not closed."""

WHOLE_QUOTED = rf"(?s)\A(?:{_QUOTED}|{_SINGLE})\Z"
ESCAPED = r"""\\(["'\\])"""
UNIT = r"(?<=[0-9])ms\Z"
"""The unit that a number of a logfmt line may have."""

_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
LONE_SURROGATE = rf"(?<!\\)((?:\\\\)*+)(?:{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})"
"""The escape of half a character in JSON: the JVM would write a question mark, and protobuf refuses it."""

_HEADER, _PAIR = re.compile(SYSLOG_HEADER.encode()), re.compile(LOGFMT_PAIR.encode())
_QUOTES = re.compile(rb"[\"']")
_ESCAPED, _WHOLE = re.compile(ESCAPED.encode()), re.compile(WHOLE_QUOTED.encode())


def syslog_header(line: bytes) -> re.Match[bytes] | None:
    """Match the header of a syslog line; its end is where the message begins."""
    return _HEADER.match(line)


def logfmt_reader(column: str) -> Callable[[bytes], bytes | None]:
    """Make a function that reads one column of a logfmt line as Spark does (`tocsin.ingest.spark.parse`).

    It returns None for a line in which the column has no value.
    """
    if column in SYSLOG_COLUMNS:
        group = SYSLOG_COLUMNS.index(column) + 1

        def of_header(line: bytes) -> bytes | None:
            header = syslog_header(line)
            return None if header is None or header[group] == b"-" else header[group]

        return of_header
    name = column.encode()
    # The name stands first, where the engine can look for it as a whole, and then what may not stand before it.
    first = re.compile(
        rb'%b=(?<![^ \t\r\n]%b=)(?:"([^"\\]*+)"|([^ \t\r\n"\']++)(?![^ \t\r\n])|)' % (re.escape(name), re.escape(name))
    )

    def of_fields(line: bytes) -> bytes | None:
        header = syslog_header(line)
        fields = line[header.end() :] if header else line
        found = first.search(fields)
        if found is None:
            return None
        if found.lastindex is not None and not _QUOTES.search(fields, 0, found.start()):
            return found[found.lastindex].strip(b" \t\r\n") or None
        # It has escapes, or is part of another value in quotes: only the fields one by one tell.
        pairs = (pair[2] for pair in _PAIR.finditer(fields) if pair[1] == name)
        return unquoted(next(pairs, b"")).strip(b" \t\r\n") or None

    return of_fields


def logfmt_fields(line: bytes) -> dict[str, bytes]:
    """Read all columns of a logfmt line that have a value, those of a header first."""
    header = syslog_header(line)
    named = list(zip(SYSLOG_COLUMNS, header.groups(), strict=True)) if header else []
    pairs = _PAIR.finditer(line[header.end() :] if header else line)
    named += ((pair[1].decode("utf-8", "replace"), unquoted(pair[2]).strip(b" \t\r\n")) for pair in pairs)
    return {name: value for name, value in first_of_each(named).items()
            if value and (value != b"-" or name not in SYSLOG_COLUMNS)}  # fmt: skip


def first_of_each(fields: Iterable[tuple[str, _Value]]) -> dict[str, _Value]:
    """Take of fields with one name the first, which counts."""
    found: dict[str, _Value] = {}
    for name, value in fields:
        found.setdefault(name, value)
    return found


def unquoted(value: bytes) -> bytes:
    """Take the quotation marks and escapes off a value that is in quotes."""
    return _ESCAPED.sub(rb"\1", value[1:-1]) if _WHOLE.match(value) else value


def field_at(record: dict[str, Any], path: str, *, match_case: bool = False) -> Any:
    """Find what stands at `path` in `record`; None if nothing does."""
    value = _named(record, path, match_case=match_case)
    names = path.split(".") if value is None else []
    for count in range(1, len(names) if all(names) else 0):
        inner = field_at(record, ".".join(names[:count]), match_case=match_case)
        if isinstance(inner, dict):
            value = _named(inner, ".".join(names[count:]), match_case=match_case) if value is None else value
    return value


def known_names(source: Source) -> list[str]:
    """List the names of fields at the top of a record that `source` reads."""
    paths = [source.field_of(name) for name in source.columns if name not in source.enrich]
    names = dict.fromkeys(name for path in paths for name in (path, path.partition(".")[0]))
    return list(names if source.match_case else dict.fromkeys(name.lower() for name in names))


def _named(record: dict[str, Any], name: str, *, match_case: bool) -> Any:
    if name in record or match_case:
        return record.get(name)
    return next((value for key, value in record.items() if key.lower() == name.lower()), None)
