"""Signs of life of jobs on this machine, as files.

They work when Kafka is down, so that a job that waits for it is not taken for hung. A heartbeat is the job's last
`JobReport`, as JSON, in `<state>/heartbeats/<job>.json`; its modification time is the time of the beat. A process that
runs beside the one that leads its job, to take over from it, has a file of its own.
`tocsin.platform.kafka.reporter.Reporter` writes it, as it does the records on `job-metrics`.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
from pydantic import ValidationError

from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.names import file_name

NUMBER = "TOCSIN_PROCESS"
"""Variable with the number by which supervision knows a process whose pid says nothing elsewhere: in a container."""

UNSUPERVISED_SECONDS = 120.0
"""The supervisor looks each minute at least, and a look may take half a minute. When it has not looked for longer,
nothing is started, stopped or restarted, and what is known of jobs is as of its last look."""
_STEP_SECONDS = 3.0  # the boot is known to the second
_PROC = Path("/proc")


@dataclass(frozen=True)
class Beat:
    """The last sign of life of one job; `age_seconds` leaves out suspensions and forward jumps of the clock."""

    report: JobReport
    age_seconds: float


class _Written(JobReport, frozen=True):
    """A report with what tells of a later step of the clock: the boot of the machine, and how far its clock was."""

    boot: str = ""
    ahead: float = 0.0

    @property
    def stepped(self) -> float:
        """By how many seconds the clock was set, or the machine slept, since this was written; 0 on another machine."""
        step = _ahead() - self.ahead if self.boot and self.boot == boot_id() else 0.0
        return step if abs(step) > _STEP_SECONDS else 0.0


def _ahead() -> float:
    """Return how far the clock is ahead of the seconds for which this machine has been awake since its boot.

    By the kernel's clock: that of a process may be another one (`faketime`). Only where `boot_id` is known.
    """
    if not boot_id():
        return 0.0
    up = float((_PROC / "uptime").read_text(encoding="ascii").split()[0])
    return psutil.boot_time() + up - time.monotonic()


@functools.cache
def boot_id() -> str:
    """Name this boot of this machine, and the container in which pids count; empty where the system does not tell."""
    try:
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{(_PROC / 'self' / 'ns' / 'pid').readlink()}"
    except OSError:
        return ""


def process_number() -> int:
    """Return the number that the reports of this process give as its pid."""
    return int(os.environ.get(NUMBER) or os.getpid())


def beat(state: Path, report: JobReport, *, beside: bool = False) -> None:
    """Write the heartbeat of `report.job` into the state folder; that of the process `beside` the one that leads.

    Never raises OSError, since a full disk is no reason to look dead: then only the time of the last one is renewed.
    One thread of a process at a time: a reader would find half a report, and its job would be taken for hung.
    """
    path = heartbeat_file(state, report.job, beside)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = _Written(**report.model_dump(), boot=boot_id(), ahead=_ahead())
        draft.write_text(written.model_dump_json(), encoding="utf-8")
        draft.replace(path)
    except OSError:
        _remove(draft)
        _touch(path)


def read_beat(state: Path, job: str, *, beside: bool = False) -> Beat | None:
    """The last heartbeat of `job`, or of the process `beside` its leading one; None when none can be read."""
    path = heartbeat_file(state, job, beside)
    try:
        with path.open("rb") as file:  # time and report of the same beat: the next one is another file
            age = time.time() - os.fstat(file.fileno()).st_mtime
            written = _Written.model_validate_json(file.read())
        report = JobReport.model_construct(**{name: getattr(written, name) for name in JobReport.model_fields})
        return Beat(report, max(0.0, age - written.stepped))
    except (OSError, ValidationError):
        return None


def note_look(state: Path, kind: str) -> None:
    """Note that the supervisor of `kind` has just looked, with success. Never raises OSError."""
    beat(state, JobReport(job=f"supervisor:{kind}", at=datetime.now(UTC), pid=os.getpid(), state=JobState.RUNNING))


def seconds_since_look(state: Path, kind: str = "jobs") -> float | None:
    """Return how long ago the supervisor of `kind` last looked with success; None when none ever has here."""
    last = read_beat(state, f"supervisor:{kind}")
    return None if last is None else last.age_seconds


def read_besides(state: Path, jobs: Iterable[str]) -> dict[str, Beat]:
    """The last heartbeat of each process that is to take over one of `jobs`, by job; of those that have one."""
    beats = {job: read_beat(state, job, beside=True) for job in jobs}
    return {job: beat for job, beat in beats.items() if beat is not None}


def beats_since(state: Path, job: str, started_at: float) -> list[Beat]:
    """Read the last heartbeats of processes of `job` that began at `started_at` (epoch seconds) or later."""
    beats = [beat for beside in (True, False) if (beat := read_beat(state, job, beside=beside)) is not None]
    return [beat for beat in beats if beat.report.started_at and beat.report.started_at.timestamp() >= started_at]


def end_beside(state: Path, job: str) -> None:
    """The process beside the leading one leads now: its own file would only mislead. Never raises OSError."""
    _remove(heartbeat_file(state, job, beside=True))


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


def heartbeat_file(state: Path, job: str, beside: bool) -> Path:
    """Name the file of the heartbeat of `job`, or of the process `beside` its leading one."""
    return state / "heartbeats" / f"{file_name(job)}{'.beside' if beside else ''}.json"
