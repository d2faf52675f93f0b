"""Signs of life of jobs on this machine, as files.

They work when Kafka is down, so that a job that waits for it is not taken for hung. A heartbeat is the job's last
`JobReport`, as JSON, in `<state>/heartbeats/<job>.json`; its modification time is the time of the beat. A process that
runs beside the one that leads its job, to take over from it, has a file of its own.
`tocsin.kafka.reporter.Reporter` writes it, as it does the records on `job-metrics`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tocsin.model.job_report import JobReport
from tocsin.model.names import file_name

NUMBER = "TOCSIN_PROCESS"
"""Variable with the number by which supervision knows a process whose pid says nothing elsewhere: in a container."""


@dataclass(frozen=True)
class Beat:
    """The last sign of life of one job.

    Attributes:
        report: what the job said of itself.
        age_seconds: since then.
    """

    report: JobReport
    age_seconds: float


def process_number() -> int:
    """Return the number that the reports of this process give as its pid."""
    return int(os.environ.get(NUMBER) or os.getpid())


def beat(state: Path, report: JobReport, *, beside: bool = False) -> None:
    """Write the heartbeat of `report.job` into the state folder; that of the process `beside` the one that leads.

    Never raises OSError, since a full disk is no reason to look dead: then only the time of the last one is renewed.
    One thread of a process at a time: a reader would find half a report, and its job would be taken for hung.
    """
    path = _path(state, report.job, beside)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(report.model_dump_json(), encoding="utf-8")
        draft.replace(path)
    except OSError:
        _remove(draft)
        _touch(path)


def read_beat(state: Path, job: str, *, beside: bool = False) -> Beat | None:
    """The last heartbeat of `job`, or of the process `beside` its leading one; None when none can be read."""
    path = _path(state, job, beside)
    try:
        with path.open("rb") as file:  # time and report of the same beat: the next one is another file
            age = time.time() - os.fstat(file.fileno()).st_mtime
            return Beat(JobReport.model_validate_json(file.read()), max(0.0, age))
    except (OSError, ValidationError):
        return None


def read_besides(state: Path, jobs: Iterable[str]) -> dict[str, Beat]:
    """The last heartbeat of each process that is to take over one of `jobs`, by job; of those that have one."""
    beats = {job: read_beat(state, job, beside=True) for job in jobs}
    return {job: beat for job, beat in beats.items() if beat is not None}


def end_beside(state: Path, job: str) -> None:
    """The process beside the leading one leads now: its own file would only mislead. Never raises OSError."""
    _remove(_path(state, job, beside=True))


def _remove(draft: Path) -> None:
    try:
        draft.unlink(missing_ok=True)
    except OSError:
        return


def _touch(path: Path) -> None:
    """A new time needs no room on the disk."""
    try:
        os.utime(path)
    except OSError:
        return


def _path(state: Path, job: str, beside: bool) -> Path:
    return state / "heartbeats" / f"{file_name(job)}{'.beside' if beside else ''}.json"
