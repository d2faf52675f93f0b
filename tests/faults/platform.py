"""A whole platform under test: `tocsin dev up --airflow`, as a person starts it, with seven detectors on one source."""

import contextlib
import json
import os
import random
import signal
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Self

import psutil

from tests.rig.airflow_api import Api
from tests.rig.installation import jvms_of
from tests.rig.observed import DETECTOR, INGEST, Observed, low_limits
from tests.rig.stack import Stack
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import INDEXER, NOTIFIER, detector_job
from tocsin.dev.launcher import servers_instance
from tocsin.dev.servers.airflow_servers import COMPONENTS, PREFIX
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.lock import LockHeld, hold
from tocsin.spark.engine.deaths import FOLDER
from tocsin.supervise.incidents.event_log import read_events
from tocsin.supervise.job_states import History, Past, memory_of, read_history, write_history
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Process, instance_of
from tocsin.supervise.switches import read_switches

# They find what the first finds and notify nobody.
SHADOWS = tuple(f"opinion_{number}" for number in range(6))
DETECTORS = (DETECTOR, *SHADOWS)
ENGINES = {"engine:live-1": (DETECTOR,), "engine:shadow-1": SHADOWS}
JOBS = (*ENGINES, INGEST, *map(detector_job, DETECTORS), INDEXER, NOTIFIER)
AIRFLOW = tuple(f"{PREFIX}{component}" for component in COMPONENTS)
ALL_OF_AIRFLOW = "all of Airflow"
_AT_WORK = (JobState.RUNNING, JobState.DRAINING)


class Platform(Observed):
    """A stack with Airflow; leaving the `with` block ends all of it."""

    def __init__(self, folder: Path, *, short_batches: bool = True) -> None:
        """Nothing runs yet; with `short_batches` there are many boundaries to hit, and more work for the machine."""
        self.stack, self._short = Stack(folder), short_batches
        low_limits(self.stack.project)
        detectors = self.stack.project / "detectors"
        text = (detectors / f"{DETECTOR}.py").read_text()
        assert 'stage="live"' in text
        for shadow in SHADOWS:
            (detectors / f"{shadow}.py").write_text(text.replace('stage="live"', 'stage="shadow"'))
        super().__init__(self.stack.settings)

    def __enter__(self) -> Self:
        try:
            short = {"TOCSIN_SPARK__TRIGGER_SECONDS": "5", "TOCSIN_SPARK__INGEST_TRIGGER_SECONDS": "5"}
            self.stack.up("--free-ports", "--airflow", **(short if self._short else {}))
            self.stack.ready()
        except BaseException:
            self.stack.end()
            raise
        self.settings = self.stack.settings
        about = json.loads((self.settings.state / "stack.json").read_text())
        self.runner = LocalRunner(instance_of(self.settings), self.settings.log)
        self.servers = LocalRunner(servers_instance(self.settings), self.settings.log)
        self._home = self.settings.state / "airflow"
        self.api = Api(about["airflow_url"], self._home / "passwords.json", "operator")
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.end()

    def message_ids(self) -> list[str]:
        kept = (self.settings.state / "mail").glob("*.eml")
        return [str(BytesHeaderParser().parsebytes(path.read_bytes())["Message-ID"]) for path in kept]

    # --- what runs ----------------------------------------------------------------------------------------------------

    def jobs(self) -> list[Process]:
        """The live processes of all jobs: leaders, and parts that have lost theirs."""
        return list(self.runner.list())

    def pids(self) -> dict[str, int]:
        """The leader of each job."""
        return {process.labels.job: process.pid for process in self.jobs() if process.leader}

    def told_of(self, job: str, since: float) -> str:
        """What supervision did to `job` since then, and why."""
        events = read_events(self.settings.state, job)
        return "; ".join(f"{one.what}: {one.reason}" for one in events if one.at >= since)

    def lacks(self) -> list[str]:
        """What is not as it should be, in words; nothing when each job runs once and all of Airflow is there."""
        processes = self.jobs()
        running = {process.labels.job: process.pid for process in processes if process.leader}
        found = [f"{one.labels.job} ({one.pid}) has lost its leader" for one in processes if not one.leader]
        found += [f"{job} does not run" for job in JOBS if not self._works(job, running.get(job))]
        if len(running) != sum(process.leader for process in processes):
            found.append(f"a job runs twice: {processes}")
        servers = {process.labels.job for process in self.servers.list() if process.leader}
        return found + [f"{name} does not run" for name in AIRFLOW if name not in servers]

    def looked_at(self) -> float:
        """When the last look of a supervisor began, seconds since the epoch."""
        return read_switches(self.settings.state).read_at

    def forgive(self, job: str) -> None:
        """Let supervision forget that `job` has failed, so that it is started at once the next time."""
        memory = memory_of(self.settings.state, "jobs")
        while True:
            with contextlib.suppress(LockHeld), hold(memory.with_suffix(".lock")):
                history = read_history(memory)
                kept = history.jobs[job]
                past = Past(spec=kept.spec, started_at=kept.started_at, expected=kept.expected, asked=kept.asked)
                write_history(memory, History(jobs={**history.jobs, job: past}, heavy_start_at=history.heavy_start_at))
                return

    # --- kills --------------------------------------------------------------------------------------------------------

    def kill(self, victim: str, chance: random.Random | None = None) -> str:
        """SIGKILL to a job (given a `chance`, perhaps to a part of it), a component of Airflow, or ALL_OF_AIRFLOW.

        Given a `chance`, the JVM of a job may also just hang: it is never resumed. Returns what was done, in words.
        """
        if victim == ALL_OF_AIRFLOW:
            _send(signal.SIGKILL, self._all_of_airflow())
            return victim
        if victim in AIRFLOW:
            pid = self.stack.pid(victim)
            _send(signal.SIGKILL, [] if pid is None else [psutil.Process(pid)])
            return victim
        if victim in ENGINES:  # each death is the first, or its jobs would get JVMs of their own, and kills would miss
            (self.settings.state / FOLDER / f"{victim.partition(':')[2]}.json").unlink(missing_ok=True)
        leader = psutil.Process(self.pids()[victim])
        jvms = jvms_of(leader)
        what = chance.choice(["all", "python", "jvm", "jvm hangs"]) if jvms and chance else "all"
        victims = {"all": [leader, *jvms], "python": [leader]}.get(what, jvms)
        _send(signal.SIGSTOP if what == "jvm hangs" else signal.SIGKILL, victims)
        return f"{victim} ({what})"

    def _works(self, job: str, pid: int | None) -> bool:
        beat = read_beat(self.settings.state, job)
        return beat is not None and beat.report.pid == pid and beat.report.state in _AT_WORK

    def _all_of_airflow(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("AIRFLOW_HOME") == str(self._home):
                    found.append(process)
        return found


def _send(what: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, what)
