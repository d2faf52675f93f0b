"""Line charts as SVG: few points, each with its figure; both axes are logarithmic, so that what bends is no line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 300, 170
_LEFT, _TOP, _INNER_WIDTH, _INNER_HEIGHT = 20, 36, 250, 100
_DECADES, _FILLED = 1.0, 0.85
"""The height stands for so many at the least, so that what hardly grows looks so."""


@dataclass(frozen=True)
class Panel:
    """One chart: its title, and its points by size; sizes and values are above 0."""

    title: str
    points: Sequence[tuple[float, float]]


def drawn(panels: Sequence[Panel], columns: int) -> str:
    """Draw `panels` in rows of `columns`."""
    rows = math.ceil(len(panels) / columns)
    size = f'width="{columns * _WIDTH}" height="{rows * _HEIGHT}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="10">']
    lines.append('<rect width="100%" height="100%" fill="white"/>')
    for number, panel in enumerate(panels):
        x, y = number % columns * _WIDTH, number // columns * _HEIGHT
        lines += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Panel) -> list[str]:
    sizes, values = ([math.log10(number) for number in numbers] for numbers in zip(*panel.points, strict=True))
    span, bottom = (max(sizes) - min(sizes)) or 1.0, _TOP + _INNER_HEIGHT
    height = max(_DECADES, max(values) - min(values))
    places = [
        (
            _LEFT + (size - min(sizes)) / span * _INNER_WIDTH,
            _TOP + (max(values) - value) / height * _INNER_HEIGHT * _FILLED,
        )
        for size, value in zip(sizes, values, strict=True)
    ]
    lines = [
        f'<text x="{_LEFT}" y="16" font-weight="bold">{escape(panel.title)}</text>',
        f'<path d="M{_LEFT} {bottom}h{_INNER_WIDTH}" stroke="#999"/>',
        f'<polyline fill="none" stroke="#1f6feb" points="{" ".join(f"{x:.0f},{y:.0f}" for x, y in places)}"/>',
    ]
    for (x, y), (size, value) in zip(places, panel.points, strict=True):
        lines.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="2.5" fill="#1f6feb"/>')
        lines.append(f'<text x="{x:.0f}" y="{y - 6:.0f}" text-anchor="middle">{_short(value)}</text>')
        lines.append(f'<text x="{x:.0f}" y="{bottom + 14}" text-anchor="middle" fill="#666">{_short(size)}</text>')
    return lines


def _short(value: float) -> str:
    """Write `value` in three digits, thousands as k and millions as M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"
