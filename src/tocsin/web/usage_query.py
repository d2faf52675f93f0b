"""Read what the jobs use: cores now, by their heartbeats, and totals of today, by the alerts DB."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from tocsin.alerts.store.queries import list_usage, open_store
from tocsin.declare.model.job_report import BUSY_CORES, JobReport
from tocsin.declare.settings import Settings

# A detector that was paused for longer than this has no known last finding.
_DAYS = 31


class Today(BaseModel, frozen=True):
    """The resources that the job took today, UTC, as far as the alerts DB knows."""

    cpu_seconds: float
    rows_in: int
    rows_out: int
    findings: int
    restarts: int


@dataclass(frozen=True)
class JobActivity:
    """The resources of one job today, and when its detector last found something; None where nothing is known."""

    today: Today | None = None
    last_finding_at: datetime | None = None


def read_usage(settings: Settings) -> dict[str, JobActivity]:
    """Read what each job uses from the alerts DB; errors as of its queries."""
    today, activity = datetime.now(UTC).date(), dict[str, JobActivity]()
    with closing(open_store(settings)) as database:
        days = list_usage(database, today - timedelta(days=_DAYS - 1))
    for used in sorted(days, key=lambda used: used.day):
        now = Today(**used.model_dump(include=set(Today.model_fields))) if used.day == today else None
        activity[used.job] = JobActivity(now, used.last_finding_at)
    return activity


_WINDOW_SECONDS = 60.0
# The start of a JVM takes more than a core for a while, and is no news.
_SURE_SECONDS = 30.0


@dataclass(frozen=True)
class Load:
    """Cores kept busy on average, and over how many seconds."""

    cores: float
    seconds: float

    @property
    def busy(self) -> bool:
        """Return whether it has been high for long enough."""
        return self.cores >= BUSY_CORES and self.seconds >= _SURE_SECONDS


class Loads:
    """Remembers the signs of life of the last minute."""

    def __init__(self) -> None:
        self._reports: dict[str, deque[JobReport]] = {}

    def take(self, report: JobReport) -> None:
        """Remember `report`, unless it was taken already."""
        reports = self._reports.setdefault(report.job, deque())
        if reports and (reports[-1].pid != report.pid or report.at < reports[-1].at):
            reports.clear()
        if not reports or report.at > reports[-1].at:
            reports.append(report)
        while len(reports) > 2 and (report.at - reports[1].at).total_seconds() >= _WINDOW_SECONDS:
            reports.popleft()

    def of(self, job: str) -> Load | None:
        """The load of `job` over the last minute; with a single sign of life, since its start; None without one."""
        reports = self._reports.get(job)
        if not reports:
            return None
        first, last = reports[0], reports[-1]
        if first is last:
            seconds = (last.at - last.started_at).total_seconds() if last.started_at else 0.0
            return Load(last.cpu_seconds / seconds, seconds) if seconds > 0 else None
        seconds = (last.at - first.at).total_seconds()
        return Load(max(0.0, last.cpu_seconds - first.cpu_seconds) / seconds, seconds)
