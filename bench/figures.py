"""Percentiles, ratios and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Percentiles of some times, in milliseconds."""

    p50: float
    p95: float
    p99: float
    worst: float
    count: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """The spread of `times`, which may not be empty. Percentiles are times that occurred (nearest rank)."""
        ordered = sorted(times)

        def at(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

        return cls(at(0.50), at(0.95), at(0.99), ordered[-1], len(ordered))


@dataclass(frozen=True)
class Goal:
    """A figure beside what was wished for."""

    what: str
    figure: float
    bound: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is on the good side of the bound."""
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound

    def row(self) -> dict[str, object]:
        """The goal as a row of a table."""
        sign = "at least" if self.at_least else "at most"
        return {
            "figure": self.what,
            "measured": f"{self.figure:.3g}{self.unit}",
            "goal": f"{sign} {self.bound:g}{self.unit}",
            "met": "yes" if self.met else "NO",
        }


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """`rows` as a Markdown table; the columns are the keys of the first."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
