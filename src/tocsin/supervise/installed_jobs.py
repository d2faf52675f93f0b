"""Handle the jobs of an installation: from the stack, or from short-lived processes such as tasks of Airflow."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from tocsin.declare.blocks.spark_settings import LOCAL
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import JobName, dag_of
from tocsin.declare.settings import Settings
from tocsin.declare.sinks import SINKS
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.platform.state_file import Stamps, stamps
from tocsin.setup.java import find_java
from tocsin.setup.paths import Paths, here
from tocsin.supervise.incidents.conditions import Incident
from tocsin.supervise.incidents.watch import Watch
from tocsin.supervise.job_kinds import desired_jobs, forget_code
from tocsin.supervise.job_states import UNREADABLE, Desired, Start
from tocsin.supervise.job_status import JobStatus, look
from tocsin.supervise.runners.job_children import FOLDER
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.log_files import rotate
from tocsin.supervise.runners.runner import Labels, Launch, Process, Runner, instance_of
from tocsin.supervise.supervisor import JobGroup, Supervisor
from tocsin.supervise.switches import TRUSTED_SECONDS, ask_switches, read_switches, switched_jobs, turned_since

_GROUP = "jobs"
# Longer than a job takes to stop by itself (13 seconds) and than it is given before it is ended (20).
_LOOK_SECONDS = 30.0
# A start that is due sooner is waited for: cheaper and quicker than another run of the DAG.
_WAIT_SECONDS = 3.0
_PAUSE_SECONDS = 0.5
# An older incident has had its run, which housekeeping may have removed.
_SHOWN_SECONDS = 86_400.0
# How often the same difference is sent.
_SHORTEST, _FIRST, _LONGEST = 3.0, 6.0, 60.0


class InstalledJobs:
    """All jobs of one installation."""

    def __init__(
        self, settings: Settings, java_home: Path | None = None, *, tethered: bool = False, detached: bool = False
    ) -> None:
        """`java_home` is the Java of the jobs, None to look for it at each start; the others as of `LocalRunner`."""
        self.settings = settings
        self.runner = runner_of(settings, tethered=tethered, detached=detached)
        self.catalog = FollowedCatalog(settings)
        self._java_home = java_home
        self._seen: tuple[Catalog, Stamps] = Catalog(), frozenset()
        self._declared: dict[str, Desired] = {}
        self.supervisor = Supervisor(JobGroup(name=_GROUP, state=settings.state, launch=self._launch), self.runner)
        self._watch = Watch(settings, _GROUP, self.runner)

    def look(self, is_off: Callable[[str], bool | None]) -> None:
        """Bring the jobs into line with what is declared and switched on; wait up to half a minute for those that stop.

        `is_off` as of `ask_switches`. Raises OSError if the state folder cannot be written; a retry may help.
        """
        deadline = time.monotonic() + _LOOK_SECONDS
        while True:
            catalog = self.catalog.read()
            switches = ask_switches(self.settings.state, switched_jobs(catalog), is_off)
            desired = switches.apply(desired_jobs(catalog, self.settings))
            self.supervisor.tick(desired)
            if time.monotonic() > deadline or not self.supervisor.under_way(desired, _WAIT_SECONDS):
                break
            time.sleep(_PAUSE_SECONDS)
        for job in desired:
            rotate(self.settings.log(job))

    def diff(self) -> frozenset[str]:
        """The jobs that a look would now do something about, and "switch" if a switch was turned since the last one.

        Cheap enough for every second: files are read again only when one has changed.
        """
        root = here().root
        now = self.catalog.read(), stamps(root.glob("src/tocsin/**/*.py"))
        if now != self._seen:
            forget_code()
            self._declared, self._seen = desired_jobs(now[0], self.settings), now
        for job in self._declared:  # within a second: the next look may be a minute away
            rotate(self.settings.log(job))
        switches = read_switches(self.settings.state)
        turned = {"switch"} if turned_since(self.settings.state, switches) else set()
        return self.supervisor.diff(switches.apply(self._declared)) | turned

    def restart_ended(self) -> bool:
        """Start again what has ended since the last look, as that look would; returns whether there was something.

        Call it after `diff`. It leaves to the next look all else, also an end after which nothing is started, of which
        that look tells; and everything after a switch was turned, when the last look is minutes old (its DAG may be
        paused), or where the jobs are in another container. Raises OSError as `look`.
        """
        switches = read_switches(self.settings.state)
        is_late = not 0 <= time.time() - switches.read_at < TRUSTED_SECONDS
        if is_late or turned_since(self.settings.state, switches) or not self.runner.shares_files():
            return False
        on, pasts = switches.apply(self._declared), self.supervisor.pasts()
        ran = {job: wanted for job, wanted in on.items() if job in pasts and pasts[job].spec == wanted.spec}
        others = dict.fromkeys([*on, *pasts], UNREADABLE)
        if starting := self.supervisor.starts({**others, **ran}):
            self.supervisor.tick({**others, **{job: ran[job] for job in ran if job in starting}}, is_look=False)
        return bool(starting)

    def watch(self, *, days: bool = True) -> list[Incident]:
        """Look as `Watch.look`, with its errors; returns the incidents of the last day, which are to be shown."""
        since = time.time() - _SHOWN_SECONDS
        return [incident for incident in self._watch.look(self.catalog.read(), days=days) if incident.at > since]

    def status(self, job: str) -> JobStatus:
        """Return the status of `job` now."""
        found = look(self.settings, self.catalog.read(), self.runner.list())
        return found.status(job, off=found.switches.off.get(dag_of(job)))

    def _launch(self, start: Start) -> Launch:
        labels = Labels(instance_of(self.settings), start.job, start.spec)
        java = self._java_home or _java()
        return job_launch(self.settings, labels, java, beside=start.beside, memory_bytes=start.memory_bytes)


def _java() -> Path:
    java = Path(os.environ.get("JAVA_HOME", ""))
    return java if java.is_relative_to(here().java) else find_java().home


class Sender:
    """Decides whether a difference is sent now: at once when it is new, but at most every 3 seconds.

    What stays as it is is sent again after 6 seconds, then after twice the time each, up to a minute.
    """

    def __init__(self) -> None:
        self._sent: frozenset[str] = frozenset()
        self._at = float("-inf")
        self._delay = _FIRST

    def sends(self, found: frozenset[str], now: float) -> bool:
        """Return whether to send `found` at `now` (seconds of any clock that only goes forward)."""
        if not found:
            self._sent, self._delay = found, _FIRST
            return False
        same = found == self._sent
        if now - self._at < (self._delay if same else _SHORTEST):
            return False
        self._delay = min(_LONGEST, 2 * self._delay) if same else _FIRST
        self._sent, self._at = found, now
        return True


def runner_of(settings: Settings, *, tethered: bool = False, detached: bool = False) -> Runner:
    """Return what runs the jobs of `settings`; the others, see `LocalRunner`, mean nothing to a cluster."""
    if settings.runner.kind == "local":
        servers = settings.state / FOLDER
        return LocalRunner(instance_of(settings), settings.log, tethered=tethered, detached=detached, servers=servers)
    from tocsin.supervise.runners.cluster_runner import ClusterRunner  # noqa: PLC0415 - most installations have no cluster

    return ClusterRunner(settings)


def process_reader(settings: Settings) -> Callable[[], Sequence[Process] | None]:
    """Return what lists the live processes for a reader.

    None if a cluster runs them: whoever only reads goes by what jobs report, and needs no account of the cluster.
    """
    return runner_of(settings).list if settings.runner.kind == "local" else lambda: None


# What a job inherits. Nothing else: an Airflow task, a Python path or a Spark of the user must not reach it.
# JDK_JAVA_OPTIONS is Java's own way to give an option to every JVM.
_INHERITED = (
    *("PATH", "HOME", "USER", "LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("TOCSIN_HOME", "JDK_JAVA_OPTIONS"),
)
_INHERITED_ON_CLUSTERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "KUBECONFIG")  # they say where YARN and Kubernetes are
# The role of a machine or container, as Amazon's clients find it; the keys themselves are in files.
_INHERITED_FOR_STORES = (
    *("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_SESSION_NAME", "AWS_PROFILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)


def job_launch(
    settings: Settings, labels: Labels, java_home: Path, *, beside: bool = False, memory_bytes: int | None = None
) -> Launch:
    """Build the start of a job, with `beside` to take over from the leading one; raises ConfigError without PySpark."""
    paths = here()
    return Launch(
        labels=labels,
        command=(*_command(paths, labels.job), *(("--beside",) if beside else ()), *labels.arguments()),
        environment=job_environment(_for_job(settings, labels.job), java_home),
        directory=paths.root,
        log=settings.log(labels.job),
        memory_bytes=memory_bytes,
    )


def job_environment(settings: Settings, java_home: Path) -> dict[str, str]:
    """The environment of a job: what it needs of ours, and exactly these settings, whatever files come to say later."""
    paths = here()
    inherited = (
        *_INHERITED,
        *(_INHERITED_ON_CLUSTERS if settings.spark.master != LOCAL else ()),
        *(_INHERITED_FOR_STORES if settings.storage.is_remote or settings.storage.has_remote_history else ()),
    )
    python = str(paths.venv / "bin" / "python")
    return {
        **{name: os.environ[name] for name in inherited if name in os.environ},
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(paths.package("pyspark")),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONUNBUFFERED": "1",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",  # else Java opens no path that is not ASCII where systemd or a container sets none
        **setting_variables(settings),
    }


def _command(paths: Paths, job: str) -> tuple[str, ...]:
    name = JobName.parse(job)
    return (str(paths.venv / "bin" / "python"), "-m", "tocsin.job", name.kind, *([name.name] if name.name else []))


def _for_job(settings: Settings, job: str) -> Settings:
    """Remove from `settings` the logins on Kafka of other jobs, and the addresses that `job` does not use."""
    kind = JobName.parse(job).kind
    views = (
        settings.views if "views" in KINDS[kind].settings else settings.views.model_copy(update=dict.fromkeys(SINKS))
    )
    return settings.model_copy(update={"kafka": settings.kafka.for_role(kind), "views": views})


def setting_variables(settings: Settings) -> dict[str, str]:
    """Write `settings` as the variables from which `load_settings` makes them again."""
    variables = {"TOCSIN_PROJECT": str(settings.project.resolve()), "TOCSIN_STATE": str(settings.state.resolve())}
    for name in type(settings).model_fields.keys() - {"project", "state"}:
        value = getattr(settings, name)
        variables[f"TOCSIN_{name.upper()}"] = value if isinstance(value, str) else json.dumps(value, default=_text)
    return variables


def _text(value: object) -> object:
    """Values that JSON does not know, as the settings take them."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    return str(value)
