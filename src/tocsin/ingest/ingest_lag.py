"""What the ingest of a source says of itself: how far behind it is, and up to when it is complete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tocsin.model.errors import TransientError
from tocsin.model.job_report import JobReport, JobState
from tocsin.model.names import ingest_job
from tocsin.project.settings import Settings
from tocsin.runtime.reporter import ReportReader

_FRESH = timedelta(seconds=30)


class IngestLag:
    """Reads the reports of the ingest of `source`. For one thread."""

    def __init__(self, settings: Settings, source: str) -> None:
        self._settings, self._job = settings, ingest_job(source)
        self._reports: ReportReader | None = None

    def __call__(self) -> timedelta:
        """How far behind the ingest says it is; 0 when it keeps up, is silent, or Kafka does not answer."""
        report = self._report()
        if report is None or report.state is not JobState.DRAINING:
            return timedelta(0)
        return timedelta(seconds=report.lag_seconds)

    def complete_through(self) -> datetime | None:
        """See `JobReport.complete_through`; None while it drains, is silent, or Kafka does not answer."""
        report = self._report()
        return report.complete_through if report is not None and report.state is JobState.RUNNING else None

    def _report(self) -> JobReport | None:
        try:
            self._reports = self._reports or ReportReader(self._settings)
            report = self._reports.latest().get(self._job)
        except TransientError:
            return None
        return None if report is None or datetime.now(UTC) - report.at > _FRESH else report
