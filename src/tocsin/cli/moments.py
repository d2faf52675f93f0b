"""Spans and moments as people type them: 30s, 15m, 1h, 2d, "10 minutes", 2026-01-31T14:00:00Z."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tocsin.model.durations import parse_duration

_SHORT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.IGNORECASE)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_HELP = "write a span such as 30s, 15m, 1h or 2d"


def span_of(text: str) -> timedelta:
    """The span that `text` says.

    Raises:
        ValueError: with the accepted forms.
    """
    short = _SHORT.fullmatch(text.strip())
    try:
        return timedelta(**{_UNITS[short[2].lower()]: float(short[1])}) if short else parse_duration(text)
    except (ValueError, OverflowError):
        raise ValueError(f"'{text}' is not a span of time; {_HELP}") from None


def since(text: str, now: datetime) -> datetime:
    """The moment that lies the span `text` before `now`, or the moment (UTC unless it says otherwise) that `text` is.

    Raises:
        ValueError: with the accepted forms.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return now - span_of(text)
    except (ValueError, OverflowError):
        raise ValueError(f"'{text}' is neither a span nor a moment; {_HELP}, or 2026-01-31T14:00:00Z") from None
