"""Define the options that several verbs share, and read spans and moments: 30s, 15m, "10 minutes", 2026-01-31."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from tocsin.declare.model.durations import parse_duration

_SHORT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.IGNORECASE)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_HELP = "write a span such as 30s, 15m, 1h or 2d"

Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
FailIfAny = Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything is listed, as git diff does.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="List at most this many.")]
Since = Annotated[str | None, typer.Option("--since", metavar="SPAN|TIME", help="Such as 30m, 2d, or a time in UTC.")]


def day(option: str, meaning: str) -> Any:
    """Describe an option that takes a day."""
    return typer.Option(option, formats=["%Y-%m-%d"], metavar="DAY", help=meaning)


FirstDay = Annotated[datetime | None, day("--from", "The first day, UTC.")]
LastDay = Annotated[datetime | None, day("--to", "The last day, UTC.")]


class Level(StrEnum):
    """Levels, as an option takes them."""

    EMAIL = "email"
    URGENT = "urgent"


Records = Annotated[
    str, typer.Option("--records", metavar="SOURCE", help="Whose records they are, if flows make events of several.")
]


def refuse_beside(what: str, **given: object) -> None:
    """Refuse what is given and would be ignored beside `what`, by a usage error; names in capitals are arguments."""
    for name, value in given.items():
        if value not in (None, False, "", []):
            hint = name if name.isupper() else f"'--{name.replace('_', '-')}'"
            raise typer.BadParameter(f"means nothing {what}", param_hint=hint)


def since(text: str | None) -> datetime | None:
    """Read the value of `--since`; a usage error if it is no moment, or lies ahead: nothing is from then on."""
    if text is None:
        return None
    found = moment(text, "--since", now := datetime.now(UTC))
    if found > now:
        what = f"'{text}' lies ahead: it is {now:%Y-%m-%dT%H:%M:%SZ}, and a time without an offset is in UTC"
        raise typer.BadParameter(what, param_hint="'--since'")
    return found


def moment(text: str, option: str, now: datetime) -> datetime:
    """Read the value of `option`: a span before `now`, or a time, UTC unless it says otherwise; else a usage error."""
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return now - timedelta(seconds=span(text, option))
    except (typer.BadParameter, OverflowError):
        what = f"'{text}' is neither a span nor a moment; {_HELP}, or 2026-01-31T14:00:00Z"
        raise typer.BadParameter(what, param_hint=f"'{option}'") from None


def span(text: str, option: str) -> float:
    """Read the value of `option` as seconds; a usage error if it is no span."""
    short = _SHORT.fullmatch(text.strip())
    try:
        read = timedelta(**{_UNITS[short[2].lower()]: float(short[1])}) if short else parse_duration(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"'{text}' is not a span of time; {_HELP}", param_hint=f"'{option}'") from None
    return read.total_seconds()


def columns(given: list[str]) -> dict[str, tuple[str, ...]]:
    """Read the values of `--entity COLUMN=VALUE` by column; a usage error if one is no such pair."""
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"'{text}' is not COLUMN=VALUE", param_hint="'--entity'")
        found[name] = (*found.get(name, ()), value)
    return found
