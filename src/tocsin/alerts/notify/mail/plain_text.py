"""Text from logs, made harmless by `printable` and short enough for a mail; times as people write them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from tocsin.declare.model.sizes import entity_text, printable


def plain(text: str, longest: int = 200) -> str:
    """Write `text` in one line of about `longest` characters at most; a cut text ends with its true length."""
    cut = printable(text[:longest])
    if len(text) <= longest and len(cut) <= 2 * longest:
        return cut
    return f"{cut[: 2 * longest]}… ({len(text):,} characters)"


def named(entity: dict[str, str], longest: int = 200) -> str:
    """Name who or what an alert is about; see `entity_text`."""
    return plain(entity_text(entity), longest) or "(empty)"


def value(anything: Any) -> str:
    """Write a sample event or an added fact: text as it is, the rest as JSON."""
    text = anything if isinstance(anything, str) else json.dumps(anything, ensure_ascii=False, default=str)
    return plain(text, 300)


def times(start: datetime, end: datetime) -> str:
    """Write a window in UTC, with its date once where that is enough."""
    form = "%H:%M:%S" if not (start.microsecond or end.microsecond) else "%H:%M:%S.%f"
    last = f"{end:{form}}" if start.date() == end.date() else f"{end:%Y-%m-%d {form}}"
    return f"{start:%Y-%m-%d {form}} to {last} UTC ({duration(end - start)})"


def duration(length: timedelta) -> str:
    """Write a length of time in its largest whole unit: 10 s, 5 min, 1 h, 2 d."""
    seconds = length.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
