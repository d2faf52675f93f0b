"""Read what jobs report of themselves from the topic `job-metrics`; `tocsin.platform.kafka.reporter` writes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pydantic import ValidationError

from tocsin.declare.model.job_report import JobReport
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import TopicReader

_TAIL = 20_000


class ReportReader:
    """Follows `job-metrics`: each call of `latest` reads only what is new. For one thread."""

    def __init__(
        self,
        settings: Settings,
        take: Callable[[JobReport], None] | None = None,
        *,
        timeout_seconds: float = 5.0,
    ) -> None:
        """Begin with the last 20,000 reports of this installation; `take` gets each that is read, the oldest first."""
        self._take, self._own = take, settings.installation_id
        self._reader = TopicReader(settings, "reports", settings.names.job_metrics, timeout_seconds=timeout_seconds)
        self._position: int | None = None
        self._reports: dict[str, JobReport] = {}

    def latest(self) -> dict[str, JobReport]:
        """Return each job's last report in the topic's end, stopped jobs included. TransientError without Kafka."""
        first, end = (bound[0] for bound in self._reader.bounds([0]))
        if self._position is None or not first <= self._position <= end:
            self._position = max(first, end - _TAIL)
        for message in self._reader.records(0, self._position, end):
            self._position = (message.offset() or 0) + 1
            with contextlib.suppress(ValidationError):
                self._add(JobReport.model_validate_json(message.value() or b""))
        self._position = end  # compaction may have removed the records up to it
        return dict(self._reports)

    def close(self) -> None:
        """Leave Kafka."""
        self._reader.close()

    def _add(self, report: JobReport) -> None:
        if report.instance == self._own:
            self._reports[report.job] = report
            if self._take is not None:
                self._take(report)


def read_reports(settings: Settings) -> dict[str, JobReport]:
    """The latest report per job; see `ReportReader.latest`."""
    with contextlib.closing(ReportReader(settings)) as reader:
        return reader.latest()
