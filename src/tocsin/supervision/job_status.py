"""How jobs stand: what supervision remembers of them, what runs, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tocsin.model.job_report import JobReport
from tocsin.runtime.heartbeat import read_beat
from tocsin.supervision.job_states import Condition, Past
from tocsin.supervision.memory import read_history
from tocsin.supervision.runners.runner import Process


@dataclass(frozen=True)
class Standing:
    """How one job stands.

    Attributes:
        job: which.
        process: its live process; None when there is none.
        report: what this very process last said; None before its first word, and when there is no process.
        condition: how it fares in the eyes of supervision.
        reason: why, when it does not fare well.
    """

    job: str
    process: Process | None
    report: JobReport | None
    condition: Condition
    reason: str

    @property
    def failing(self) -> bool:
        """Whether somebody should look at it: restarts alone will hardly help."""
        return self.condition not in (Condition.FINE, Condition.RESTARTING)


def memory_of(state: Path, charge: str) -> Path:
    """The file that holds what supervision remembers of one charge."""
    return state / "supervision" / f"{charge}.json"


def standings(state: Path, charge: str, jobs: Iterable[str], processes: Sequence[Process]) -> list[Standing]:
    """How each of `jobs` stands, given the live processes."""
    pasts = read_history(memory_of(state, charge)).jobs
    leaders = {process.labels.job: process for process in reversed(processes) if process.leader}
    return [_standing(state, job, leaders.get(job), pasts.get(job, Past())) for job in jobs]


def _standing(state: Path, job: str, process: Process | None, past: Past) -> Standing:
    beat = read_beat(state, job)
    report = beat.report if beat is not None and process is not None and beat.report.pid == process.pid else None
    return Standing(job, process, report, past.condition, past.reason)
