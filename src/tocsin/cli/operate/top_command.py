"""`tocsin top`: what the jobs do, live in the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.output import console, drawn_table, utc
from tocsin.model.durations import span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tocsin.metrics.reported_jobs import JobStatus, StatusReader, StatusReading
    from tocsin.project.settings import Settings
    from tocsin.web.usage_query import Loads

_COLUMNS = ("JOB", "HEALTH", "MODE", "LAG", "BEHIND", "CPU", "MEMORY", "LAST FINDING", "REPORT")
_LOUDEST = ("problem", "warning", "ok", "off")
_KAFKA_SECONDS = 2.0


def top(
    every: Annotated[float, typer.Option("--every", min=0.5, max=3600, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show the jobs live: health, lag, CPU of the last minute, memory, last finding; problems first.

    Keys: q ends it, any other key looks again at once. Where standard output is no terminal, it writes one look and
    ends.
    """
    from tocsin.kafka.job_reports import ReportReader
    from tocsin.metrics.reported_jobs import StatusReader
    from tocsin.project.settings import load_settings
    from tocsin.web.usage_query import Loads

    settings, loads, screen = load_settings(), Loads(), console()
    with contextlib.closing(ReportReader(settings, timeout_seconds=_KAFKA_SECONDS)) as reports:
        reader = StatusReader(settings, reports.latest)
        if not screen.is_terminal:
            screen.print(_look(settings, reader, loads))
            return
        from rich.live import Live

        with _keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_look(settings, reader, loads), refresh=True)
                if pressed(every) == "q":
                    return


def _look(settings: Settings, reader: StatusReader, loads: Loads) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from tocsin.metrics.reported_jobs import last_findings
    from tocsin.model.sizes import printable

    found, unknown = last_findings(settings, reader.wanted())
    reading = reader.read(found=found)
    for job in reading.jobs:
        if job.age_seconds is not None:
            loads.take(job)
    jobs = sorted(reading.jobs, key=lambda job: _LOUDEST.index(job.standing))
    drawn = drawn_table(_COLUMNS, [_row(job, loads) for job in jobs])
    remarks = [text for text in (reading.kafka_away, unknown and f"{unknown}; last findings unknown") if text]
    remarks += [f"{job.job}: {job.reason}" for job in jobs if job.standing == "problem" and job.reason]
    lines = [Text(printable(text), style="yellow") for text in remarks]
    return Group(Text(_summary(reading), style="bold"), drawn, *lines)


def _summary(reading: StatusReading) -> str:
    counts = Counter(str(job.standing) for job in reading.jobs)
    standings = ", ".join(f"{counts[one]} {one}" for one in _LOUDEST if counts[one])
    return f"{utc(datetime.now(UTC))}  {len(reading.jobs)} jobs: {standings or 'none'}"


def _row(job: JobStatus, loads: Loads) -> Sequence[object]:
    if job.age_seconds is None:
        return (job.job, job.health)
    load = loads.of(job.job)
    taken = ("" if load is None else f"{load.cores:.0%}", f"{job.rss_bytes / 1e6:,.0f} MB")
    lag = (f"{job.lag_records:,}", span(job.lag_seconds)) if job.has_lag else ("", "")
    return (job.job, job.health, job.mode, *lag, *taken, utc(job.last_finding_at), f"{span(job.age_seconds)} ago")


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Read single keys: the block gets a function that waits for one, so many seconds at most."""

    def pressed(seconds: float) -> str:
        if not sys.stdin.isatty():
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""

    if not sys.stdin.isatty():
        yield pressed
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
