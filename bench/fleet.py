"""A platform of thirty detectors under Airflow: four run really, the others are light processes in their place.

The supervisor takes the light ones for the jobs that should run, since their labels say so: it starts none of its own,
and looks at them and at their heartbeats as at any other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import psutil

from bench.latency import detector_file
from bench.processes import Memory, await_that
from tests.rig.airflow_api import Api
from tests.rig.stack import Stack
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.model.names import dag_of, detector_job, file_name
from tocsin.declare.settings import Settings
from tocsin.dev.servers.airflow_servers import PREFIX
from tocsin.dev.state_folder import read_running
from tocsin.platform.heartbeat import read_beat
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_states import Past, memory_of, read_history
from tocsin.supervise.runners.runner import Labels, instance_of

REAL, LIGHT = 4, 26
_READY_SECONDS = 300.0
_ASKED = 50
# The second when not even the line of the audit log can be written in time.
_LOCKED = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INTERNAL_SERVER_ERROR)


@dataclass(frozen=True)
class Fleet:
    """The platform while it runs.

    Attributes:
        stack: what was started.
        settings: of the installation.
        api: of its Airflow, for an administrator.
        real: names of the detectors that run really.
    """

    stack: Stack
    settings: Settings
    api: Api
    real: tuple[str, ...]

    @property
    def detectors(self) -> Path:
        """The folder of the detectors' files."""
        return self.settings.project / "detectors"

    def airflow_memory(self) -> Memory:
        """What the processes of Airflow hold now."""
        leaders = [one.pid for one in self.stack.processes() if one.labels.job.startswith(PREFIX) and one.leader]
        tops = [psutil.Process(pid) for pid in leaders]
        held = [one.memory_full_info() for top in tops for one in [top, *top.children(recursive=True)]]
        return Memory(sum(one.rss for one in held), sum(one.pss for one in held))

    def runs(self, detector: str) -> bool:
        """Whether the job of a detector runs and says so."""
        return self._said(detector) is JobState.RUNNING

    def pids(self, detector: str) -> set[int]:
        """The leading processes of the job of a detector."""
        job = detector_job(detector)
        return {one.pid for one in self.stack.processes() if one.labels.job == job and one.leader}

    def is_touched(self, detector: str, before: set[int]) -> bool:
        """Whether supervision has done something about a job that had the processes `before`: started or asked one."""
        past = read_history(memory_of(self.settings.state, "jobs")).jobs.get(detector_job(detector), Past())
        return bool(self.pids(detector) - before or past.asked.keys() & before)

    def ask_for_backfill(self, dag: str, days: dict[str, str]) -> int:
        """Have Airflow make a backfill; how often it refused because its DB was locked, which SQLite soon is."""
        for refused in range(_ASKED):
            status = self.api.refusal("POST", "/api/v2/backfills", {"dag_id": dag, "max_active_runs": 3, **days})
            if not status:
                return refused
            if status not in _LOCKED:
                raise RuntimeError(f"a backfill of {dag} over {days} was refused with {status}")
        raise RuntimeError(
            f"a backfill of {dag} was refused {_ASKED} times, with {status} in the end: is the DB locked?"
        )

    def declare(self, detector: str) -> None:
        """One more file."""
        (self.detectors / f"{detector}.py").write_text(detector_file(), encoding="utf-8")

    def _said(self, detector: str) -> JobState | None:
        beat = read_beat(self.settings.state, detector_job(detector))
        return beat.report.state if beat is not None and beat.report.pid in self.pids(detector) else None


@contextmanager
def running(folder: Path) -> Iterator[Fleet]:
    """The platform, until the end of the `with` block, with all it writes below `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    stack = Stack(folder)
    real = tuple(f"real_{number}" for number in range(REAL))
    light = [f"light_{number:02}" for number in range(LIGHT)]
    (stack.project / "detectors" / "failed_logins.py").unlink()
    for name in real:
        (stack.project / "detectors" / f"{name}.py").write_text(detector_file(), encoding="utf-8")
    children: list[subprocess.Popen[bytes]] = []
    try:
        stack.up("--free-ports", "--airflow")
        stack.ready()
        about, settings = read_running(stack.state), stack.settings
        assert about is not None and about.airflow_url is not None
        children += _started(settings, light)
        for name in light:
            (stack.project / "detectors" / f"{name}.py").write_text(detector_file(), encoding="utf-8")
        api = Api(about.airflow_url, stack.state / "airflow" / "passwords.json", "admin")
        fleet = Fleet(stack, settings, api, real)
        names = (*real, *light)
        await_that(lambda: all(api.dag(dag_of(detector_job(name))) for name in names), _READY_SECONDS, "all DAGs")
        await_that(lambda: all(fleet.runs(name) for name in names), _READY_SECONDS, "all jobs")
        yield fleet
    finally:
        stack.end()
        for child in children:
            child.wait(30)


def _started(settings: Settings, names: list[str]) -> list[subprocess.Popen[bytes]]:
    """Light processes with the labels that the jobs of these detectors will have."""
    staging = settings.state / "staging"
    shutil.copytree(settings.project, staging)
    for name in names:
        (staging / "detectors" / f"{name}.py").write_text(detector_file(), encoding="utf-8")
    desired = desired_jobs(read_catalog(staging), settings)
    children = []
    for name in names:
        job = detector_job(name)
        now = datetime.now(UTC)
        said = JobReport(job=job, at=now, started_at=now, state=JobState.RUNNING, mode="none", reason="a light job")
        labels = Labels(instance_of(settings), job, desired[job].spec)
        beat = settings.state / "heartbeats" / f"{file_name(job)}.json"
        command = [sys.executable, str(Path(__file__).with_name("light.py")), str(beat), said.model_dump_json()]
        children.append(subprocess.Popen([*command, *labels.arguments()], start_new_session=True))
    return children
