"""The figures of a profile as the page of its day draws them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import Any

from tocsin.declare.model.source import Source
from tocsin.quality.data_drift import drift_checks, usual_figures
from tocsin.quality.day_profile import Profile
from tocsin.quality.suites.suite import shown

_WIDTH, _HEIGHT, _BASE = 1000, 172, 152
_SPARK = (132, 28)


def tiles(profile: Profile, before: Sequence[Profile]) -> list[dict[str, str]]:
    """The few figures that one looks at first: label, value, note and tone each."""
    rows, known = profile.number("rows") or 0, [one.number("rows") or 0.0 for one in before]
    usual = f"usually {shown(median(known))}" if known else "nothing to compare with yet"
    hours, late = int(profile.number("hours") or 0), profile.number("late")
    refused = profile.number("quarantined")
    lost, last = profile.number("missing_offsets"), profile.figures.get("last_event")
    return [
        _tile("Events", shown(int(rows)), usual, "" if rows else "critical"),
        _tile("Hours with events", f"{hours} of 24", f"the last at {last:%H:%M:%S}" if isinstance(last, datetime)
              else "no event", "" if hours == 24 else "warning"),
        _tile("Duplicates dropped", _count(profile, "duplicates"), _percent(profile.number("duplicate_ratio"),
              "of landed events"), ""),
        _tile("Late", _count(profile, "late"), "not counted by the stream" if late else "none", ""),
        _tile("In quarantine", "unknown" if refused is None else shown(int(refused)),
              _percent(profile.number("quarantine_ratio"), "of all records"), ""),
        _tile("Offsets missing", _count(profile, "missing_offsets"), "never landed" if lost else "none lost",
              "critical" if lost else ""),
    ]  # fmt: skip


def by_hour(profile: Profile, before: Sequence[Profile]) -> dict[str, Any]:
    """Bars of the 24 hours, in a box of 1000 by 172, with a mark at what is usual."""
    counts = profile.by_hour
    usual = [median(one.by_hour[hour] for one in before) if before else None for hour in range(24)]
    top = max([*counts, *(value for value in usual if value is not None), 1])
    step, width = _WIDTH / 24, _WIDTH / 24 - 12
    bars = []
    for hour, (count, mark) in enumerate(zip(counts, usual, strict=True)):
        tall = round(count / top * (_BASE - 8), 1)
        bars.append(
            {
                "hour": f"{hour:02d}",
                "count": shown(count),
                "usual": "" if mark is None else shown(mark),
                "none": not count,
                "x": round(hour * step + 6, 1),
                "width": round(width, 1),
                "y": round(_BASE - max(tall, 2), 1),
                "height": max(tall, 2),
                "mark": None if mark is None else round(_BASE - mark / top * (_BASE - 8), 1),
            }
        )
    return {"bars": bars, "height": _HEIGHT, "base": _BASE, "known": len(before), "empty": not all(counts)}


def drift(profile: Profile, before: Sequence[Profile]) -> list[dict[str, Any]]:
    """Rows of the figures in which drift is looked for, with a small line of the weeks before."""
    usual = usual_figures(before)
    rows = []
    for check in drift_checks(profile, usual):
        name = check.about
        if check.name != f"usual {name}":
            continue
        of, today = usual[name], profile.number(name)
        past = [number for one in reversed(before) if (number := one.number(name)) is not None]
        rows.append(
            {
                "name": name,
                "tone": "pass" if check.passed else str(check.severity),
                "today": shown(today),
                "middle": shown(of.middle),
                "low": shown(of.low),
                "high": shown(of.high),
                "spark": _spark(past if today is None else [*past, today], of.low, of.high),
            }
        )
    return rows


def columns(profile: Profile, source: Source) -> list[dict[str, str]]:
    """One row for each declared column."""
    return [
        {
            "name": column,
            "kind": kind,
            "missing": _percent(profile.number(f"{column}.null_ratio"), "") or "nothing",
            "distinct": shown(profile.figures[f"{column}.distinct"]) if f"{column}.distinct" in profile.figures else "",
            "range": _range(profile, column),
        }
        for column, kind in source.columns.items()
        if f"{column}.nulls" in profile.figures
    ]


def _range(profile: Profile, column: str) -> str:
    def of(name: str) -> str:
        return shown(profile.figures.get(f"{column}.{name}"))

    if profile.number(f"{column}.mean") is not None:
        return f"{of('minimum')} to {of('maximum')}, mean {of('mean')}, median {of('median')}, 95 % below {of('p95')}"
    if profile.number(f"{column}.longest") is not None:
        return f"{of('longest')} bytes at most"
    share = profile.number(f"{column}.true_ratio")
    return "" if share is None else f"{share:.1%} true"


def _spark(values: Sequence[float], low: float, high: float) -> dict[str, Any]:
    """A line in a box of 132 by 28; the last value is the dot."""
    width, height = _SPARK
    bottom, top = min([low, *values]), max([high, *values])
    room = (top - bottom) or 1.0

    def place(value: float) -> float:
        return round(4 + (top - value) / room * (height - 8), 1)

    step = (width - 8) / max(len(values) - 1, 1)
    points = [(round(4 + number * step, 1), place(value)) for number, value in enumerate(values)] or [(4.0, 14.0)]
    return {
        "points": " ".join(f"{x},{y}" for x, y in points),
        "x": points[-1][0],
        "y": points[-1][1],
        "top": place(high),
        "room": max(round(place(low) - place(high), 1), 1),
    }


def _tile(label: str, value: str, note: str, tone: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note, "tone": tone}


def _count(profile: Profile, name: str) -> str:
    return shown(int(profile.number(name) or 0))


def _percent(share: float | None, of: str) -> str:
    return "" if share is None else f"{share:.2%} {of}".strip()
