"""The Kafka key of a raw record: cheap, and only to keep the records of one user in one partition and in order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from tocsin.model.source import Format, Source, numbered_groups

KeyOf = Callable[[bytes], bytes | None]


def key_reader(source: Source) -> KeyOf:
    """A function from a line of `source` to its key: the text of the key column, or None where it cannot be read.

    A None is no fault: the record goes to any partition, and the ingest job judges it.
    """
    plain = _pattern(source)
    group = numbered_groups(source.pattern)[1].get(source.key, 0) if source.pattern else 1
    may_be_json = Format.JSON in source.formats

    def key_of(line: bytes) -> bytes | None:
        if may_be_json and (plain is None or line.lstrip()[:1] == b"{"):
            return _json_key(line, source.key)
        match = plain.search(line) if plain is not None else None
        key = match.group(group) if match and group else None
        return (key or b"").strip() or None

    return key_of


def _pattern(source: Source) -> re.Pattern[bytes] | None:
    if Format.KEY_VALUE in source.formats:
        pair, colon = re.escape(source.pair_separator), re.escape(source.key_separator.rstrip())
        text = rf"(?:\A\s*|{pair}){re.escape(source.key)}{colon}(.*?)(?:{pair}|\Z)"
        return re.compile(text.encode(), re.DOTALL)
    if Format.REGEX not in source.formats:
        return None
    try:
        return re.compile(rf"\A(?:{numbered_groups(source.pattern or '')[0]})\Z".encode())
    except re.error:  # good Java, but no Python: no key then
        return None


def _json_key(line: bytes, column: str) -> bytes | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    value = fields.get(column) if isinstance(fields, dict) else None
    if value is None or isinstance(value, dict | list):
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace") or None
