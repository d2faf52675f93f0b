"""`tocsin status` and `tocsin usage`: what the jobs do and why, how far behind they are, and what they take."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, line, note, table, utc, write_list
from tocsin.model.durations import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tocsin.metrics.reported_jobs import JobStatus
    from tocsin.project.settings import Settings

_Job = Annotated[str | None, typer.Argument(help="Only this job, such as ingest:logins or notifier.")]


def status(job: _Job = None, json: options.Json = False) -> None:
    """Show each job: health, mode and why, lag in records and seconds, memory and CPU, last finding.

    Exit code 1 when a job that should run does not or has waited for ten minutes, when the supervisor has not looked at
    the jobs for two, and, without JOB, when the quality gate refuses a day.
    """
    from tocsin.kafka.job_reports import read_reports
    from tocsin.metrics.reported_jobs import StatusReader, last_findings
    from tocsin.project.settings import load_settings
    from tocsin.supervision.health import Standing, unsupervised_reason

    settings = load_settings()
    reader = StatusReader(settings, lambda: read_reports(settings))
    found, unknown = last_findings(settings, reader.wanted(job))
    reading = reader.read(job, found)
    if unknown:
        note(f"{unknown}; last findings unknown", style="yellow")
    shown = reading.jobs
    if reading.kafka_away:
        note(f"{reading.kafka_away}; showing the last heartbeats of jobs on this machine", style="yellow")
    if json:
        as_json(shown)
    else:
        _show(shown)
    looked = max((one.supervised_at for one in shown if one.supervised_at is not None), default=None)
    looked_seconds = None if looked is None else (datetime.now(UTC) - looked).total_seconds()
    unsupervised = unsupervised_reason(looked_seconds)
    if unsupervised is not None:
        note(f"{unsupervised}; what is shown of restarts is as of {utc(looked)}", style="red")
    elif not json and looked_seconds is not None:
        note(f"the supervisor looked {span(looked_seconds)} ago")
    if any(one.fault for one in shown):
        note("all faults of broken files: tocsin check")
    problems = [one for one in shown if one.standing is Standing.PROBLEM]
    if problems:
        logged = next((one.job for one in problems if not one.fault), None)
        if logged is not None:
            note(f"more on {logged}: tocsin dev logs {logged}")
    if _tells_refused(settings, job) or problems or unsupervised is not None:
        raise typer.Exit(1)


def _tells_refused(settings: Settings, job: str | None) -> bool:
    """Tell which days the gates refuse, unless only one job is asked about; return whether there are any."""
    from tocsin.project.catalog import read_catalog
    from tocsin.quality.unsealed_days import refusal, refused_days

    sources = () if job else read_catalog(settings.project).sources
    found = {name: days for name in sources if (days := refused_days(settings.state, name))}
    for source, days in found.items():
        note(refusal(source, days), style="red")
    return bool(found)


def _show(shown: Sequence[JobStatus]) -> None:
    columns = ("JOB", "HEALTH", "MODE", "LAG", "BEHIND", "LATE", "MEMORY", "CPU", "LAST FINDING", "REPORT")
    table(columns, map(_row, shown), empty="no jobs: sources/ and detectors/ are empty")
    for one in shown:
        if one.reason:
            word = "" if one.health == one.state else f"{one.health}: "
            line(f"{one.job}: {word}{one.reason}", style="red" if one.standing == "problem" else "")
        if one.cause is not None and str(one.cause) not in one.reason:
            line(f"{one.job}: failed before, at first: {one.cause}", style="yellow")


def _row(job: JobStatus) -> tuple[object, ...]:
    if job.age_seconds is None:
        return (job.job, job.health)
    behind = (f"{job.lag_records:,}", span(job.lag_seconds)) if job.has_lag else ("", "")
    lag = (*behind, f"{job.rows_dropped_late:,}")
    uptime = (job.at - job.started_at).total_seconds() if job.started_at else 0.0
    taken = (f"{job.rss_bytes / 1e6:,.0f} MB", f"{job.cpu_seconds / uptime:.0%}" if uptime > 0 else "")
    return (job.job, job.health, job.mode, *lag, *taken, utc(job.last_finding_at), f"{span(job.age_seconds)} ago")


if TYPE_CHECKING:
    from tocsin.alerts.store.alert_rows import JobUsage


def usage(
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="This many days, up to today.")] = 1,
    json: options.Json = False,
) -> None:
    """List what each job used on each day (UTC), the most CPU first; a core kept busy is marked."""
    from tocsin.alerts.store.queries import list_usage, open_store
    from tocsin.project.settings import load_settings

    with closing(open_store(load_settings())) as database:
        found = list_usage(database, datetime.now(UTC).date() - timedelta(days=days - 1))
    columns = ("DAY", "JOB", "RAN", "CPU", "CORES", "MEMORY", "IN", "OUT", "FINDINGS", "RESTARTS", "NOTE")
    write_list(found, columns, _usage_row, json=json, empty="no usage recorded on these days; the notifier records it")


def _usage_row(usage: JobUsage) -> tuple[object, ...]:
    from tocsin.model.job_report import BUSY_CORES

    taken = (span(usage.seconds), span(usage.cpu_seconds), f"{usage.cores:.2f}", f"{usage.rss_bytes / 1e6:,.0f} MB")
    done = (f"{usage.rows_in:,}", f"{usage.rows_out:,}", f"{usage.findings:,}", usage.restarts)
    return (usage.day, usage.job, *taken, *done, "keeps a core busy" if usage.cores >= BUSY_CORES else None)
