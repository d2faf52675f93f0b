"""`tocsin backfill`: run detectors over days of history; the plan first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, note, progress, table
from tocsin.cli.project import load_settings
from tocsin.declare.model.durations import days_text, span
from tocsin.platform.process_exit import ExitCode

if TYPE_CHECKING:
    from tocsin.declare.settings import Settings
    from tocsin.history.backfill.backfill_status import BackfillDay
    from tocsin.history.backfill.spark.backfill_run import BackfillOutcome

_Detectors = Annotated[list[str], typer.Option("--detector", help="Its name; may be repeated, for one source.")]
_Again = Annotated[bool, typer.Option("--again", help="Also rerun days that are up to date.")]
_Plan = Annotated[bool, typer.Option("--plan", help="Only show the plan.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def backfill(
    detector: _Detectors,
    first: options.FirstDay = None,
    last: options.LastDay = None,
    again: _Again = False,
    plan: _Plan = False,
    yes: _Yes = False,
    json: options.Json = False,
) -> None:
    """Run detectors over days of history and publish their findings, day by day. Starts Spark.

    A day needs a run if it never ran, failed, ran with another version of the detector, or was sealed again since.
    An interrupted backfill resumes where it stopped. It pages nobody. With --json it only shows the plan. Exit code 1
    when a day was not published, or a day requested with --from or --to is blocked.
    """
    from tocsin.history.backfill.backfill_status import BackfillState, list_days
    from tocsin.spark.batch_session import shared_session

    settings = load_settings()
    days = list_days(settings, detector, first and first.date(), last and last.date())
    wanted = (BackfillState.DUE, BackfillState.DONE, BackfillState.HELD) if again else (BackfillState.DUE,)
    chosen = [day for day in days if day.state in wanted]
    if json:
        as_json(days)
        return
    _show(days, chosen)
    if plan:
        return
    if chosen and not yes:
        typer.confirm("Run it?", abort=True)
    with shared_session():  # detectors with different days, too
        is_good = _run(settings, chosen)
    if not is_good or ((first or last) and any(day.state is BackfillState.BLOCKED for day in days)):
        raise typer.Exit(1)


def run_due(settings: Settings, detectors: list[str]) -> bool:
    """Run all days of `detectors` that need it, and tell the outcome; return whether each is published."""
    from tocsin.history.backfill.backfill_status import BackfillState, list_days

    days = list_days(settings, detectors) if detectors else []
    return _run(settings, [day for day in days if day.state is BackfillState.DUE])


def _run(settings: Settings, chosen: Iterable[BackfillDay]) -> bool:
    from tocsin.history.backfill.spark.backfill_run import backfill_chosen
    from tocsin.platform.environments import python_for, run_by

    days: dict[str, list[date]] = {}
    for day in chosen:
        days.setdefault(day.detector, []).append(day.day)
    is_good = True
    for name, python in [(name, python) for name in days if (python := python_for(settings, name))]:
        arguments = ["-m", "tocsin.job", "backfill", *(f"--day={day}" for day in days.pop(name)), name]
        is_good &= run_by(python, arguments) in (ExitCode.OK, ExitCode.WARNED)
    outcomes = backfill_chosen(settings, [(name, day) for name, own in days.items() for day in own])
    with progress():
        # A list: tell all outcomes, not up to the first loss.
        return not any([_tell(outcome) for outcome in outcomes]) and is_good


def _show(days: list[BackfillDay], chosen: list[BackfillDay]) -> None:
    from tocsin.history.backfill.backfill_status import START_CPU_SECONDS, BackfillState

    waiting = [day for day in days if day.state in (BackfillState.BLOCKED, BackfillState.HELD)]
    for sentence in together((day.detector, day.day, f"{day.state}: {day.why}") for day in waiting):
        note(sentence, style="yellow")
    rows = []
    for name in dict.fromkeys(day.detector for day in days):
        own = [day for day in chosen if day.detector == name]
        why = Counter(day.why or day.state.value for day in own)
        seconds = sum(day.expected_cpu_seconds for day in own)
        reasons = "; ".join(f"{counted(count, 'day')} {reason}" for reason, count in why.items())
        events = sum(day.events or 0 for day in own)
        ends = f"{own[0].day} to {own[-1].day}" if own else None
        rows.append((name, len(own), ends, f"{events:,}", f"{seconds:,.0f}", reasons or "nothing to do"))
    columns = ("DETECTOR", "DAYS", "FROM AND TO", "EVENTS", "CPU SECONDS", "WHY")
    table(columns, rows, empty="no day is published yet; run: tocsin history seal --source NAME")
    if chosen:
        cores = min(2, os.cpu_count() or 1)
        spent = sum(day.expected_cpu_seconds for day in chosen) + START_CPU_SECONDS
        line(f"expected: {spent:,.0f} CPU-seconds, {span(spent / cores)} on {counted(cores, 'core')}")


def _tell(outcome: BackfillOutcome) -> bool:
    for (name, day), published in outcome.published.items():
        line(f"{name} {day}: {counted(published.findings, 'finding')}, verdict {published.severity}")
    lost = {**outcome.held, **outcome.failed, **outcome.blocked}
    for sentence in together((name, day, why) for (name, day), why in lost.items()):
        note(sentence, style="red")
    return bool(lost)


def together(days: Iterable[tuple[str, date, str]]) -> Iterator[str]:
    """Summarise the blocked days: one sentence for each detector and reason, however many days it is about."""
    found: dict[tuple[str, str], list[date]] = {}
    for name, day, why in days:
        found.setdefault((name, why), []).append(day)
    for (name, why), own in found.items():
        yield f"{name} {days_text(own)}: {why}"
