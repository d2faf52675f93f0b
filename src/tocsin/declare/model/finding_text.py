"""Write a finding for people, the same in mails, on pages and in the terminal. Nothing is escaped here."""

from __future__ import annotations

from collections.abc import Mapping


def entity_text(entity: Mapping[str, str]) -> str:
    """Name who or what a finding is about: the value of a single column, else `column=value` of each."""
    values = [*entity.values()]
    return values[0] if len(values) == 1 else ", ".join(f"{column}={value}" for column, value in entity.items())


def score_text(score: float, *, at_least: bool) -> str:
    """Write a score, and whether it is only a lower bound."""
    return f"{'at least ' if at_least else ''}{number(score)}"


def number(figure: float) -> str:
    """Write a score or count as people do: 120, 1,234,567, 12.35 or 0.183."""
    if figure == int(figure) and abs(figure) < 1e15:
        return f"{figure:,.0f}"
    return f"{figure:,.2f}" if 1 <= abs(figure) < 1e15 else f"{figure:.3g}"
