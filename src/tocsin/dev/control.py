"""A stack seen from another terminal: stop it, and tell how its parts are."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime

from pydantic import BaseModel

from tocsin.dev import state_folder
from tocsin.dev.launcher import LOG, servers_instance, sweep
from tocsin.dev.running_stack import read_running, withdraw
from tocsin.dev.servers import airflow_servers, kafka_server, mail_sink
from tocsin.model.errors import ConfigError, Fault, TransientError, nearest
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.runtime.code_versions import installed_catalog
from tocsin.runtime.lock import LockHeld, hold
from tocsin.supervision.health import JobFacts, Standing, health
from tocsin.supervision.job_kinds import broken_jobs, desired_jobs
from tocsin.supervision.job_states import Condition, Desired, Past, memory_of, read_history
from tocsin.supervision.runners.local import LocalRunner
from tocsin.supervision.runners.process_labels import instance_of
from tocsin.supervision.snapshot import look
from tocsin.supervision.switches import not_stopped

_SERVERS = (kafka_server.NAME, mail_sink.NAME)
_AIRFLOW = tuple(f"{airflow_servers.PREFIX}{name}" for name in airflow_servers.COMPONENTS)
_DOWN_SECONDS = 60.0


class ComponentStatus(BaseModel, frozen=True):
    """One server or job of the stack, as a process.

    Attributes:
        name: "kafka", "mail" or the job.
        pid: of its leading process; null when none runs.
        state: "running" for a server, what a job says of itself, or "absent"; "starting" before a job's first word.
        condition: how it fares in the eyes of supervision.
        standing: ok, warning (it waits or starts), problem, or off (it need not run).
        health: the same in a word or two, such as running, crash loop or silent.
        reason: why it is so, in words.
        started_at: of the process, UTC.
        rss_bytes, cpu_seconds: of the process and its children.
        log: its log file.
    """

    name: str
    pid: int | None = None
    state: str
    condition: str
    standing: Standing
    health: str
    reason: str
    started_at: datetime | None = None
    rss_bytes: int = 0
    cpu_seconds: float = 0.0
    log: str

    @property
    def is_well(self) -> bool:
        """Return whether it works."""
        return self.standing is Standing.OK


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


def components(settings: Settings) -> list[ComponentStatus]:
    """All servers and jobs that run or should run, in the order of the flow."""
    servers = LocalRunner(servers_instance(settings), settings.log)
    jobs = LocalRunner(instance_of(settings), settings.log)
    found = look(settings, installed_catalog(settings), jobs.list())
    broken = broken_jobs(found.catalog)
    wanted = [job for job, one in wanted_jobs(settings).items() if one.readable or job in broken]
    strays = [job for job in found.processes if job not in wanted]
    running = read_running(settings.state)
    expected = _SERVERS + (_AIRFLOW if running is not None and running.airflow_url else ())
    named = {spec.sink for spec in found.catalog.views.values() if spec.stage.runs}
    expected += tuple(kind for kind in (running.sinks if running is not None else ()) if kind in named)
    pasts, live = read_history(memory_of(settings.state, "servers")).jobs, servers.list()
    names = dict.fromkeys([*expected, *(process.labels.job for process in live)])
    of_servers = {
        name: JobFacts(
            at=found.at,
            processes=[process for process in live if process.labels.job == name],
            beats=False,
            past=pasts.get(name, Past()),
        )
        for name in names
    }
    of_jobs = {job: found.facts(job, off=job not in wanted) for job in (*wanted, *strays)}
    return [
        *(_status(settings, servers, name, facts) for name, facts in of_servers.items()),
        *(_status(settings, jobs, job, facts) for job, facts in of_jobs.items()),
    ]


def wanted_jobs(settings: Settings, catalog: Catalog | None = None) -> dict[str, Desired]:
    """The jobs that should run now: those that are declared; with Airflow, but for the paused.

    `catalog` is what is in force; None to read it.
    """
    declared, running = desired_jobs(catalog or installed_catalog(settings), settings), read_running(settings.state)
    if running is None or running.airflow_url is None:
        return declared
    return not_stopped(settings.state, declared)


def component_log(settings: Settings, name: str) -> str:
    """The log file of a server, of a job, or of the launcher.

    Raises:
        ConfigError: there is no such component; names the nearest.
    """
    names = [*_SERVERS, *_AIRFLOW, LOG, *desired_jobs(installed_catalog(settings), settings)]
    if name not in names and not settings.log(name).exists():
        raise ConfigError(
            [Fault("component", f"no '{name}' (there are: {', '.join(names)})", nearest=nearest(name, names))]
        )
    return str(settings.log(name))


def _status(settings: Settings, runner: LocalRunner, name: str, facts: JobFacts) -> ComponentStatus:
    process, beat, found = facts.leader, facts.own_beat, health(facts)
    usage = None if process is None else runner.usage(process)
    word = str(beat.report.state) if beat else "starting" if facts.beats else "running"
    return ComponentStatus(
        name=name,
        pid=None if process is None else process.pid,
        state="absent" if process is None else word,
        condition=str(Condition.BROKEN if facts.faults else facts.past.condition),
        standing=found.standing,
        health=found.word,
        reason=found.reason,
        started_at=None if process is None else datetime.fromtimestamp(process.started_at, UTC),
        rss_bytes=0 if usage is None else usage.rss_bytes,
        cpu_seconds=0.0 if usage is None else round(usage.cpu_seconds, 2),
        log=str(settings.log(name)),
    )
