"""The picture of an evaluation: scores over time with the limits, and what each limit of the ladder would be worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tocsin.alerts.evaluation.scoring import LimitQuality, ScoredWindow
from tocsin.alerts.notify.mail.chart import GRID, LIMIT_COLOURS, LINE, WIDTH, Panel, score_ticks
from tocsin.declare.model.finding_text import number

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

_HEIGHT, _LEFT, _RIGHT = 860, 120, WIDTH - 60
_PRECISION, _RECALL, _BAR = "#6a1b9a", "#00796b", "#b9cdf3"
_MOST_LABELS = 7


def draw_evaluation(
    scores: Sequence[ScoredWindow], limits: Mapping[str, float], ladder: Sequence[LimitQuality]
) -> Image:
    """Draw `scores`, of which there are some, beside the `limits` by level, and the alerts a day of the `ladder`.

    Precision and recall are lines from 0 to 1, where they are known.
    """
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (WIDTH, _HEIGHT), "white")
    pen = ImageDraw.Draw(picture)
    _draw_scores(pen, scores, limits)
    _draw_ladder(pen, ladder)
    return picture


def _draw_scores(pen: ImageDraw, scores: Sequence[ScoredWindow], limits: Mapping[str, float]) -> None:
    times, values = [w.start.timestamp() for w in scores], [*(w.score for w in scores), *limits.values()]
    low, top = min(0.0, *values), max(values)
    high = top + 0.1 * (top - low) if top > low else low + 1
    panel = Panel(pen, _LEFT, _RIGHT, min(times), max(*times, min(times) + 1), low, high, 40, 380)
    panel.words((_LEFT, 8), f"scores of {len(scores):,} windows or events, the highest", "lt")
    for tick in score_ticks(low, high):
        panel.level_line(tick, GRID, 2)
        panel.words((_LEFT - 8, panel.y(tick)), number(tick), "rm")
    for x, y in {(round(panel.x(time)), round(panel.y(w.score))) for time, w in zip(times, scores, strict=True)}:
        pen.rectangle((x - 1, y - 1, x + 1, y + 1), LINE)
    for level, limit in limits.items():
        panel.level_line(limit, LIMIT_COLOURS[level], 3, 15)
        panel.words((_RIGHT, panel.y(limit) - 4), f"{level} above {number(limit)}", "rs", LIMIT_COLOURS[level])
    for share, anchor in ((0.0, "lt"), (0.5, "mt"), (1.0, "rt")):
        time = panel.begin + share * (panel.end - panel.begin)
        panel.words((panel.x(time), 390), f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}", anchor)


def _draw_ladder(pen: ImageDraw, ladder: Sequence[LimitQuality]) -> None:
    """Draw a bar for each limit: they are evenly spaced, and the heights are logarithms."""
    counts = [rung.alerts_a_day for rung in ladder]
    least = min((count for count in counts if count), default=1.0)
    high = math.log10(max(*counts, least, 10 * least) / least) + 1.3
    panel = Panel(pen, _LEFT, _RIGHT, -0.6, len(ladder) - 0.4, 0, high, 490, 780)
    panel.words((_LEFT, 450), "alerts a day above each limit", "lt")
    for place, rung in enumerate(ladder):
        height = math.log10(rung.alerts_a_day / least) + 1 if rung.alerts else 0
        pen.rectangle((panel.x(place - 0.35), panel.y(height), panel.x(place + 0.35), panel.bottom), _BAR)
        if place % math.ceil(len(ladder) / _MOST_LABELS) == 0:
            panel.words((panel.x(place), panel.y(height) - 4), number(rung.alerts_a_day), "ms")
            panel.words((panel.x(place), 790), number(rung.limit), "mt")
    panel.words(((_LEFT + _RIGHT) / 2, _HEIGHT - 8), "limit", "ms")
    shares = Panel(pen, _LEFT, _RIGHT, -0.6, len(ladder) - 0.4, 0, 1, 520, 780)
    for name, colour, right in (("precision", _PRECISION, 240), ("recall", _RECALL, 120)):
        known = [(place, share) for place, rung in enumerate(ladder) if (share := getattr(rung, name)) is not None]
        pen.line([(shares.x(place), shares.y(share)) for place, share in known], colour, 4, joint="curve")
        for share in (0, 1) if known else ():
            shares.words((_RIGHT + 8, shares.y(share)), str(share), "lm")
        if known:
            shares.words((_RIGHT - right, 450), name, "lt", colour)
