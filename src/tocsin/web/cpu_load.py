"""Measure how many cores each job keeps busy now: the growth of its CPU time between its last signs of life."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tocsin.model.job_report import BUSY_CORES, JobReport

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
        """Tell whether it stands out, and has for long enough."""
        return self.cores >= BUSY_CORES and self.seconds >= _SURE_SECONDS


class Loads:
    """Remembers the signs of life of the last minute."""

    def __init__(self) -> None:
        self._told: dict[str, deque[JobReport]] = {}

    def take(self, report: JobReport) -> None:
        """Remember `report`, unless it was taken already."""
        told = self._told.setdefault(report.job, deque())
        if told and (told[-1].pid != report.pid or report.at < told[-1].at):
            told.clear()
        if not told or report.at > told[-1].at:
            told.append(report)
        while len(told) > 2 and (report.at - told[1].at).total_seconds() >= _WINDOW_SECONDS:
            told.popleft()

    def of(self, job: str) -> Load | None:
        """The load of `job` over the last minute; with a single sign of life, since its start; None without one."""
        told = self._told.get(job)
        if not told:
            return None
        first, last = told[0], told[-1]
        if first is last:
            seconds = (last.at - last.started_at).total_seconds() if last.started_at else 0.0
            return Load(last.cpu_seconds / seconds, seconds) if seconds > 0 else None
        seconds = (last.at - first.at).total_seconds()
        return Load(max(0.0, last.cpu_seconds - first.cpu_seconds) / seconds, seconds)
