"""The chart of a rescale: how late records were shown, before and after each change of the number of readers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tocsin.dev.experiment.rescale_figures import ReaderChange, ShownRow, share

_INK, _GRID = "#3c4250", "#e3e6eb"
_LINES = {0.5: ("#2457c5", "p50"), 0.99: ("#c62828", "p99")}
_POINTS = 240


def draw_rescale(path: Path, changes: Sequence[ReaderChange], rows: Sequence[ShownRow]) -> None:
    """Write the chart to `path` as PNG, 1,350 by 570 pixels.

    Raises:
        OSError: it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    begin = changes[0].at
    seconds = max((row.appended_at for row in rows), default=begin) - begin
    width = max(seconds / _POINTS, 0.05)
    buckets = defaultdict[int, list[float]](list)
    for row in rows:
        buckets[int((row.appended_at - begin) / width)].append(row.seen_at - row.appended_at)
    figure = Figure(figsize=(9.0, 3.8), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = sorted(buckets)
    for part, (colour, label) in _LINES.items():
        late = [1000 * max(0.001, share(sorted(buckets[place]), part) or 0.0) for place in places]
        axes.plot([place * width for place in places], late, color=colour, lw=1.4, label=label)
    axes.set_yscale("log")
    for change in changes:
        axes.axvline(change.at - begin, color=_INK, lw=1.0, ls=(0, (4, 3)))
        words = f"{change.action}: {change.jobs} reader{'' if change.jobs == 1 else 's'}"
        axes.annotate(words, (change.at - begin, 1.0), (4, -4), xycoords=("data", "axes fraction"),
                      textcoords="offset points", color=_INK, fontsize=8.5, va="top")  # fmt: skip
    axes.set_xlabel("seconds since the first record", color=_INK, fontsize=9)
    axes.set_ylabel("appended until shown, ms", color=_INK, fontsize=9)
    axes.tick_params(colors=_INK, labelsize=8.5, length=0)
    axes.grid(axis="y", color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_GRID)
    axes.legend(loc="lower right", fontsize=8.5, frameon=False)
    figure.savefig(path, format="png")
