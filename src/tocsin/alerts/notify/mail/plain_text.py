"""Text from logs, made harmless and short before it stands in a header, a text or a page."""

from __future__ import annotations

import json
import unicodedata
from datetime import datetime, timedelta
from typing import Any

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def plain(text: str, longest: int = 200) -> str:
    """`text` in one line: what cannot be seen is escaped, so that nothing is hidden, reordered or begins a new header.

    Beyond `longest` characters it is cut, and its true length told.
    """
    cut = "".join(_visible(character) for character in text[:longest])
    # Mail programs decode "=?utf-8?q?...?=" in a header, wherever it came from.
    cut = cut.replace("=?", "=\\u003f")
    if len(text) <= longest and len(cut) <= 2 * longest:
        return cut
    return f"{cut[: 2 * longest]}… ({len(text):,} characters)"


def named(entity: dict[str, str], longest: int = 200) -> str:
    """Who or what an alert is about: the value of a single column, else `column=value` of each."""
    if len(entity) == 1:
        return plain(next(iter(entity.values())), longest) or "(empty)"
    return plain(", ".join(f"{column}={value}" for column, value in entity.items()), longest)


def value(anything: Any, longest: int = 300) -> str:
    """A sample event or an added fact: text as it is, the rest as JSON."""
    text = anything if isinstance(anything, str) else json.dumps(anything, ensure_ascii=False, default=str)
    return plain(text, longest)


def number(score: float) -> str:
    """A score as people write it: 120, 1,234,567 or 0.183."""
    if score == int(score) and abs(score) < 1e15:
        return f"{score:,.0f}"
    return f"{score:,.2f}" if 1 <= abs(score) < 1e15 else f"{score:.3g}"


def times(start: datetime, end: datetime) -> str:
    """A window in UTC, with its date once where that is enough."""
    form = "%H:%M:%S" if not (start.microsecond or end.microsecond) else "%H:%M:%S.%f"
    last = f"{end:{form}}" if start.date() == end.date() else f"{end:%Y-%m-%d {form}}"
    return f"{start:%Y-%m-%d {form}} to {last} UTC ({duration(end - start)})"


def duration(length: timedelta) -> str:
    """A length of time in its largest whole unit: 10 s, 5 min, 1 h, 2 d."""
    seconds = length.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _visible(character: str) -> str:
    if character in "\t\n\r":
        return {"\t": "\\t", "\n": "\\n", "\r": "\\r"}[character]
    if unicodedata.category(character) in _INVISIBLE:
        return f"\\u{ord(character):04x}"
    return character
