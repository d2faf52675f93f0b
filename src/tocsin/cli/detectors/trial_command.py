"""`tocsin backtest` and `tocsin diff`: run a detector on history and keep nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, number, table, utc
from tocsin.model.durations import span

if TYPE_CHECKING:
    from tocsin.backfill.trial_report import Backtest, Diff

_SHOWN = 40
_Detector = Annotated[str, typer.Option("--detector", help="Its name; in any stage.")]
_Days = Annotated[
    int, typer.Option("--days", min=1, max=3650, help="Run it on this many of the latest published days.")
]
_With = Annotated[
    str | None,
    typer.Option(
        "--with", metavar="VERSION|FILE", help="Compare with this file; default: the version that ran before."
    ),
]


def backtest(detector: _Detector, days: _Days = 60, json: options.Json = False) -> None:
    """Show what a detector finds on days of history: findings and alerts per day, top entities, cost. Stores nothing.

    Alerts are counted as if it were live. Starts Spark.
    """
    from tocsin.alerts.alert_policy import alerts_by_day
    from tocsin.backfill.trial import backtest as run_backtest
    from tocsin.project.settings import load_settings

    found = run_backtest(load_settings(), detector, days, alerts_by_day)
    if json:
        as_json(found)
    else:
        _show(found)


def diff(detector: _Detector, other: _With = None, days: _Days = 7, json: options.Json = False) -> None:
    """Compare the findings of a detector's file on history with those of another version. Stores nothing.

    Exit code 1 when they differ. Starts Spark.
    """
    from tocsin.backfill.trial import compare_versions
    from tocsin.project.settings import load_settings

    result = compare_versions(load_settings(), detector, other, days)
    if json:
        as_json(result)
    else:
        _show_diff(result)
    if result.changes:
        raise typer.Exit(1)


def _show(found: Backtest) -> None:
    rows = [(one.day, f"{one.events:,}", one.findings, one.urgent, one.alerts) for one in found.days]
    table(("DAY", "EVENTS", "FINDINGS", "URGENT", "ALERTS"), rows, empty="no day")
    line("")
    top = [(_entity(one.entity), one.findings, number(one.highest_score)) for one in found.top]
    table(("ENTITY", "FINDINGS", "HIGHEST SCORE"), top, empty="no findings")
    line("")
    events = sum(one.events for one in found.days)
    sums = [sum(getattr(one, name) for one in found.days) for name in ("findings", "alerts")]
    line(f"{counted(sums[0], 'finding')} and {counted(sums[1], 'alert')} in {counted(len(found.days), 'day')}")
    line(f"{counted(events, 'event')} read in {span(found.seconds)}, {found.cpu_seconds:,.1f} CPU-seconds")


def _show_diff(found: Diff) -> None:
    rows = [(utc(one.window_start), _entity(one.entity), one.before, one.after) for one in found.changes[:_SHOWN]]
    columns = ("WINDOW", "ENTITY", f"BEFORE ({found.before})", f"AFTER ({found.after})")
    table(columns, rows, empty=f"both versions find the same on {counted(found.days, 'day')}")
    if len(found.changes) > _SHOWN:
        line(f"and {len(found.changes) - _SHOWN:,} more; --json has all")
    changed = len(found.changes) - found.only_before - found.only_after
    line(f"{counted(found.days, 'day')}: {found.same:,} alike, {found.only_before:,} gone, {found.only_after:,} new, "
         f"{changed:,} with another level or score")  # fmt: skip


def _entity(entity: dict[str, str]) -> str:
    return ", ".join(entity.values())
