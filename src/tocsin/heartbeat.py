"""Signs of life of jobs on this machine, as files.

They work when Kafka is down, so that a job that waits for it is not taken for hung. A heartbeat is the job's last
`JobReport`, as JSON, in `<state>/heartbeats/<job>.json`; its modification time is the time of the beat.
`tocsin.reporting.Reporter` writes it beside each record on `job-metrics`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tocsin.metrics import JobReport
from tocsin.names import file_name


@dataclass(frozen=True)
class Beat:
    """The last sign of life of one job.

    Attributes:
        report: what the job said of itself.
        age_seconds: since then.
    """

    report: JobReport
    age_seconds: float


def beat(state: Path, report: JobReport) -> None:
    """Write the heartbeat of `report.job` into the state folder.

    Never raises OSError, since a full disk is no reason to look dead: then only the time of the last one is renewed.
    """
    path = _path(state, report.job)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(report.model_dump_json(), encoding="utf-8")
        draft.replace(path)
    except OSError:
        _remove(draft)
        _touch(path)


def read_beat(state: Path, job: str) -> Beat | None:
    """The last heartbeat of `job`; None when there is none that can be read."""
    path = _path(state, job)
    try:
        age = time.time() - path.stat().st_mtime
        return Beat(JobReport.model_validate_json(path.read_bytes()), max(0.0, age))
    except (OSError, ValidationError):
        return None


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


def _path(state: Path, job: str) -> Path:
    return state / "heartbeats" / f"{file_name(job)}.json"
