"""Read what the jobs use: cores now, by their heartbeats, and totals of today, by the alerts DB.

Only the jobs' own environment can read that DB, so it is asked through the command.
"""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from pydantic import BaseModel, TypeAdapter, ValidationError

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import BUSY_CORES, JobReport
from tocsin.declare.settings import Settings
from tocsin.setup.paths import here
from tocsin.supervise.runners.job_command import job_environment
from tocsin.web.page_shapes import Today

# A detector that was paused for longer than this has no known last finding.
_DAYS = 31
_SECONDS = 60.0
_WORDS = 300


@dataclass(frozen=True)
class JobActivity:
    """The resources of one job today, and when its detector last found something; None where nothing is known."""

    today: Today | None = None
    last_finding_at: datetime | None = None


class _JobDay(BaseModel, extra="ignore"):
    """The part used here of the array that `tocsin usage --json` writes."""

    job: str
    day: date
    cpu_seconds: float
    rows_in: int
    rows_out: int
    findings: int
    restarts: int
    last_finding_at: datetime | None = None


_DAYS_OF_JOBS = TypeAdapter(list[_JobDay])


def read_usage(settings: Settings) -> dict[str, JobActivity]:
    """Read what each job uses, in seconds, by a command; raises TransientError with its output if that fails."""
    command = [str(here().venv / "bin" / "python"), "-m", "tocsin.cli", "usage", f"--days={_DAYS}", "--json"]
    environment = job_environment(settings, Path(os.environ.get("JAVA_HOME", "")))
    try:
        done = subprocess.run(
            command, env=environment, cwd=here().root, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TransientError(f"tocsin usage: {error}") from error
    if done.returncode != 0:
        output = done.stderr.decode(errors="replace").strip()[-_WORDS:]
        raise TransientError(f"tocsin usage ended with {done.returncode}: {output}")
    return parse_usage(done.stdout, datetime.now(UTC).date())


def parse_usage(output: bytes, today: date) -> dict[str, JobActivity]:
    """Take what the command's array says of each job; raises TransientError if it is something else."""
    try:
        days: Sequence[_JobDay] = _DAYS_OF_JOBS.validate_json(output)
    except ValidationError as error:
        raise TransientError(f"tocsin usage wrote something unknown: {error.errors()[0]['msg']}") from error
    activity: dict[str, JobActivity] = {}
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
