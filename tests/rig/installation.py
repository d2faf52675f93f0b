"""One installation under test: a broker, a project, a mail sink, and jobs that can be killed in every way."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.rig.broker import Broker
from tests.rig.broker_set import BrokerSet
from tests.rig.checkpoints import Logs
from tests.rig.mail_server import MailServer
from tests.rig.observed import Observed, low_limits
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that, awaited
from tocsin.declare.blocks.spark_settings import EngineSettings, SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.setting_blocks import AlertSettings, SmtpSettings
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment, job_launch
from tocsin.supervise.job_states import Start
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch, Process, instance_of

READY_SECONDS = 120.0
SERVERS = here().root / ".tocsin" / "test_servers" / str(os.getpid())
"""One folder for all installations of this process: their jobs run the same code, and their servers end with it."""
STOP_SECONDS = 20.0


class Installation(Observed):
    """The jobs and the state of one test; leaving the `with` block ends all of it."""

    def __init__(self, folder: Path, broker: Broker | BrokerSet, *, engine: bool = False, **spark: Any) -> None:
        """A project with the checkout's source and detector (with the limits of the load), and topics of its own.

        `spark` are fields of SparkSettings; real-time batches take 5 seconds unless said otherwise, so that there are
        many boundaries to hit. With `engine` the detector attaches to one, which is to be started too.
        """
        self.sink = MailServer()
        project = folder / "project"
        copy_project(project)
        low_limits(project)
        settings = Settings(
            project=project,
            state=folder / "state",
            instance="faults",
            kafka=broker.kafka.model_copy(update={"topic_prefix": f"{folder.name}."}),
            smtp=SmtpSettings(port=self.sink.port),
            alerts=AlertSettings(group_interval=timedelta(seconds=1)),
            spark=SparkSettings(**{"trigger_seconds": 5, "ingest_trigger_seconds": 5, **spark}),
            engine=EngineSettings(enabled=engine),
        )
        super().__init__(settings)
        self.catalog = read_catalog(project)
        self._java = find_java()
        self._instance = instance_of(self.settings)
        self._leaders: dict[str, int] = {}
        self.runner = LocalRunner(self._instance, self.settings.log, tethered=True, servers=SERVERS)

    def __enter__(self) -> Installation:
        self.sink.start()
        return self

    def __exit__(self, *exception: object) -> None:
        awaited(self._is_killed, STOP_SECONDS)
        self.sink.stop()

    def _is_killed(self) -> bool:
        for process in self.runner.list():
            self.runner.stop(process, force=True)
        return not self.runner.list()

    def message_ids(self) -> list[str]:
        return [str(mail["Message-ID"]) for mail in self.sink.mails]

    def make_topics(self) -> None:
        ensure_topics(self.settings, self.catalog)

    def environment(self) -> dict[str, str]:
        """For a `tocsin` command of this installation."""
        return {**os.environ, **job_environment(self.settings, self._java.home)}

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def start(self, *jobs: str) -> None:
        """Start `jobs`, without waiting for them."""
        for job in jobs:
            self._leaders[job] = self.runner.start(self.launch(Start(job, "test", "")))

    def launch(self, start: Start) -> Launch:
        labels = Labels(self._instance, start.job, start.spec)
        return job_launch(self.settings, labels, self._java.home, beside=start.beside)

    def follow(self, job: str) -> None:
        """Somebody else has started `job` again: its one process is the one that is meant from now on."""
        (self._leaders[job],) = [process.pid for process in self._of(job) if process.leader]

    def stop(self, job: str) -> int | None:
        """Ask `job` to stop, wait until it has, and return its exit code."""
        for process in self._of(job):
            self.runner.stop(process)
        await_that(lambda: not self._of(job), STOP_SECONDS)
        return self.runner.exit_code(job)

    def kill(self, job: str, what: str = "all") -> None:
        """SIGKILL to the processes of `job`: "all", "python" (its JVM is left behind) or "jvm" (Python is)."""
        leader = self.leader(job)
        jvms = jvms_of(leader)
        victims = {"all": [leader, *jvms], "python": [leader], "jvm": jvms}[what]
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGKILL)

    def await_end(self, job: str) -> None:
        """Wait until nothing of `job` is left; parts without their leader are ended by force, as supervision does."""

        def is_gone() -> bool:
            rest = self._of(job)
            for part in rest:
                if not part.leader:
                    self.runner.stop(part, force=True)
            return not rest

        await_that(is_gone, STOP_SECONDS)

    def kill_if(
        self, condition: Callable[[], bool], job: str, what: str = "all", moment: Callable[[], object] = lambda: None
    ) -> bool:
        """Kill `job` if `condition` holds while all of it stands still, from `moment` on; return whether it did."""
        with frozen(self.leader(job), moment):
            if condition():
                self.kill(job, what)
                return True
        return False

    def kill_between_flush_and_commit(self, job: str, what: str = "all") -> None:
        """Kill `job` when all that a batch has written is out, and the batch is not committed: it is run again."""
        checkpoint = self.settings.checkpoint(job)
        await_that(lambda: Logs.of(checkpoint) is not None, READY_SECONDS)  # before that, it may say that it drains
        logs = Logs.of(checkpoint)
        assert logs is not None
        assert any(self.kill_if(logs.is_pending, job, what, logs.await_flushed) for _ in range(10))

    def leader(self, job: str) -> psutil.Process:
        """The Python process of `job`."""
        return psutil.Process(self._leaders[job])

    def await_ready(self, *jobs: str) -> None:
        """Wait until each of `jobs` says that it runs or drains."""
        for job in jobs:
            await_that(partial(self.is_ready, job), READY_SECONDS)

    def is_ready(self, job: str) -> bool:
        """Whether `job` says that it runs or drains."""
        return self.state(job) in (JobState.RUNNING, JobState.DRAINING)

    def report(self, job: str) -> JobReport | None:
        """What the live process of `job` last said; None before it has said anything."""
        beat, alive = read_beat(self.settings.state, job), self.runner.exit_code(job) is None
        return beat.report if beat is not None and alive and beat.report.pid == self._leaders.get(job) else None

    def state(self, job: str) -> JobState | None:
        report = self.report(job)
        return None if report is None else report.state

    def log(self, job: str) -> str:
        path = self.settings.log(job)
        return path.read_text(errors="replace") if path.exists() else ""

    def _of(self, job: str) -> list[Process]:
        return [process for process in self.runner.list() if process.labels.job == job]


@contextlib.contextmanager
def frozen(leader: psutil.Process, moment: Callable[[], object] = lambda: None) -> Iterator[None]:
    """All processes of a job stand still inside the block, from `moment` on; those that live go on after it."""
    children = leader.children(recursive=True)  # before, as it takes longer than the end of a batch
    members = [*children, leader]
    moment()
    try:
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # a helper of a moment
                child.suspend()
        leader.suspend()
        yield
    finally:
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()


def jvms_of(leader: psutil.Process) -> list[psutil.Process]:
    """The JVMs that a job has started; a helper of a moment may end while it is looked at."""
    found = []
    for child in leader.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "java" in child.name():
                found.append(child)
    return found
