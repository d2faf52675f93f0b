"""Read what the jobs took from the alerts DB, which only the jobs' own environment can read, through the command."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tocsin.model.errors import TransientError
from tocsin.project.settings import Settings
from tocsin.provision.paths import here
from tocsin.supervision.runners.job_command import job_environment
from tocsin.web.page_shapes import Today

# A detector that was paused for longer than this has no known last finding.
_DAYS = 31
_SECONDS = 60.0
_WORDS = 300


@dataclass(frozen=True)
class Taken:
    """The resources of one job today, and when its detector last found something; None where nothing is known."""

    today: Today | None = None
    last_finding_at: float | None = None


class _JobDay(BaseModel):
    """The part used here of the array that `tocsin usage --json` writes."""

    model_config = ConfigDict(extra="ignore")

    job: str
    day: date
    cpu_seconds: float
    rows_in: int
    rows_out: int
    findings: int
    restarts: int
    last_finding_at: datetime | None = None


_DAYS_OF_JOBS = TypeAdapter(list[_JobDay])


def read_usage(settings: Settings) -> dict[str, Taken]:
    """Read the resources of each job, by job. Takes seconds: it starts a process.

    Raises:
        TransientError: the command failed, or wrote something else; says what it said.
    """
    command = [str(here().venv / "bin" / "python"), "-m", "tocsin.cli", "usage", f"--days={_DAYS}", "--json"]
    environment = job_environment(settings, Path(os.environ.get("JAVA_HOME", "")))
    try:
        done = subprocess.run(
            command, env=environment, cwd=here().root, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TransientError(f"tocsin usage: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-_WORDS:]
        raise TransientError(f"tocsin usage ended with {done.returncode}: {said}")
    return parse_usage(done.stdout, datetime.now(UTC).date())


def parse_usage(told: bytes, today: date) -> dict[str, Taken]:
    """Take what the command's array says of each job.

    Raises:
        TransientError: it is something else.
    """
    try:
        days: Sequence[_JobDay] = _DAYS_OF_JOBS.validate_json(told)
    except ValidationError as error:
        raise TransientError(f"tocsin usage wrote something unknown: {error.errors()[0]['msg']}") from error
    taken: dict[str, Taken] = {}
    for one in sorted(days, key=lambda one: one.day):
        last = None if one.last_finding_at is None else one.last_finding_at.timestamp()
        now = Today(**one.model_dump(include=set(Today.model_fields))) if one.day == today else None
        taken[one.job] = Taken(now, last)
    return taken
