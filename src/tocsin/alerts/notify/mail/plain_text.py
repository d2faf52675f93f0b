"""Text from logs, made harmless by `printable` and short enough for a mail; figures as people write them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from tocsin.declare.model.sizes import printable


def plain(text: str, longest: int = 200) -> str:
    """Write `text` in one line of about `longest` characters at most; a cut text ends with its true length."""
    cut = printable(text[:longest])
    if len(text) <= longest and len(cut) <= 2 * longest:
        return cut
    return f"{cut[: 2 * longest]}… ({len(text):,} characters)"


def named(entity: dict[str, str], longest: int = 200) -> str:
    """Name who or what an alert is about: the value of a single column, else `column=value` of each."""
    if len(entity) == 1:
        return plain(next(iter(entity.values())), longest) or "(empty)"
    return plain(", ".join(f"{column}={value}" for column, value in entity.items()), longest)


def value(anything: Any, longest: int = 300) -> str:
    """Write a sample event or an added fact: text as it is, the rest as JSON."""
    text = anything if isinstance(anything, str) else json.dumps(anything, ensure_ascii=False, default=str)
    return plain(text, longest)


def number(score: float) -> str:
    """Write a score as people do: 120, 1,234,567 or 0.183."""
    if score == int(score) and abs(score) < 1e15:
        return f"{score:,.0f}"
    return f"{score:,.2f}" if 1 <= abs(score) < 1e15 else f"{score:.3g}"


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
