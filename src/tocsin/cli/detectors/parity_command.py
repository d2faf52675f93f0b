"""`tocsin parity`: compare what the stream and the backfill of a detector have found on a day."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import counted, line, table, utc, write
from tocsin.cli.project import load_settings
from tocsin.declare.model.sizes import entity_text, score_text

if TYPE_CHECKING:
    from tocsin.history.backfill.parity.comparison import Difference, ReportedFinding
    from tocsin.history.backfill.parity.parity_report import ParityReport

_Detector = Annotated[str, typer.Option("--detector", help="Its name.")]
_Day = Annotated[datetime | None, options.day("--day", "UTC; default: the latest backfilled day.")]
_Today = Annotated[
    bool, typer.Option("--today", help="The closed windows of the current day, run over its events in Kafka.")
]


def parity(detector: _Detector, day: _Day = None, today: _Today = False, json: options.Json = False) -> None:
    """Compare a detector's findings by stream and by backfill on a day, with a reason for each difference.

    Starts Spark for --today, and where a reason needs a proof. Exit code 1 when a difference is unexplained.
    """
    from tocsin.alerts.store.queries import streamed_findings
    from tocsin.history.backfill.parity.day_parity import compare_day
    from tocsin.history.backfill.parity.today_parity import compare_today
    from tocsin.platform.environments import go_on_by_its_python

    if today:
        options.refuse_beside("with --today", day=day)
    settings = load_settings()
    go_on_by_its_python(settings, detector)
    streamed = partial(streamed_findings, settings, detector)
    if today or (day is not None and day.date() == datetime.now(UTC).date()):
        report = compare_today(settings, detector, streamed)
    else:
        report = compare_day(settings, detector, None if day is None else day.date(), streamed)
    write(report, _show, json=json)
    if report.unexplained:
        raise typer.Exit(1)


def _show(report: ParityReport) -> None:
    until = f" up to {utc(report.open.until)}" if report.open else ""
    head = f"{report.detector} {report.day}{until}: {report.same:,} findings agree"
    if not report.differing:
        line(f"{head}; stream and backfill agree", style="green")
        return
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.reasons.items())
    line(f"{head}, {report.differing:,} differ: {reasons}", style="red" if report.unexplained else "yellow")
    columns = ("WINDOW", "ENTITY", "WHERE", "STREAM", "BATCH", "REASON", "WHY")
    table(columns, map(_row, report.differences), empty="")
    if report.differing > len(report.differences):
        line(f"and {counted(report.differing - len(report.differences), 'more difference')}")


def _row(difference: Difference) -> tuple[object, ...]:
    where = (utc(difference.start), entity_text(difference.entity), difference.side)
    return (*where, _score(difference.stream), _score(difference.batch), difference.reason, difference.why)


def _score(finding: ReportedFinding | None) -> str | None:
    return None if finding is None else f"{finding.level} {score_text(finding.score, at_least=finding.at_least)}"
