"""The state folder: one place for everything that runs, marked as ours before anything in it is ever removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import ConfigError, Fault, TransientError, nearest
from tocsin.declare.settings import RUNNING_FILE, Settings
from tocsin.dev.launcher import LOG, servers_instance, sweep
from tocsin.dev.servers import airflow_servers, kafka_server, mail_sink
from tocsin.dev.servers.ports import LOOPBACK
from tocsin.platform import private, state_file
from tocsin.platform.lock import LockHeld, hold
from tocsin.platform.private import MARKER
from tocsin.platform.state_file import FORM_FILE, write_whole
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_states import Desired, Past, memory_of, read_history
from tocsin.supervise.job_status import JobFacts, JobStatus, job_status
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.switches import not_stopped

LOCK = "launcher.lock"
_ROOM_BYTES = 500 * 1024 * 1024


def prepare(state: Path) -> None:
    """Make and mark the folder; raises ConfigError if it is not ours or not writable, or the disk is nearly full."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        if not (state / MARKER).exists() and not _is_ours(state):
            what = f"is not empty and not a state folder of Tocsin; choose an empty one, or create {MARKER} in it"
            raise ConfigError.one(state, what, key="state")
        private.protect(state)
        private.mark(state)
    except OSError as error:
        raise ConfigError.one(state, f"cannot be used as state folder: {error.strerror}", key="state") from error
    free = shutil.disk_usage(state).free
    if free < _ROOM_BYTES:
        needed, left = _ROOM_BYTES // 2**20, free // 2**20
        raise ConfigError.one(state, f"the disk has {left} MB left; at least {needed} MB are needed", key="state")


def wipe(state: Path) -> None:
    """Remove all that the folder holds, but for the lock of whoever calls.

    Raises ConfigError if it is not marked as ours, and touches nothing then, or if it cannot be removed.
    """
    if not state.exists():
        return
    if not (state / MARKER).exists() and any(path.name != LOCK for path in state.iterdir()):
        raise ConfigError.one(state, f"is not marked as a state folder of Tocsin ({MARKER}); not wiped", key="state")
    try:
        for path in state.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
    except OSError as error:
        raise ConfigError.one(error.filename or state, f"cannot be removed: {error.strerror}", key="state") from error


def _is_ours(state: Path) -> bool:
    """Return whether an unmarked folder holds nothing, or only what jobs and commands put there without the stack."""
    ours = (
        "alerts.db",
        "checkpoints",
        "heartbeats",
        "history",
        "logs",
        "parity",
        "quality",
        "supervision",
        FORM_FILE,
        LOCK,
    )
    return all(path.name.startswith(ours) for path in state.iterdir())


_ABOUT_FILE = "stack.json"


@dataclass(frozen=True)
class Running:
    """A stack that runs.

    Attributes:
        sinks: files with the addresses of servers that keep views, by kind; each runs once a view names it.
    """

    pid: int
    kafka_port: int
    smtp_port: int
    drain_port: int
    web_port: int
    metrics_port: int
    mail_url: str
    airflow_url: str | None = None
    sinks: dict[str, Path] = field(default_factory=dict)


def announce(state: Path, running: Running) -> None:
    """Write what the settings and `read_running` read into the state folder; raises OSError if that is not writable."""
    settings = (
        f'[kafka]\nbootstrap_servers = "{LOOPBACK}:{running.kafka_port}"\n\n'
        f'[smtp]\nhost = "{LOOPBACK}"\nport = {running.smtp_port}\n\n'
        f"[drain]\nport = {running.drain_port}\n\n[web]\nport = {running.web_port}\n\n"
        f"[metrics]\nport = {running.metrics_port}\n\n"
        "[views]\n" + "".join(f"{kind}_file = {json.dumps(str(path))}\n" for kind, path in running.sinks.items())
    )
    state_file.write(state / _ABOUT_FILE, Running, running)
    write_whole(state / RUNNING_FILE, settings)


def withdraw(state: Path) -> None:
    """Take back what a stack announced that has ended."""
    for name in (RUNNING_FILE, _ABOUT_FILE):
        (state / name).unlink(missing_ok=True)


def read_running(state: Path) -> Running | None:
    """The stack that runs on this state folder, as far as it announced itself; None when there is none."""
    return state_file.read(state / _ABOUT_FILE, Running, None)


_SERVERS = (kafka_server.NAME, mail_sink.NAME)
_AIRFLOW = tuple(f"{airflow_servers.PREFIX}{name}" for name in airflow_servers.COMPONENTS)
_DOWN_SECONDS = 60.0


def launcher_pid(settings: Settings) -> int | None:
    """The launcher that runs on this state folder; None when none does."""
    if not settings.state.is_dir():
        return None
    try:
        hold(settings.state / LOCK).release()
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
    declared, running = desired_jobs(catalog or read_catalog(settings.project), settings), read_running(settings.state)
    if running is None or running.airflow_url is None:
        return declared
    return not_stopped(settings.state, declared)


def component_log(settings: Settings, name: str) -> str:
    """Return the log file of a server, a job or the launcher; else raises ConfigError, which names the nearest."""
    names = [*_SERVERS, *_AIRFLOW, LOG, *desired_jobs(read_catalog(settings.project), settings)]
    if name not in names and not settings.log(name).exists():
        raise ConfigError(
            [Fault("component", f"no '{name}' (there are: {', '.join(names)})", nearest=nearest(name, names))]
        )
    return str(settings.log(name))
