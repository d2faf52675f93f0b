"""Options that several verbs share, and how their texts become values."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from tocsin.cli import moments

Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
FailIfAny = Annotated[bool, typer.Option("--exit-code", help="Leave with 1 when anything is listed, as git diff does.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="List at most this many.")]
Since = Annotated[str | None, typer.Option("--since", metavar="SPAN|TIME", help="Such as 30m, 2d, or a time in UTC.")]


class Level(StrEnum):
    """Levels, as an option takes them."""

    EMAIL = "email"
    URGENT = "urgent"


def since(text: str | None) -> datetime | None:
    """The moment that `--since` means; a usage error when it means none."""
    try:
        return None if text is None else moments.since(text, datetime.now(UTC))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--since'") from None


def span(text: str, option: str) -> float:
    """The seconds that the value of `option` means; a usage error when it means none."""
    try:
        return moments.span_of(text).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None
