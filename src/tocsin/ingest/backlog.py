"""Let an ingest with a backlog wait for the detectors behind it, and tell them how far behind it is.

Partitions are read unevenly while a backlog drains. A detector that does not know would take the events of the slower
partition for late and drop them, so it first widens the delay of its watermark, and says so in its report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from tocsin.declare.feeding import Feeder
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.job_reports import ReportReader

LONGEST_WAIT = timedelta(seconds=20)
"""A detector that is not ready by then will find the backlog in its own topic when it starts."""

_DETECTOR_FRESH = timedelta(seconds=10)
_FEEDER_FRESH = timedelta(seconds=30)
_STARTING = (JobState.STARTING, JobState.WAITING, JobState.READY)
_AT_REST = (JobState.STOPPED, JobState.FAILED, JobState.STOPPING)


def not_ready(
    reports: Mapping[str, JobReport], detectors: Iterable[str], needed_seconds: float, now: datetime
) -> list[str]:
    """Name those of the jobs `detectors` that run with a watermark delay below `needed_seconds`, in order. Pure.

    A job that has not reported for 10 seconds does not run. A job without a watermark is always ready.
    """
    waiting = []
    for job in sorted(detectors):
        report = reports.get(job)
        if report is None or now - report.at > _DETECTOR_FRESH or report.state in _AT_REST:
            continue
        starting = report.delay_seconds is None and report.state in _STARTING
        if starting or (report.delay_seconds is not None and report.delay_seconds < needed_seconds):
            waiting.append(job)
    return waiting


class FeederLag:
    """Reads the reports of the jobs through which events of some sources come. For one thread."""

    def __init__(self, settings: Settings, *chains: Sequence[Feeder]) -> None:
        """Read those of `chains`, one of each source."""
        self._settings = settings
        self._jobs = list(dict.fromkeys(feeder.job for chain in chains for feeder in chain))
        self._last = [chain[0].job if chain else "" for chain in chains]
        self._reports: ReportReader | None = None

    def __call__(self) -> timedelta:
        """Return how far behind one says it is, the most; 0 when all keep up, are silent, or Kafka does not answer."""
        reports = [self._report(job) for job in self._jobs]
        behind = (one.lag_seconds for one in reports if one is not None and one.state is JobState.DRAINING)
        return timedelta(seconds=max(behind, default=0.0))

    def complete_through(self) -> datetime | None:
        """Return the earliest `complete_through` of the last ones; None while one drains, is silent, or Kafka is."""
        reports = [self._report(job) for job in self._last]
        known = [one.complete_through for one in reports if one is not None and one.state is JobState.RUNNING]
        moments = [moment for moment in known if moment is not None]
        return min(moments) if moments and len(moments) == len(reports) else None

    def _report(self, job: str) -> JobReport | None:
        try:
            self._reports = self._reports or ReportReader(self._settings)
            report = self._reports.latest().get(job)
        except (ConfigError, TransientError):
            return None
        return None if report is None or datetime.now(UTC) - report.at > _FEEDER_FRESH else report
