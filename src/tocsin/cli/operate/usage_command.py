"""`tocsin usage`: what each job took on each day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, table
from tocsin.model.durations import span

if TYPE_CHECKING:
    from tocsin.alerts.store.alert_rows import JobUsage


def usage(
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="So many days, up to today.")] = 1,
    json: options.Json = False,
) -> None:
    """List what each job took on each day (UTC), the one that took most CPU first: a core kept busy stands out."""
    from tocsin.alerts.store.queries import list_usage, open_store
    from tocsin.project.settings import load_settings

    database = open_store(load_settings())
    try:
        found = list_usage(database, datetime.now(UTC).date() - timedelta(days=days - 1))
    finally:
        database.close()
    if json:
        as_json(found)
    else:
        columns = ("DAY", "JOB", "RAN", "CPU", "CORES", "MEMORY", "IN", "OUT", "FINDINGS", "RESTARTS", "NOTE")
        table(columns, map(_row, found), empty="nothing is known of these days; the notifier writes it")


def _row(one: JobUsage) -> tuple[object, ...]:
    from tocsin.model.job_report import BUSY_CORES

    taken = (span(one.seconds), span(one.cpu_seconds), f"{one.cores:.2f}", f"{one.rss_bytes / 1e6:,.0f} MB")
    done = (f"{one.rows_in:,}", f"{one.rows_out:,}", f"{one.findings:,}", one.restarts)
    return (one.day, one.job, *taken, *done, "keeps a core busy" if one.cores >= BUSY_CORES else None)
