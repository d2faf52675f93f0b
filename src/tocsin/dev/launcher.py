"""`tocsin dev up`: starts the servers and the jobs, keeps them running, and stops them all at the end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from tocsin.declare.blocks.spark_settings import LOCAL
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.declare.model.names import DRAIN, EXPORTER, WEB
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev import state_folder
from tocsin.dev.job_supervision import JobSupervision
from tocsin.dev.servers import ports
from tocsin.dev.servers.airflow_servers import Airflow
from tocsin.dev.servers.kafka_server import NAME as KAFKA
from tocsin.dev.servers.kafka_server import Kafka
from tocsin.dev.servers.mail_sink import NAME as MAIL
from tocsin.dev.servers.mail_sink import MailSink
from tocsin.dev.servers.ports import LOOPBACK, Ports
from tocsin.dev.servers.server_set import Server, Servers
from tocsin.dev.servers.sink_servers import SinkServers, needed_kinds
from tocsin.dev.startup_progress import Part, StartupProgress
from tocsin.dev.state_folder import Running, announce, withdraw
from tocsin.platform import logs
from tocsin.platform.lock import LockHeld, hold
from tocsin.setup.java import find_java
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.log_files import rotate
from tocsin.supervise.runners.runner import instance_of

LOG = "launcher"
_TICK_SECONDS = 1.5
_STARTING_TICK_SECONDS = 0.25
_STOP_NOTICED_SECONDS = 0.25
_SWEEP_SECONDS = 3.0
_LOCK_TRIES = 5

log = structlog.get_logger()


@dataclass(frozen=True)
class Options:
    """Choices in bringing up a stack.

    Attributes:
        airflow: Airflow runs too, and keeps the jobs running instead of the launcher.
    """

    reset: bool = False
    free_ports: bool = False
    mail_page: int = 1080
    airflow: bool = False


def up(project: Path | None, options: Options, progress: StartupProgress, stop: threading.Event) -> None:
    """Run a stack until `stop` is set. Call it from the main thread, since all processes end with the thread.

    Raises:
        ConfigError: something must be changed first: a port, the state folder, the settings, the set-up.
        StackRuns: one runs on this state folder already.
        TocsinError: a server does not come up; says why, with the end of its log.
    """
    _refuse_shared(load_settings(project))
    state = load_settings(project).state
    state_folder.prepare(state)
    with hold_state(state):
        sweep(load_settings(project), jobs=options.reset)
        if options.reset:
            state_folder.wipe(state)
            state_folder.prepare(state)
        withdraw(state)  # or what a killed launcher announced would be taken for settings
        settings = load_settings(project)
        needed = needed_kinds(settings, read_catalog(settings.project))
        chosen = ports.choose(
            settings, free=options.free_ports, mail_page=options.mail_page, airflow=options.airflow, needed=needed
        )
        settings.log(LOG).parent.mkdir(parents=True, exist_ok=True)
        logs.configure(LOG, file=settings.log(LOG))
        _Launcher(settings, chosen, progress).run(stop)


class StackRuns(TocsinError):
    """A stack runs on this state folder already; stop it first."""


def sweep(settings: Settings, *, jobs: bool = True) -> int:
    """End the servers of this installation that a launcher left behind, and its `jobs`; returns how many there were.

    None on Linux but for jobs that Airflow has started: all others end with their launcher.
    """
    count = 0
    for instance in (servers_instance(settings), *([instance_of(settings)] if jobs else [])):
        runner = LocalRunner(instance, settings.log)
        for process in runner.list():
            runner.stop(process, force=True)
            count += 1
        deadline = time.monotonic() + _SWEEP_SECONDS
        while runner.list() and time.monotonic() < deadline:
            time.sleep(0.05)
    return count


def _refuse_shared(settings: Settings) -> None:
    """Refuse settings of an installation in production: with another Kafka its checkpoints would become worthless."""
    if settings.runner.kind != "local":
        what = 'must be "local" for a stack, whose servers no other machine can reach; see docs/run/kubernetes.md'
        raise ConfigError.one("the settings", what, key="runner.kind")
    shared = {
        "storage.checkpoints": settings.storage.checkpoints is not None,
        "spark.master": settings.spark.master != LOCAL,
    }
    what = "must be left out for a stack, which has a Kafka of its own and must not touch what other machines share"
    if found := [key for key, is_set in shared.items() if is_set]:
        raise ConfigError.one("the settings", f"{what}; give it a project without", key=found[0])


def servers_instance(settings: Settings) -> str:
    """The label of the servers, so that supervision of jobs does not see them."""
    return f"{instance_of(settings)}.servers"


@contextlib.contextmanager
def hold_state(state: Path) -> Iterator[None]:
    """Lock the state folder for one launcher; raises StackRuns if another has it, ConfigError if it is not writable."""
    for left in reversed(range(_LOCK_TRIES)):
        try:
            lock = hold(state / state_folder.LOCK)
            break
        except LockHeld as error:  # by a launcher, or for a moment by `tocsin status`
            if not left:
                what = f"a stack already runs on {state} (process {error.pid}); stop it: tocsin dev down"
                raise StackRuns(what) from error
            time.sleep(0.1)
        except OSError as error:
            raise ConfigError.one(state, f"cannot be used as state folder: {error.strerror}", key="state") from error
    with lock:
        yield


def unwritable(error: OSError) -> Part:
    """Log that the state folder cannot be written, and describe it in a line."""
    log.error("state folder not writable", error=str(error))
    return Part("state folder", False, f"cannot be written: {error}", failing=True)


class _Launcher:
    def __init__(self, settings: Settings, chosen: Ports, progress: StartupProgress) -> None:
        java = find_java()
        at = settings.state
        kafka = Kafka(at / "kafka", settings.log("kafka"), chosen.kafka, chosen.controller, java)
        mail = MailSink(at / "mail", settings.log("mail"), chosen.smtp, chosen.mail_page)
        smtp = settings.smtp.model_copy(update={"host": LOOPBACK, "port": chosen.smtp})
        kafka_settings = settings.kafka.model_copy(update={"bootstrap_servers": kafka.client.bootstrap_servers})
        drain = settings.drain.model_copy(update={"port": chosen.drain})
        web = settings.web.model_copy(update={"port": chosen.web})
        metrics = settings.metrics.model_copy(update={"port": chosen.metrics})
        sinks = SinkServers(settings, chosen.sinks)
        views = sinks.with_addresses(settings.views)
        own = {"kafka": kafka_settings, "smtp": smtp, "drain": drain, "web": web, "metrics": metrics, "views": views}
        self._settings = settings.model_copy(update=own)
        servers: dict[str, Server] = {MAIL: mail, KAFKA: kafka}
        self._airflow = None if chosen.airflow is None else Airflow(self._settings, chosen.airflow, java.home)
        if self._airflow is not None:
            servers |= {component.name: component for component in self._airflow.components()}
        url = self._airflow.url if self._airflow is not None else None
        job_ports = chosen.drain, chosen.web, chosen.metrics
        self._running = Running(
            os.getpid(), chosen.kafka, chosen.smtp, *job_ports, mail.url, url, sinks=sinks.address_files
        )
        self._servers = Servers(self._settings, servers_instance(settings), servers, sinks)
        self._jobs = JobSupervision(self._settings, java.home, supervises=self._airflow is None)
        self._progress = progress

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; whatever happens, nothing is left running."""
        began, ready = time.monotonic(), False
        try:
            also = "" if self._airflow is None else ", and Airflow"
            self._progress.say(f"starting Kafka and the mail sink{also}")
            while not self._rest(stop, _TICK_SECONDS if ready else _STARTING_TICK_SECONDS):
                all_well = self._tick()
                if all_well and not ready:
                    ready = True
                    self._progress.settle()
                    self._progress.say(self._summary(time.monotonic() - began))
        finally:
            self._progress.settle()
            self._stop()

    def _rest(self, stop: threading.Event, seconds: float) -> bool:
        """Wait `seconds`, less when a job ends or `stop` is set; returns whether it is."""
        until = time.monotonic() + seconds
        while not stop.is_set() and time.monotonic() < until:
            if self._jobs.wait_for_end(min(seconds, _STOP_NOTICED_SECONDS)):
                break
        return stop.is_set()

    def _tick(self) -> bool:
        """One look at everything; returns whether all that can come up is up."""
        try:
            serving = self._servers.tick()
            if serving and not self._servers.announced:
                announce(self._settings.state, self._running)
                self._servers.announced = True
            settled = self._jobs.tick(start=serving)
            rotate(self._settings.log(LOG))
        except OSError as error:
            self._jobs.report_unwritable(error)
            self._progress.show([unwritable(error)])
            return False
        self._progress.show([*self._servers.lines(), *self._jobs.lines()])
        return serving and settled

    def _summary(self, seconds: float) -> str:
        failing = [line.name for line in (*self._servers.lines(), *self._jobs.lines()) if line.failing]
        state = (
            f"ready after {seconds:.0f} s" if not failing else f"up after {seconds:.0f} s, without {', '.join(failing)}"
        )
        return "\n".join(
            (
                state,
                f"Kafka      {self._running.kafka_port} on {LOOPBACK}",
                f"mails      {self._running.mail_url}",
                *self._about_jobs(),
                *self._about_sinks(),
                *self._about_airflow(),
                f"logs       {self._settings.log(LOG).parent}",
                "Ctrl-C stops everything",
            )
        )

    def _about_jobs(self) -> list[str]:
        addresses = {
            DRAIN: f"log drain  {LOOPBACK}:{self._running.drain_port}",
            WEB: f"pages      {self._settings.local_web_address} (to log in: tocsin web)",
            EXPORTER: f"metrics    http://{LOOPBACK}:{self._running.metrics_port}/metrics",
        }
        return [addresses[line.name] for line in self._jobs.lines() if line.name in addresses and not line.failing]

    def _about_sinks(self) -> list[str]:
        files = self._running.sinks
        ready = [line.name for line in self._servers.lines() if line.name in files and line.ready]
        return [f"{name:<9}  its address is in {files[name]}" for name in ready]

    def _about_airflow(self) -> list[str]:
        if self._airflow is None:
            return []
        users = ", ".join(self._settings.airflow.users)
        return [f"Airflow    {self._airflow.url} (users {users}; passwords in {self._airflow.passwords})"]

    def _stop(self) -> None:
        """In reverse order of the start; a second signal on the way ends all by force."""
        try:
            if self._airflow is not None:  # first, or it would start the jobs again
                self._progress.say("stopping Airflow")
                api_server, *others = (component.name for component in self._airflow.components())
                self._servers.stop(*others)
                self._servers.stop(api_server)  # a task under way tells it how it ends, and retries for minutes
            self._progress.say("stopping the jobs")
            self._jobs.stop()
            self._progress.say("stopping the servers")
            self._servers.stop()
        except KeyboardInterrupt:
            self._progress.say("killing everything that is left")
        finally:
            left = sweep(self._settings)
            withdraw(self._settings.state)
        self._progress.say("stopped" if not left else f"stopped; {left} killed")
