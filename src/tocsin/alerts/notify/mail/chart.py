"""The chart in a mail: how the score rose, the limits it crossed, and what the entity scored before.

PNG, 900 by 450 pixels, some 30 kB.
"""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tocsin.alerts.finding_merging import StoredFinding, time_of
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.declare.model.finding_text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _GRID = "#3c4250", "#e3e6eb"
_LINE = "#2457c5"
_LIMITS = {"email": "#b26a00", "urgent": "#c62828"}
_MOST_WINDOWS = 12


def draw(details: AlertDetails) -> bytes:
    """Draw the scores of an alert's latest findings: every point if windows are few and close, else a stem for each.

    Earlier findings of the entity stand to their left, in order, by the same scale.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 2.5), dpi=180, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    shown = list({stored.finding.finding_id: stored for stored in [*details.findings, details.highest]}.values())
    shown.sort(key=_begin)
    if details.earlier:
        before, axes = figure.subplots(1, 2, sharey=True, width_ratios=(1, 2.6))
        _draw_earlier(before, details)
    else:
        axes = figure.subplots()
    if _is_close(shown):
        for stored in shown:
            _draw_trajectory(axes, stored)
    else:
        _draw_stems(axes, shown)
    _draw_limits(axes, details, [*(stored.finding.score for stored in shown), *(f.score for f in details.earlier)])
    _dress(axes, shown, "" if details.earlier else "score")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_earlier(axes: Axes, details: AlertDetails) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    places = range(len(details.earlier))
    colours = [_LIMITS[finding.level] for finding in details.earlier]
    axes.bar(places, [finding.score for finding in details.earlier], color=colours, alpha=0.55, width=0.6)
    for level, limit in _limits_of(details):
        axes.axhline(limit, color=_LIMITS[level], lw=0.8, ls=(0, (5, 3)))
    axes.set_xlim(min(-0.8, len(places) / 2 - 4), max(len(places) - 0.2, len(places) / 2 + 3))
    first, last = details.earlier[0].moment, details.earlier[-1].moment
    days = f"{first:%d %b}" + ("" if first.date() == last.date() else f" to {last:%d %b}")
    count = len(details.earlier)
    axes.set_xticks([])
    axes.set_xlabel(f"{count} earlier finding{'s' * (count != 1)}\n{days}", color=_INK, fontsize=8.5)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda score, _: number(float(score))))
    _frame(axes, "score")


def _begin(finding: StoredFinding) -> datetime:
    return finding.finding.window_start or finding.finding.event_time_max or finding.first_detected_at


def _place(time: datetime) -> float:
    """Convert `time` to a place on the axis: days since 1970, as matplotlib counts."""
    return time.timestamp() / 86_400


def _end(finding: StoredFinding) -> datetime:
    return finding.finding.window_end or _begin(finding)


def _is_close(shown: list[StoredFinding]) -> bool:
    length = _end(shown[0]) - _begin(shown[0])
    return bool(length) and _end(shown[-1]) - _begin(shown[0]) <= _MOST_WINDOWS * length


def _draw_trajectory(axes: Axes, finding: StoredFinding) -> None:
    start, end = _begin(finding), _end(finding)
    axes.axvspan(_place(start), _place(end), color=_LINE, alpha=0.06, lw=0)
    points = [(time_of(micros), score) for micros, score in finding.trajectory]
    # Events of one instant raise the score at once; what came first within it is not known.
    times = [_place(min(max(time, start), end)) for time, _ in points]
    scores = [score for _, score in points]
    axes.plot(times, scores, color=_LINE, lw=1.8, marker="o", ms=2.6, drawstyle="steps-post")
    if times:
        axes.annotate(number(scores[-1]), (times[-1], scores[-1]), (4, 4), textcoords="offset points",
                      color=_LINE, fontsize=9, fontweight="bold")  # fmt: skip


def _draw_stems(axes: Axes, shown: list[StoredFinding]) -> None:
    times, scores = [_place(_begin(finding)) for finding in shown], [finding.finding.score for finding in shown]
    axes.vlines(times, 0, scores, color=_LINE, lw=1.4)
    axes.plot(times, scores, color=_LINE, ls="", marker="o", ms=4)


def _draw_limits(axes: Axes, details: AlertDetails, scores: list[float]) -> None:
    limits = _limits_of(details)
    for level, limit in limits:
        axes.axhline(limit, color=_LIMITS[level], lw=1.2, ls=(0, (5, 3)))
        words = f"{level} above {number(limit)}"
        axes.annotate(words, (0.01, limit), (0, 2), xycoords=("axes fraction", "data"), textcoords="offset points",
                      color=_LIMITS[level], fontsize=8, ha="left", va="bottom")  # fmt: skip
    places = [*scores, *(limit for _, limit in limits)]
    lowest, top = min(0.0, *places), max(places)
    axes.set_ylim(lowest, top + (top - lowest) * 0.18 or 1.0)


def _limits_of(details: AlertDetails) -> list[tuple[str, float]]:
    limits = {"email": details.alert.email_limit, "urgent": details.alert.urgent_limit}
    return [(level, limit) for level, limit in limits.items() if limit is not None]


def _dress(axes: Axes, shown: list[StoredFinding], scale: str) -> None:
    from matplotlib.dates import AutoDateLocator, DateFormatter
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    begin, end = _begin(shown[0]), max(_end(stored) for stored in shown)
    room = max((end - begin) * 0.06, timedelta(seconds=0.5))
    axes.set_xlim(_place(begin - room), _place(end + room))
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=4, maxticks=8))  # type: ignore[no-untyped-call]  # theirs
    span = end - begin
    form = "%H:%M:%S" if span <= timedelta(minutes=10) else "%H:%M" if span <= timedelta(days=1) else "%m-%d %H:%M"
    axes.xaxis.set_major_formatter(DateFormatter(form))  # type: ignore[no-untyped-call]  # theirs
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda score, _: number(float(score))))
    axes.set_xlabel(f"event time on {begin:%Y-%m-%d}, UTC", color=_INK, fontsize=8.5)
    _frame(axes, scale)


def _frame(axes: Axes, scale: str) -> None:
    axes.set_ylabel(scale, color=_INK, fontsize=8.5)
    axes.tick_params(colors=_INK, labelsize=8, length=0)
    axes.grid(axis="y", color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_GRID)
