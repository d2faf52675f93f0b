"""How far behind the ingest of a source is, in its own words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tocsin.errors import TransientError
from tocsin.metrics import JobState
from tocsin.names import ingest_job
from tocsin.reporting import ReportReader
from tocsin.settings import Settings

_FRESH = timedelta(seconds=30)


class IngestLag:
    """Reads the reports of the ingest of `source`. For one thread."""

    def __init__(self, settings: Settings, source: str) -> None:
        self._settings, self._job = settings, ingest_job(source)
        self._reports: ReportReader | None = None

    def __call__(self) -> timedelta:
        """How far behind the ingest says it is; 0 when it keeps up, is silent, or Kafka does not answer."""
        try:
            self._reports = self._reports or ReportReader(self._settings)
            report = self._reports.latest().get(self._job)
        except TransientError:
            return timedelta(0)
        if report is None or report.state is not JobState.DRAINING or datetime.now(UTC) - report.at > _FRESH:
            return timedelta(0)
        return timedelta(seconds=report.lag_seconds)
