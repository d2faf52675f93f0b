"""`tocsin backfill`: run detectors over days of history; the plan first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, note, table
from tocsin.model.durations import span

if TYPE_CHECKING:
    from tocsin.backfill.backfill_status import BackfillDay
    from tocsin.backfill.spark.backfill_run import BackfillOutcome

_DAY = ["%Y-%m-%d"]
_Detectors = Annotated[list[str], typer.Option("--detector", help="Its name; may be repeated, for one source.")]
_From = Annotated[datetime | None, typer.Option("--from", formats=_DAY, metavar="DAY", help="The first day, UTC.")]
_To = Annotated[datetime | None, typer.Option("--to", formats=_DAY, metavar="DAY", help="The last day, UTC.")]
_Again = Annotated[bool, typer.Option("--again", help="Also rerun days that are up to date.")]
_Plan = Annotated[bool, typer.Option("--plan", help="Only show the plan.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def backfill(
    detector: _Detectors,
    first: _From = None,
    last: _To = None,
    again: _Again = False,
    plan: _Plan = False,
    yes: _Yes = False,
    json: options.Json = False,
) -> None:
    """Run detectors over days of history and publish what they find, day by day. Takes a Spark session.

    Days need it that were never run, that failed, that another version of the detector has run, or that were sealed
    again since. What is interrupted goes on where it was when it is run again. Nobody is paged for what is found. With
    --json it shows the plan and stops. Exit code 1 when a day could not be published, or when one that was asked for
    with --from or --to is blocked.
    """
    from tocsin.backfill.backfill_status import BackfillState, list_days
    from tocsin.project.settings import load_settings

    settings = load_settings()
    days = list_days(settings, detector, first and first.date(), last and last.date())
    wanted = (BackfillState.DUE, BackfillState.DONE, BackfillState.HELD) if again else (BackfillState.DUE,)
    chosen = [one for one in days if one.state in wanted]
    if json:
        as_json(days)
        return
    _show(days, chosen)
    if plan:
        return
    if chosen and not yes:
        typer.confirm("Run it?", abort=True)
    from tocsin.backfill.spark.backfill_run import backfill_chosen

    outcomes = backfill_chosen(settings, [(one.detector, one.day) for one in chosen])
    is_lost = any([_tell(outcome) for outcome in outcomes])  # a list: tell all outcomes, not up to the first loss
    if is_lost or ((first or last) and any(one.state is BackfillState.BLOCKED for one in days)):
        raise typer.Exit(1)


def _show(days: list[BackfillDay], chosen: list[BackfillDay]) -> None:
    from tocsin.backfill.backfill_status import START_CPU_SECONDS, BackfillState

    waiting = [one for one in days if one.state in (BackfillState.BLOCKED, BackfillState.HELD)]
    for said in _together((one.detector, one.day, f"{one.state}: {one.why}") for one in waiting):
        note(said, style="yellow")
    rows = []
    for name in dict.fromkeys(one.detector for one in days):
        own = [one for one in chosen if one.detector == name]
        why = Counter(one.why or one.state.value for one in own)
        seconds = sum(one.expected_cpu_seconds for one in own)
        reasons = "; ".join(f"{counted(count, 'day')} {reason}" for reason, count in why.items())
        events = sum(one.events or 0 for one in own)
        ends = f"{own[0].day} to {own[-1].day}" if own else None
        rows.append((name, len(own), ends, f"{events:,}", f"{seconds:,.0f}", reasons or "nothing to do"))
    columns = ("DETECTOR", "DAYS", "FROM AND TO", "EVENTS", "CPU SECONDS", "WHY")
    table(columns, rows, empty="no day is published yet; run: tocsin history land, then tocsin history seal")
    if chosen:
        cores = min(2, os.cpu_count() or 1)
        spent = sum(one.expected_cpu_seconds for one in chosen) + START_CPU_SECONDS
        line(f"expected: {spent:,.0f} CPU-seconds, {span(spent / cores)} on {counted(cores, 'core')}")


def _tell(outcome: BackfillOutcome) -> bool:
    """Say what became of each day; returns whether one is not published."""
    for (name, day), one in outcome.published.items():
        line(f"{name} {day}: {counted(one.findings, 'finding')}, verdict {one.severity}")
    lost = {**outcome.held, **outcome.failed, **outcome.blocked}
    for said in _together((name, day, why) for (name, day), why in lost.items()):
        note(said, style="red")
    return bool(lost)


def _together(days: Iterable[tuple[str, date, str]]) -> Iterator[str]:
    """A sentence for each detector and reason, of all its days: one that holds for sixty is told once."""
    found: dict[tuple[str, str], list[date]] = {}
    for name, day, why in days:
        found.setdefault((name, why), []).append(day)
    for (name, why), own in found.items():
        which = str(own[0]) if len(own) == 1 else f"{min(own)} to {max(own)} ({counted(len(own), 'day')})"
        yield f"{name} {which}: {why}"
