"""The chart in a mail: how the score rose, the limits it crossed, and what the entity scored before.

PNG, 900 by 450 pixels, some 20 kB. Threads may draw at the same time.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, count, pairwise
from typing import TYPE_CHECKING

from tocsin.alerts.finding_merging import StoredFinding, time_of
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.declare.model.sizes import number

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

WIDTH, _HEIGHT = 900, 450
_TOP, _BOTTOM, _MARGIN = 8, 376, 20
_INK, GRID = "#3c4250", "#e3e6eb"
LINE, _WINDOW = "#2457c5", "#f2f5fc"
LIMIT_COLOURS, _EARLIER = {"email": "#b26a00", "urgent": "#c62828"}, {"email": "#d5ad73", "urgent": "#e08989"}
_TEXT, SMALL, _LARGE = 21, 20, 23
_MOST_WINDOWS, _MOST_SCORES = 12, 5
_TIME_LABEL = 130
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30), *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)), *(days * _DAY for days in (1, 2, 7)),
)  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """A part of the picture: its edges in pixels, and what they stand for."""

    pen: ImageDraw
    left: float
    right: float
    begin: float
    end: float
    low: float
    high: float
    top: float = _TOP
    bottom: float = _BOTTOM

    def x(self, place: float) -> float:
        """Find the pixel of `place`, a time or a number."""
        return self.left + (place - self.begin) / (self.end - self.begin) * (self.right - self.left)

    def y(self, score: float) -> float:
        """Find the pixel of `score`."""
        return self.bottom - (score - self.low) / (self.high - self.low) * (self.bottom - self.top)

    def level_line(self, score: float, colour: str, width: int, dash: int = 0) -> None:
        """Draw a line from edge to edge; with dashes of so many pixels if there are any."""
        y, step = self.y(score), dash * 1.6 or self.right - self.left
        for n in range(math.ceil((self.right - self.left) / step)):
            left = self.left + n * step
            self.pen.line([(left, y), (min(left + (dash or step), self.right), y)], colour, width)

    def words(self, place: tuple[float, float], text: str, anchor: str, colour: str = _INK, size: int = SMALL) -> None:
        """Write a line in the picture, `anchor` as of Pillow, moved to the left if it would leave it."""
        length = self.pen.textlength(text, _font(size))
        beyond = place[0] + length * {"l": 1.0, "m": 0.5, "r": 0.0}[anchor[0]] - (WIDTH - 4)
        bold = 0.6 if size == _LARGE else 0
        place = (place[0] - max(0.0, beyond), place[1])
        self.pen.text(place, text, colour, _font(size), anchor, stroke_width=bold)


def draw(details: AlertDetails) -> bytes:
    """Draw the scores of an alert's latest findings: every point if windows are few and close, else a stem for each.

    Earlier findings of the entity stand to their left, in order, by the same scale.
    """
    from PIL import Image, ImageDraw

    shown = list({stored.finding.finding_id: stored for stored in [*details.findings, details.highest]}.values())
    shown.sort(key=lambda stored: stored.start)
    picture = Image.new("RGB", (WIDTH, _HEIGHT), "white")
    main, *others = panels = _panels(ImageDraw.Draw(picture), details, shown)
    if _is_close(shown):
        for stored in shown:
            left, right = (main.x(time.timestamp()) for time in (stored.start, stored.end))
            main.pen.rectangle((left, _TOP, right, _BOTTOM), _WINDOW)
    for score in score_ticks(main.low, main.high):
        panels[-1].words((panels[-1].left - 8, main.y(score)), number(score), "rm")
        for panel in panels:
            panel.level_line(score, GRID, 2)
    for panel in others:
        _draw_earlier(panel, details)
    for level, limit in _limits_of(details).items():
        for panel in panels:
            panel.level_line(limit, LIMIT_COLOURS[level], 3 if panel is main else 2, 15)
    if _is_close(shown):
        for stored in shown:
            _draw_trajectory(main, stored)
    else:
        _draw_stems(main, shown)
    _label_limits(main, _limits_of(details))
    _label_times(main, shown)
    picture.paste(_upright("score"), (6, (_TOP + _BOTTOM) // 2 - 28))
    png = io.BytesIO()
    picture.save(png, "PNG")
    return png.getvalue()


def _panels(pen: ImageDraw, details: AlertDetails, shown: Sequence[StoredFinding]) -> list[Panel]:
    scores = [*(stored.finding.score for stored in shown), *(finding.score for finding in details.earlier)]
    scores += _limits_of(details).values()
    low, top = min(0.0, *scores), max(scores)
    high = top + 0.18 * (top - low) if top > low else low + 1.0
    left = 44 + min(WIDTH / 3, max(pen.textlength(number(score), _font(SMALL)) for score in score_ticks(low, high)))
    begin, end = shown[0].start, max(stored.end for stored in shown)
    room, many = max((end - begin) * 0.06, timedelta(seconds=0.5)), len(details.earlier)
    border = left + 0.28 * (WIDTH - left) if many else left
    times = (begin - room).timestamp(), (end + room).timestamp()
    panels = [Panel(pen, border, WIDTH - _MARGIN, *times, low, high)]
    if many:
        places = min(-0.8, many / 2 - 4), max(many - 0.2, many / 2 + 3)
        panels.append(Panel(pen, left, border - 1.5 * _MARGIN, *places, low, high))
    return panels


def _is_close(shown: Sequence[StoredFinding]) -> bool:
    length = shown[0].end - shown[0].start
    return bool(length) and shown[-1].end - shown[0].start <= _MOST_WINDOWS * length


def _limits_of(details: AlertDetails) -> dict[str, float]:
    limits = {"email": details.alert.email_limit, "urgent": details.alert.urgent_limit}
    return {level: limit for level, limit in limits.items() if limit is not None}


def score_ticks(low: float, high: float) -> list[float]:
    """Choose round scores from `low` to `high`, some five."""
    powers = (10.0**n for n in count(math.floor(math.log10((high - low) / _MOST_SCORES))))
    return _ticks(low, high, _MOST_SCORES, (share * power for power in powers for share in (1, 2, 2.5, 5)))


def _ticks(begin: float, end: float, most: float, steps: Iterable[float]) -> list[float]:
    """Return the multiples of a step from `begin` to `end`: of the first one with at most `most` of them."""
    step = next(step for step in steps if (end - begin) / step <= most)
    return [n * step for n in range(math.ceil(begin / step), math.floor(end / step) + 1)]


def _draw_trajectory(panel: Panel, finding: StoredFinding) -> None:
    start, end = finding.start, finding.end
    # Events of one instant raise the score at once; what came first within it is not known.
    points = [
        (panel.x(min(max(time_of(micros), start), end).timestamp()), panel.y(score))
        for micros, score in finding.trajectory
    ]
    corners = [corner for (_, y), (x, after) in pairwise(points) for corner in ((x, y), (x, after))]
    panel.pen.line([*points[:1], *corners], LINE, 4, joint="curve")
    _draw_dots(panel.pen, points, 7)
    if points:
        x, y = points[-1]
        panel.words((x + 10, y - 10), number(finding.trajectory[-1][1]), "ls", LINE, _LARGE)


def _draw_stems(panel: Panel, shown: Sequence[StoredFinding]) -> None:
    tops = [(panel.x(stored.start.timestamp()), panel.y(stored.finding.score)) for stored in shown]
    for x, y in tops:
        panel.pen.line([(x, panel.y(0)), (x, y)], LINE, 3)
    _draw_dots(panel.pen, tops, 11)


def _draw_dots(pen: ImageDraw, places: Iterable[tuple[float, float]], width: int) -> None:
    for x, y in places:
        pen.bitmap((round(x - width / 2), round(y - width / 2)), _dot(width), LINE)


def _label_limits(panel: Panel, limits: dict[str, float]) -> None:
    right, above = panel.left + 8, math.inf
    for level, limit in limits.items():
        words, y = f"{level} above {number(limit)}", panel.y(limit)
        x = right if above - y < SMALL else panel.left + 8
        panel.words((x, y - 6), words, "ls", LIMIT_COLOURS[level])
        right, above = x + panel.pen.textlength(words, _font(SMALL)) + _MARGIN, y


def _label_times(panel: Panel, shown: Sequence[StoredFinding]) -> None:
    begin, span = shown[0].start, max(stored.end for stored in shown) - shown[0].start
    form = "%H:%M:%S" if span <= timedelta(minutes=10) else "%H:%M" if span <= timedelta(days=1) else "%m-%d %H:%M"
    most, steps = (panel.right - panel.left) / _TIME_LABEL, chain(_TIME_STEPS, (14 * _DAY * 2**n for n in count()))
    for time in _ticks(panel.begin, panel.end, most, steps):
        panel.words((panel.x(time), _BOTTOM + 8), f"{datetime.fromtimestamp(time, UTC):{form}}", "mt")
    middle = (panel.left + panel.right) / 2
    panel.words((middle, _HEIGHT - 12), f"event time on {begin:%Y-%m-%d}, UTC", "ms", size=_TEXT)


def _draw_earlier(panel: Panel, details: AlertDetails) -> None:
    for place, finding in enumerate(details.earlier):
        ends = panel.y(finding.score), panel.y(0)
        bar = panel.x(place - 0.3), min(ends), panel.x(place + 0.3), max(ends)
        panel.pen.rectangle(bar, _EARLIER[finding.level])
    first, last = details.earlier[0].moment, details.earlier[-1].moment
    days = f"{first:%d %b}" + ("" if first.date() == last.date() else f" to {last:%d %b}")
    many, middle = len(details.earlier), (panel.left + panel.right) / 2
    panel.words((middle, _HEIGHT - 40), f"{many} earlier finding{'s' * (many != 1)}", "ms", size=_TEXT)
    panel.words((middle, _HEIGHT - 12), days, "ms", size=_TEXT)


@cache
def _font(size: int) -> FreeTypeFont:
    from PIL import ImageFont

    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # the wheels of Pillow have FreeType
    return font


@cache
def _dot(width: int) -> Image:
    from PIL import Image, ImageDraw

    large = Image.new("L", (8 * width, 8 * width))
    ImageDraw.Draw(large).ellipse((0, 0, 8 * width - 1, 8 * width - 1), 255)
    return large.reduce(8)


@cache
def _upright(text: str) -> Image:
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (56, 28), "white")
    ImageDraw.Draw(picture).text((28, 14), text, _INK, _font(_TEXT), "mm")
    return picture.transpose(Image.Transpose.ROTATE_90)
