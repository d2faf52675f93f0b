"""A stack seen from another terminal: stop it, and tell how its parts are."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from tocsin.dev import state_folder
from tocsin.dev.launcher import LOG, servers_instance, sweep
from tocsin.dev.running_stack import read_running, withdraw
from tocsin.dev.servers import airflow_servers, kafka_server, mail_sink
from tocsin.model.errors import ConfigError, Fault, TransientError, nearest
from tocsin.model.job_report import JobState
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import catalog_in_force
from tocsin.runtime.lock import LockHeld, hold
from tocsin.supervision.desired_jobs import desired_jobs
from tocsin.supervision.incidents.watch import faults
from tocsin.supervision.job_states import Condition, Desired
from tocsin.supervision.job_status import Standing, standings
from tocsin.supervision.runners.local import LocalRunner
from tocsin.supervision.runners.process_labels import instance_of
from tocsin.supervision.switches import not_stopped

_SERVERS = (kafka_server.NAME, mail_sink.NAME)
_AIRFLOW = tuple(f"{airflow_servers.PREFIX}{name}" for name in airflow_servers.COMPONENTS)
_DOWN_SECONDS = 60.0


class ComponentStatus(BaseModel):
    """One server or job of the stack, as a process.

    Attributes:
        name: "kafka", "mail" or the job.
        pid: of its leading process; null when none runs.
        state: "running" for a server, what a job says of itself, or "absent"; "starting" before a job's first word.
        condition: how it fares in the eyes of supervision.
        reason: why it is so, in words; empty when it fares well.
        started_at: of the process, UTC.
        rss_bytes, cpu_seconds: of the process and its children.
        log: its log file.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    pid: int | None = None
    state: str
    condition: str
    reason: str
    started_at: datetime | None = None
    rss_bytes: int = 0
    cpu_seconds: float = 0.0
    log: str

    @property
    def is_well(self) -> bool:
        """Whether it does what it is there for."""
        return self.state in ("running", JobState.RUNNING, JobState.DRAINING)


def launcher_pid(settings: Settings) -> int | None:
    """The launcher that runs on this state folder; None when none does."""
    if not settings.state.is_dir():
        return None
    try:
        hold(settings.state / state_folder.LOCK).release()
    except LockHeld as error:
        return error.pid
    return None


def down(settings: Settings) -> bool:
    """Stop the stack on this state folder and wait until it is gone; returns whether one ran.

    Raises:
        TransientError: the launcher does not end in time; ending it by force leaves no process behind either.
    """
    pid = launcher_pid(settings)
    if pid is None:
        left = sweep(settings)
        withdraw(settings.state)
        return left > 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_SECONDS
    while launcher_pid(settings) is not None:
        if time.monotonic() > deadline:
            raise TransientError(f"process {pid} still stops after {_DOWN_SECONDS:g} s; by force: kill -9 {pid}")
        time.sleep(0.1)
    return True


def components(settings: Settings) -> list[ComponentStatus]:
    """All servers and jobs that run or should run, in the order of the flow."""
    servers = LocalRunner(servers_instance(settings), settings.log)
    jobs = LocalRunner(instance_of(settings), settings.log)
    live = jobs.list()
    broken = faults(catalog_in_force(settings))
    wanted = [job for job, one in wanted_jobs(settings).items() if one.readable or job in broken]
    strays = [process.labels.job for process in live if process.labels.job not in wanted]
    running = read_running(settings.state)
    expected = _SERVERS + (_AIRFLOW if running is not None and running.airflow_url else ())
    of_servers = standings(settings.state, "servers", expected, servers.list())
    of_jobs = standings(settings.state, "jobs", [*wanted, *dict.fromkeys(strays)], live)
    return [
        *(_status(settings, servers, one, "running") for one in of_servers),
        *(_status(settings, jobs, _with_fault(one, broken.get(one.job)), "starting") for one in of_jobs),
    ]


def wanted_jobs(settings: Settings) -> dict[str, Desired]:
    """The jobs that should run now: those that are declared; with Airflow, but for the paused and the drained."""
    declared, running = desired_jobs(catalog_in_force(settings), settings), read_running(settings.state)
    if running is None or running.airflow_url is None:
        return declared
    return not_stopped(settings.state, declared)


def component_log(settings: Settings, name: str) -> str:
    """The log file of a server, of a job, or of the launcher.

    Raises:
        ConfigError: there is no such component; names the nearest.
    """
    known = [*_SERVERS, *_AIRFLOW, LOG, *desired_jobs(catalog_in_force(settings), settings)]
    if name not in known and not settings.log(name).exists():
        raise ConfigError(
            [Fault("component", f"no '{name}' (there are: {', '.join(known)})", nearest=nearest(name, known))]
        )
    return str(settings.log(name))


def _with_fault(one: Standing, fault: str | None) -> Standing:
    return one if fault is None else replace(one, condition=Condition.BROKEN, reason=fault)


def _status(settings: Settings, runner: LocalRunner, one: Standing, silent: str) -> ComponentStatus:
    process, report = one.process, one.report
    usage = None if process is None else runner.usage(process)
    state = "absent" if process is None else silent if report is None else str(report.state)
    fine = report is None or report.state is JobState.RUNNING
    return ComponentStatus(
        name=one.job,
        pid=None if process is None else process.pid,
        state=state,
        condition=str(one.condition),
        reason=one.reason or ("" if fine or report is None else report.reason),
        started_at=None if process is None else datetime.fromtimestamp(process.started_at, UTC),
        rss_bytes=0 if usage is None else usage.rss_bytes,
        cpu_seconds=0.0 if usage is None else round(usage.cpu_seconds, 2),
        log=str(settings.log(one.job)),
    )
