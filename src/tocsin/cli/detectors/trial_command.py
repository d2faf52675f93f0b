"""`tocsin backtest`: run a detector on history and keep nothing."""

from __future__ import annotations

from datetime import datetime, time
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.detectors.backfill_command import together
from tocsin.cli.output import as_json, counted, line, note, table, utc
from tocsin.declare.model.durations import span
from tocsin.declare.model.finding_text import number

if TYPE_CHECKING:
    from tocsin.history.backfill.trial import DayChoice
    from tocsin.history.backfill.trial_report import Backtest, DayDiff, Diff

_SHOWN = 40
_DAY = ["%Y-%m-%d"]
_Detector = Annotated[str, typer.Option("--detector", help="Its name; in any stage.")]
_Days = Annotated[
    int | None,
    typer.Option("--days", min=1, max=3650, help="Without --from and --to: so many of the latest; default: 60, or 7."),
]
_From = Annotated[datetime | None, typer.Option("--from", formats=_DAY, metavar="DAY", help="The first day, UTC.")]
_To = Annotated[datetime | None, typer.Option("--to", formats=_DAY, metavar="DAY", help="The last day, UTC.")]
_Today = Annotated[
    bool, typer.Option("--today", help="Also the current day, from Kafka, up to the last window that is closed.")
]
_Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="VERSION|FILE",
        help="Compare with this draft as the version to come, with this version as the one before, or with `previous`: "
        "the one that ran before. Exit code 1 when they differ.",
    ),
]


def backtest(
    detector: _Detector,
    against: _Against = None,
    days: _Days = None,
    first: _From = None,
    last: _To = None,
    today: _Today = False,
    json: options.Json = False,
) -> None:
    """Show what a detector finds on days of history: findings and alerts per day, top entities, cost. Stores nothing.

    Alerts are counted as if it were live. With --against show the findings that two versions do not share instead.
    Starts Spark.
    """
    from tocsin.alerts.alert_policy import alerts_by_day
    from tocsin.declare.settings import load_settings
    from tocsin.history.backfill.trial import backtest as run_backtest
    from tocsin.history.backfill.trial import compare_versions

    settings, choice = load_settings(), _choice(days or (7 if against else 60), first, last, today)
    if against is None:
        found = run_backtest(settings, detector, choice, alerts_by_day)
        as_json(found) if json else _show(found)
        return
    result = compare_versions(settings, detector, None if against == "previous" else against, choice)
    as_json(result) if json else _show_diff(result)
    if result.changes:
        raise typer.Exit(1)


def _choice(days: int, first: datetime | None, last: datetime | None, today: bool) -> DayChoice:
    from tocsin.history.backfill.trial import DayChoice

    return DayChoice(first=first and first.date(), last=last and last.date(), most=days, today=today)


def _show(found: Backtest) -> None:
    _tell_days(found)
    rows = [(day.day, f"{day.events:,}", day.findings, day.urgent, day.alerts) for day in found.days]
    table(("DAY", "EVENTS", "FINDINGS", "URGENT", "ALERTS"), rows, empty="no day")
    line("")
    top = [(_entity(entity.entity), entity.findings, number(entity.highest_score)) for entity in found.top]
    table(("ENTITY", "FINDINGS", "HIGHEST SCORE"), top, empty="no findings")
    line("")
    events = sum(day.events for day in found.days)
    sums = [sum(getattr(day, name) for day in found.days) for name in ("findings", "alerts")]
    line(f"{counted(sums[0], 'finding')} and {counted(sums[1], 'alert')} in {counted(len(found.days), 'day')}")
    line(f"{counted(events, 'event')} read in {span(found.seconds)}, {found.cpu_seconds:,.1f} CPU-seconds")


def _show_diff(found: Diff) -> None:
    _tell_days(found)
    rows = [
        (utc(change.window_start), _entity(change.entity), change.before, change.after)
        for change in found.changes[:_SHOWN]
    ]
    columns = ("WINDOW", "ENTITY", f"BEFORE ({found.before})", f"AFTER ({found.after})")
    table(columns, rows, empty=f"both versions find the same on {counted(found.days, 'day')}")
    if len(found.changes) > _SHOWN:
        line(f"and {len(found.changes) - _SHOWN:,} more; --json has all")
    if found.changes:
        line("")
        days = [(day.day, *_counts(day)) for day in found.by_day]
        table(("DAY", "ALIKE", "GONE", "NEW", "OTHER LEVEL", "OTHER SCORE"), days, empty="")
    same, gone, new, level, score = (sum(column) for column in zip(*map(_counts, found.by_day), strict=True))
    line(f"{counted(found.days, 'day')}: {same:,} alike, {gone:,} gone, {new:,} new, {level:,} with another level, "
         f"{score:,} with another score alone")  # fmt: skip


def _counts(diff: DayDiff) -> tuple[int, int, int, int, int]:
    return (diff.same, diff.gone, diff.new, diff.other_level, diff.other_score)


def _tell_days(found: Backtest | Diff) -> None:
    """Say which days were left out, and which part of the current day is among them."""
    for sentence in together(("left out", day, why) for day, why in found.left_out.items()):
        note(sentence, style="yellow")
    if (part := found.open) is not None:
        since = f"from {utc(part.since)} " if part.since.time() != time.min else ""
        line(f"{part.day}: from Kafka, {since}up to {utc(part.until)}; later windows are not closed yet")


def _entity(entity: dict[str, str]) -> str:
    return ", ".join(entity.values())
