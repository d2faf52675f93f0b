"""An ingest with a backlog waits until the detectors behind it are ready for old events. Pure.

Partitions are read unevenly while a backlog drains. A detector that does not know would take the events of the slower
partition for late and drop them, so it first widens the delay of its watermark, and says so in its report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from tocsin.model.job_report import JobReport, JobState

LONGEST_WAIT = timedelta(seconds=20)
"""A detector that is not ready by then will find the backlog in its own topic when it starts."""

_FRESH = timedelta(seconds=10)
_STARTING = (JobState.STARTING, JobState.WAITING, JobState.READY)
_AT_REST = (JobState.STOPPED, JobState.FAILED, JobState.STOPPING)


def not_ready(
    reports: Mapping[str, JobReport], detectors: Iterable[str], needed_seconds: float, now: datetime
) -> list[str]:
    """Those of the jobs `detectors` that run with a watermark delay below `needed_seconds`, in order of name.

    A job that has not reported for 10 seconds does not run. A job without a watermark is always ready.
    """
    waiting = []
    for job in sorted(detectors):
        report = reports.get(job)
        if report is None or now - report.at > _FRESH or report.state in _AT_REST:
            continue
        starting = report.delay_seconds is None and report.state in _STARTING
        if starting or (report.delay_seconds is not None and report.delay_seconds < needed_seconds):
            waiting.append(job)
    return waiting
