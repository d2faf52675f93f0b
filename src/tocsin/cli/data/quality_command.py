"""`tocsin quality`: show the verdicts of the gates on each day, and the figures behind them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import line, table, write, write_list
from tocsin.cli.project import load_settings
from tocsin.declare.model.errors import nearest

if TYPE_CHECKING:
    from tocsin.quality.verdict import Check, DaySummary, Verdict
    from tocsin.quality.verdict_files import Records, VerdictRecord

_Subject = Annotated[
    str | None, typer.Argument(metavar="[SOURCE]", help="A source, or findings.NAME for a detector's findings.")
]
_Day = Annotated[str | None, typer.Argument(metavar="[DAY]", help="Such as 2026-01-31; default: the latest.")]
_Figures = Annotated[bool, typer.Option("--figures", help="Show figures of the latest days, not checks of one.")]
_Metric = Annotated[str | None, typer.Option(metavar="FIGURE", help="Only this one, such as rows.")]
_Days = Annotated[
    int | None, typer.Option("--days", min=1, max=3650, help="So many judged days; default: 14, of figures 1.")
]


def quality(
    source: _Subject = None,
    day: _Day = None,
    figures: _Figures = False,
    metric: _Metric = None,
    days: _Days = None,
    json: options.Json = False,
) -> None:
    """List the judged days, the latest first: the verdict on each, and which checks failed.

    Of one SOURCE show each check of a day (what was observed, what is allowed, what a failure means) and where its page
    is; with --figures the figures behind them.
    """
    from tocsin.quality.verdict_files import Records

    records = Records(load_settings().state)
    if source is None:
        options.refuse_beside("without SOURCE", figures=figures, metric=metric)
        _list(records, days or 14, json=json)
    elif figures or metric:
        options.refuse_beside("with figures", DAY=day)
        _show_figures(records, source, metric, days or 1, json=json)
    else:
        options.refuse_beside("with checks of one day", days=days)
        write(_chosen(records, source, day).verdict, partial(_show, records), json=json)


def _list(records: Records, days: int, *, json: bool) -> None:
    places = ((subject, day) for subject in records.subjects() for day in records.days(subject)[:days])
    found = [record for place in places if (record := records.latest(*place)) is not None]
    found.sort(key=lambda record: (record.verdict.day, record.verdict.subject), reverse=True)
    columns = ("DAY", "SOURCE", "VERDICT", "CHECKS", "FAILED")
    summaries = [record.verdict.summary for record in found]
    write_list(summaries, columns, _summary_row, json=json, empty="no day has been judged yet")


def _summary_row(summary: DaySummary) -> tuple[object, ...]:
    return (summary.day, summary.subject, summary.severity, summary.checks, ", ".join(summary.failed))


def _show(records: Records, verdict: Verdict) -> None:
    line(verdict.text, style={"pass": "green", "warning": "yellow"}.get(verdict.severity, "red"))
    rows = (_row(check) for check in sorted(verdict.checks, key=lambda check: check.passed))
    table(("", "RULE", "ABOUT", "OBSERVED", "ALLOWED"), rows, empty="no rules")
    for check in verdict.failed:
        if check.samples:
            line(f"{check.name}, for example: {', '.join(check.samples)}")
    if verdict.report:
        line(f"page: {records.state / verdict.report}")


def _show_figures(records: Records, source: str, metric: str | None, days: int, *, json: bool) -> None:
    from tocsin.quality.suites.suite import shown

    chosen = records.days(records.check_subject(source))[:days]
    profiles = [found.profile for day in chosen if (found := records.latest(source, day)) and found.profile]
    names = {name for profile in profiles for name in profile.figures}
    if metric is not None and metric not in names:
        near = nearest(metric, names)
        raise typer.BadParameter(f"no figure '{metric}'" + (f"; did you mean '{near}'?" if near else ""))
    rows = [row for profile in profiles for row in profile.rows() if metric in (None, row.name)]
    figures = ("DAY", "FIGURE", "VALUE")
    write_list(rows, figures, lambda row: (row.day, row.name, shown(row.value)), json=json, empty="no figures")


def _chosen(records: Records, subject: str, text: str | None) -> VerdictRecord:
    try:
        day = None if text is None else date.fromisoformat(text)
    except ValueError:
        example = datetime.now(UTC).date()
        raise typer.BadParameter(f"'{text}' is not a day; write it as in {example}", param_hint="'DAY'") from None
    return records.of_day(subject, day)


def _row(check: Check) -> tuple[object, ...]:
    standing = "not judged" if not check.judged else "ok" if check.passed else check.severity
    return (standing, check.name, check.about, check.observed, check.limit)
