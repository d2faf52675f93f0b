"""The chart of a backtest: findings and alerts of each day, entities with most findings, and the scores."""

from __future__ import annotations

import base64
import html
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.backfill.trial_report import FAR, Backtest
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.sizes import printable
from tocsin.runtime.state_file import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _GRID = "#3c4250", "#e3e6eb"
_LEVELS = {"email": "#b26a00", "urgent": "#c62828"}
_ALERTS = "#2457c5"
_LONGEST = 32
_HTML = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:14px sans-serif;margin:2em}}td,th{{padding:2px 12px;text-align:right}}img{{max-width:100%}}</style>
<h1>{title}</h1>
<img alt="{title}" src="data:image/png;base64,{picture}">
<table>{rows}</table>
</html>
"""
_TICKS = 8


def check_chart_path(path: Path) -> None:
    """Check, before hours of work, that a chart can be written to `path`.

    Raises:
        ConfigError: its name does not end in .png or .html, or its folder is missing.
    """
    if path.suffix not in (".png", ".html"):
        raise ConfigError.one(path, "must end in .png or .html", key="--plot")
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError.one(path, "cannot be written: make its folder first", key="--plot")


def write_chart(path: Path, found: Backtest) -> None:
    """Write the chart of `found` to `path`: a PNG, or a page of HTML that holds it. The same report, the same bytes.

    Raises:
        TransientError: it cannot be written; what was there before still is.
    """
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a script that its font lacks is drawn as boxes
        draw_backtest(found).savefig(picture, format="png", metadata={"Software": None})
    content = picture.getvalue()
    try:
        write_whole(path, content if path.suffix == ".png" else _page(found, content))
    except OSError as error:
        raise TransientError(f"{path} cannot be written: {error.strerror or error}") from error


def draw_backtest(found: Backtest) -> Figure:
    """Draw `found`: 1,650 by 1,080 pixels as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(11.0, 7.2), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    (findings, alerts), (entities, scores) = figure.subplots(2, 2)
    days = [str(one.day) for one in found.days]
    email = [one.findings - one.urgent for one in found.days]
    urgent = {"urgent": [one.urgent for one in found.days]}
    _draw_days(findings, days, {"email": email} | urgent, f"findings a day, {sum(email) + sum(urgent['urgent']):,}")
    opened = [one.alerts for one in found.days]
    _draw_days(alerts, days, {"alerts": opened}, f"alerts a day, as if it were live, {sum(opened):,}")
    _draw_entities(entities, found)
    _draw_scores(scores, found)
    for axes in (findings, alerts, entities, scores):
        (axes.xaxis if axes is entities else axes.yaxis).set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(colors=_INK, labelsize=8, length=0)
        axes.grid(axis="x" if axes is entities else "y", color=_GRID, lw=0.8)
        axes.set_axisbelow(True)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(_GRID)
    figure.suptitle(_title(found), color=_INK, fontsize=11)
    return figure


def _title(found: Backtest) -> str:
    ends = f", {found.days[0].day} to {found.days[-1].day}" if found.days else ""
    until = f" {found.open.until:%H:%M:%S} UTC" if found.open else ""
    return f"{found.detector}, version {found.version}{ends}{until}"


def _draw_days(axes: Axes, days: Sequence[str], parts: Mapping[str, Sequence[int]], title: str) -> None:
    bottom = [0] * len(days)
    for label, counts in parts.items():
        axes.bar(range(len(days)), counts, bottom=bottom, color=_LEVELS.get(label, _ALERTS), label=label, width=0.8)
        bottom = [low + count for low, count in zip(bottom, counts, strict=True)]
    step = max(1, -(-len(days) // _TICKS))
    axes.set_xticks(range(0, len(days), step), [day[5:] for day in days[::step]])
    axes.set_title(title, color=_INK, fontsize=9, loc="left")
    if len(parts) > 1:
        axes.legend(fontsize=8, frameon=False)


def _draw_entities(axes: Axes, found: Backtest) -> None:
    top = list(reversed(found.top))
    axes.barh(range(len(top)), [one.findings for one in top], color=_ALERTS, height=0.7)
    axes.set_yticks(range(len(top)), [_named(one.entity) for one in top])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)  # a value from a log may hold a $
    axes.set_title("entities with most findings", color=_INK, fontsize=9, loc="left")


def _draw_scores(axes: Axes, found: Backtest) -> None:
    bins = found.scores
    widths = [one.high - one.low or 1.0 for one in bins]
    axes.bar([one.low for one in bins], [one.findings for one in bins], width=widths, align="edge", color=_ALERTS)
    if bins and bins[0].low > 0 and FAR <= bins[-1].high / bins[0].low < math.inf:
        axes.set_xscale("log")
    for level, limit in found.limits.items():
        axes.axvline(limit, color=_LEVELS[level], lw=1.2, ls=(0, (5, 3)), label=f"{level} above {limit:g}")
    axes.set_title("scores of the findings", color=_INK, fontsize=9, loc="left")
    if found.limits:
        axes.legend(fontsize=8, frameon=False)


def _named(entity: Mapping[str, str]) -> str:
    text = printable(", ".join(entity.values())) or "(empty)"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _page(found: Backtest, picture: bytes) -> str:
    rows = "".join(
        f"<tr><td>{one.day}<td>{one.events:,}<td>{one.findings:,}<td>{one.urgent:,}<td>{one.alerts:,}"
        for one in found.days
    )
    title = html.escape(_title(found))
    data = base64.b64encode(picture).decode()
    head = "<tr><th>day<th>events<th>findings<th>urgent<th>alerts"
    return _HTML.format(title=title, picture=data, rows=f"{head}{rows}")
