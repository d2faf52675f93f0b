"""`tocsin quality`: show the verdicts of the gates on each day, and the figures behind them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, line, table, write_list
from tocsin.model.errors import nearest

if TYPE_CHECKING:
    from tocsin.quality.verdict import Check
    from tocsin.quality.verdict_files import Records, VerdictRecord

app = typer.Typer(help="Show the quality gate's verdicts on days, and their figures.", no_args_is_help=True)

_Subject = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A source, or findings.NAME for a detector's findings.")
]
_Of = Annotated[str | None, typer.Option("--source", help="Only of this source.")]
_Day = Annotated[str | None, typer.Argument(metavar="[DAY]", help="Such as 2026-01-31; default: the latest.")]
_Metric = Annotated[str | None, typer.Option(metavar="FIGURE", help="Such as rows or message.null_ratio.")]
_Days = Annotated[int, typer.Option("--days", min=1, max=3650, help="Show this many judged days.")]


@app.command("list")
def list_(source: _Of = None, days: _Days = 14, json: options.Json = False) -> None:
    """List the judged days, the latest first: the verdict on each, and which checks failed."""
    records = _records()
    subjects = [records.check_subject(source)] if source else records.subjects()
    found = [records.of_day(subject, day) for subject in subjects for day in records.days(subject)[:days]]
    found.sort(key=lambda one: (one.verdict.day, one.verdict.subject), reverse=True)
    shown = [one.verdict.summary for one in found]
    if json:
        as_json(shown)
    else:
        rows = ((one.day, one.subject, one.severity, one.checks, ", ".join(one.failed)) for one in shown)
        table(("DAY", "SOURCE", "VERDICT", "CHECKS", "FAILED"), rows, empty="no day has been judged yet")


@app.command()
def show(source: _Subject, day: _Day = None, json: options.Json = False) -> None:
    """Show each check of a day: what was observed, what is allowed, and what a failure means."""
    verdict = _chosen(_records(), source, day).verdict
    if json:
        as_json(verdict)
        return
    line(verdict.text, style={"pass": "green", "warning": "yellow"}.get(verdict.severity, "red"))
    rows = (_row(check) for check in sorted(verdict.checks, key=lambda check: check.passed))
    table(("", "RULE", "ABOUT", "OBSERVED", "ALLOWED"), rows, empty="no rules")
    for check in verdict.failed:
        if check.samples:
            line(f"{check.name}, for example: {', '.join(check.samples)}")


@app.command()
def profile(source: _Subject, metric: _Metric = None, days: _Days = 1, json: options.Json = False) -> None:
    """Show the figures of the latest judged days, one row for each day and figure."""
    from tocsin.quality.suites.suite import shown

    records = _records()
    chosen = records.days(records.check_subject(source))[:days]
    profiles = [one for day in chosen if (one := records.of_day(source, day).profile) is not None]
    names = {name for one in profiles for name in one.figures}
    if metric is not None and metric not in names:
        near = nearest(metric, names)
        raise typer.BadParameter(f"no figure '{metric}'" + (f"; did you mean '{near}'?" if near else ""))
    rows = [row for one in profiles for row in one.rows() if metric in (None, row.name)]
    figures = ("DAY", "FIGURE", "VALUE")
    write_list(rows, figures, lambda row: (row.day, row.name, shown(row.value)), json=json, empty="no figures")


@app.command()
def report(source: _Subject, day: _Day = None) -> None:
    """Print the path of a day's page."""
    records = _records()
    where = _chosen(records, source, day).verdict.report
    line(str(records.state / where) if where else "no page was written")


def _records() -> Records:
    from tocsin.project.settings import load_settings
    from tocsin.quality.verdict_files import Records

    return Records(load_settings().state)


def _chosen(records: Records, subject: str, text: str | None) -> VerdictRecord:
    """Read the record of the day that `text` names, of the latest if None."""
    try:
        day = None if text is None else date.fromisoformat(text)
    except ValueError:
        example = datetime.now(UTC).date()
        raise typer.BadParameter(f"'{text}' is not a day; write it as in {example}", param_hint="'DAY'") from None
    return records.of_day(subject, day)


def _row(check: Check) -> tuple[object, ...]:
    standing = "not judged" if not check.judged else "ok" if check.passed else check.severity
    return (standing, check.name, check.about, check.observed, check.limit)
