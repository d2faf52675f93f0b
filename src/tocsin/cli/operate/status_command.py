"""`tocsin status`: what the jobs do and why, how far behind they are, and what they take."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, console, drawn_table, line, note, table, utc, write_list
from tocsin.cli.project import load_settings, reading_alerts
from tocsin.declare.model.durations import span
from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.sizes import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tocsin.alerts.store.alert_rows import JobUsage
    from tocsin.declare.settings import Settings
    from tocsin.supervise.job_status import JobStatus
    from tocsin.web.metrics.reported_jobs import StatusReading

_WATCH_SECONDS, _KAFKA_SECONDS = 2.0, 2.0
_COLUMNS = ("JOB", "HEALTH", "MODE", "LAG", "BEHIND", "LATE", "MEMORY", "CPU", "LAST FINDING", "REPORT")
_Job = Annotated[str | None, typer.Argument(help="Only this job, such as ingest:logins or notifier.")]
_Watch = Annotated[
    bool, typer.Option("--watch", help="On a terminal: look again each 2 s until Ctrl-C. Elsewhere: look once.")
]
_Usage = Annotated[
    int | None,
    typer.Option(
        "--usage",
        metavar="DAYS",
        min=1,
        max=3650,
        help="List instead what each job used on each of so many days (UTC) up to today, the most CPU first; a core "
        "kept busy is marked.",
    ),
]


def status(job: _Job = None, watch: _Watch = False, usage: _Usage = None, json: options.Json = False) -> None:
    """Show each job, and each server of a stack here: health, mode and why, lag, memory and CPU, last finding.

    Exit code 1 when a job that should run does not or has waited for ten minutes, when the supervisor has not looked at
    the jobs for two, and, without JOB, when the quality gate refuses a day.
    """
    from tocsin.dev.control import servers
    from tocsin.platform.kafka.reporter import read_reports
    from tocsin.supervise.job_status import Severity
    from tocsin.web.metrics.reported_jobs import StatusReader

    if usage is not None:
        options.refuse_beside("with --usage", watch=watch)
        _list_usage(usage, job, json=json)
        return
    settings = load_settings()
    if watch and not json and console().is_terminal:
        _watch(settings, job)
        return
    reader = StatusReader(settings, lambda: read_reports(settings))
    reading = reader.read(job, with_findings=True)
    shown = [*([] if job else servers(settings)), *reading.jobs]
    remarks = [*_addresses(settings, job), *_remarks(reading), *_refusals(settings, job)]
    if json:
        as_json(shown)
    else:
        table(_COLUMNS, map(_row, shown), empty="no jobs: sources/ and detectors/ are empty")
        for text, style in _sentences(shown):
            line(text, style=style)
    for text, style in remarks:
        if style or not json:
            note(text, style=style)
    if any(status.fault for status in shown):
        note("all faults of broken files: tocsin check")
    problems = [status for status in shown if status.standing is Severity.PROBLEM]
    logged = next((status.job for status in problems if not status.fault), None)
    if logged is not None:
        note(f"more on {logged}: tocsin dev logs {logged}")
    if problems or any(style == "red" for _, style in remarks):
        raise typer.Exit(1)


def _watch(settings: Settings, job: str | None) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from tocsin.dev.control import servers
    from tocsin.platform.kafka.reporter import ReportReader
    from tocsin.web.metrics.reported_jobs import StatusReader

    with (
        closing(ReportReader(settings, timeout_seconds=_KAFKA_SECONDS)) as reports,
        Live(console=console(), screen=True, auto_refresh=False) as live,
        suppress(KeyboardInterrupt),
    ):
        reader = StatusReader(settings, reports.latest)
        while True:
            reading = reader.read(job, with_findings=True)
            shown = [*([] if job else servers(settings)), *reading.jobs]
            told = [*_remarks(reading), *_refusals(settings, job), *_sentences(shown)]
            lines = [Text(printable(text), style=style) for text, style in told]
            drawn = drawn_table(_COLUMNS, map(_row, shown))
            live.update(Group(Text(utc(datetime.now(UTC)), style="bold"), drawn, *lines), refresh=True)
            time.sleep(_WATCH_SECONDS)


def _remarks(reading: StatusReading) -> Iterator[tuple[str, str]]:
    from tocsin.supervise.job_status import unsupervised_reason

    if reading.findings_unknown:
        yield f"{reading.findings_unknown}; last findings unknown", "yellow"
    if reading.kafka_away:
        yield f"{reading.kafka_away}; showing the last heartbeats of jobs on this machine", "yellow"
    looked = max((status.supervised_at for status in reading.jobs if status.supervised_at is not None), default=None)
    seconds = None if looked is None else (datetime.now(UTC) - looked).total_seconds()
    unsupervised = unsupervised_reason(seconds)
    if unsupervised is not None:
        yield f"{unsupervised}; what is shown of restarts is as of {utc(looked)}", "red"
    elif seconds is not None:
        yield f"the supervisor looked {span(seconds)} ago", ""


def _addresses(settings: Settings, job: str | None) -> Iterator[tuple[str, str]]:
    from tocsin.dev.control import launcher_pid
    from tocsin.dev.state_folder import read_running

    running = None if job or launcher_pid(settings) is None else read_running(settings.state)
    if running is not None:
        yield f"mails: {running.mail_url}", ""
        if running.airflow_url:
            yield f"Airflow: {running.airflow_url}", ""


def _refusals(settings: Settings, job: str | None) -> Iterator[tuple[str, str]]:
    from tocsin.declare.catalog import read_catalog
    from tocsin.history.day_rows import DayRows
    from tocsin.history.seal_outcomes import refusal

    for source in () if job else read_catalog(settings.project).sources:
        try:
            days = DayRows(settings, source).refused()
        except (TocsinError, OSError) as error:
            yield str(error), "red"
            return
        if days:
            yield refusal(source, days), "red"


def _sentences(shown: Sequence[JobStatus]) -> Iterator[tuple[str, str]]:
    for status in shown:
        if status.reason:
            word = "" if status.health == status.state else f"{status.health}: "
            yield f"{status.job}: {word}{status.reason}", "red" if status.standing == "problem" else ""
        if status.cause is not None and str(status.cause) not in status.reason:
            yield f"{status.job}: failed before, at first: {status.cause}", "yellow"


def _row(job: JobStatus) -> tuple[object, ...]:
    if job.age_seconds is None:
        return (job.job, job.health)
    behind = (f"{job.lag_records:,}", span(job.lag_seconds)) if job.has_lag else ("", "")
    lag = (*behind, f"{job.rows_dropped_late:,}")
    uptime = (job.at - job.started_at).total_seconds() if job.started_at else 0.0
    taken = (f"{job.rss_bytes / 1e6:,.0f} MB", f"{job.cpu_seconds / uptime:.0%}" if uptime > 0 else "")
    return (job.job, job.health, job.mode, *lag, *taken, utc(job.last_finding_at), f"{span(job.age_seconds)} ago")


def _list_usage(days: int, job: str | None, *, json: bool) -> None:
    from tocsin.alerts.store.queries import list_usage

    with reading_alerts() as database:
        since = datetime.now(UTC).date() - timedelta(days=days - 1)
        found = [usage for usage in list_usage(database, since) if job in (None, usage.job)]
    columns = ("DAY", "JOB", "RAN", "CPU", "CORES", "MEMORY", "IN", "OUT", "FINDINGS", "RESTARTS", "NOTE")
    empty = f"no usage{f' of {job}' if job else ''} recorded on these days; the notifier records it"
    write_list(found, columns, _usage_row, json=json, empty=empty)


def _usage_row(usage: JobUsage) -> tuple[object, ...]:
    from tocsin.declare.model.job_report import BUSY_CORES

    taken = (span(usage.seconds), span(usage.cpu_seconds), f"{usage.cores:.2f}", f"{usage.rss_bytes / 1e6:,.0f} MB")
    done = (f"{usage.rows_in:,}", f"{usage.rows_out:,}", f"{usage.findings:,}", usage.restarts)
    return (usage.day, usage.job, *taken, *done, "keeps a core busy" if usage.cores >= BUSY_CORES else None)
