"""A stack seen from another terminal: stop it, and show its servers."""

from __future__ import annotations

import os
import signal
import time

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import ConfigError, Fault, TransientError, nearest
from tocsin.declare.settings import Settings
from tocsin.dev import state_folder
from tocsin.dev.launcher import LOG, servers_instance, sweep
from tocsin.dev.servers import airflow_servers, kafka_server, mail_sink
from tocsin.dev.state_folder import read_running, withdraw
from tocsin.platform.lock import LockHeld, hold
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_states import Desired, Past, memory_of, read_history
from tocsin.supervise.job_status import JobFacts, JobStatus, job_status
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.switches import not_stopped

_SERVERS = (kafka_server.NAME, mail_sink.NAME)
_AIRFLOW = tuple(f"{airflow_servers.PREFIX}{name}" for name in airflow_servers.COMPONENTS)
_DOWN_SECONDS = 60.0


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
            raise TransientError(
                f"process {pid} is still stopping after {_DOWN_SECONDS:g} s; to kill it: kill -9 {pid}"
            )
        time.sleep(0.1)
    return True


def servers(settings: Settings) -> list[JobStatus]:
    """Make the status of each server of the stack, in the order of their start; none if no stack runs here."""
    running = read_running(settings.state)
    if running is None or launcher_pid(settings) is None:
        return []
    views = read_catalog(settings.project).views.values()
    needed = {spec.sink for spec in views if spec.stage.runs}
    expected = (
        *_SERVERS,
        *(_AIRFLOW if running.airflow_url else ()),
        *(kind for kind in running.sinks if kind in needed),
    )
    live = LocalRunner(servers_instance(settings), settings.log).list()
    pasts = read_history(memory_of(settings.state, "servers")).jobs
    found = []
    for name in dict.fromkeys([*expected, *(process.labels.job for process in live)]):
        own = [process for process in live if process.labels.job == name]
        facts = JobFacts(at=time.time(), processes=own, beats=False, past=pasts.get(name, Past()))
        found.append(job_status(name, facts))
    return found


def wanted_jobs(settings: Settings, catalog: Catalog | None = None) -> dict[str, Desired]:
    """Return the jobs that should run now; with Airflow, without the paused. `catalog` is read from files if None."""
    return not_stopped(settings.state, desired_jobs(catalog or read_catalog(settings.project), settings))


def component_log(settings: Settings, name: str) -> str:
    """Return the log file of a server, a job or the launcher; else raises ConfigError, which names the nearest."""
    names = [*_SERVERS, *_AIRFLOW, LOG, *desired_jobs(read_catalog(settings.project), settings)]
    if name not in names and not settings.log(name).exists():
        raise ConfigError(
            [Fault("component", f"no '{name}' (there are: {', '.join(names)})", nearest=nearest(name, names))]
        )
    return str(settings.log(name))
