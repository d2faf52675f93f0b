"""A stack as a person starts it: `tocsin dev up` in a terminal of its own."""

import contextlib
import os
import signal
import subprocess
import sys
from functools import cached_property
from pathlib import Path

import psutil
import pytest

from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that, patient
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev.launcher import servers_instance, sweep
from tocsin.platform.heartbeat import read_beat
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Process, instance_of

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 240.0
STOP_SECONDS = 60.0


def listening(process: psutil.Process) -> set[str]:
    """The addresses on which `process` listens; one that has ended listens on none."""
    with contextlib.suppress(psutil.NoSuchProcess):
        sockets = process.net_connections(kind="inet")
        return {str(one.laddr[0]) for one in sockets if one.status == psutil.CONN_LISTEN}
    return set()


class Stack:
    """One project with its state folder, and the launcher that may run on it."""

    def __init__(self, folder: Path, *, sources: bool = True) -> None:
        """A project of our sources and detectors, or of none: then only the light jobs run."""
        self.project, self.state = folder / "project", folder / "state"
        self.project.mkdir(parents=True)
        if sources:
            copy_project(self.project)
        self._output = folder / "up.txt"
        self.launcher: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> Settings:
        """The settings of a command in another terminal, now."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOCSIN_STATE", str(self.state))
            return load_settings(self.project)

    def up(self, *options: str, **environment: str) -> None:
        """Start the launcher, without waiting."""
        self._start(["tocsin.cli", "dev", "up", *options], environment)

    def unattended(self, **environment: str) -> None:
        """Start the program that launches jobs alone, without waiting."""
        self._start(["tocsin.dev.unattended"], environment)

    def _start(self, module: list[str], environment: dict[str, str]) -> None:
        with self._output.open("wb") as output:
            command = [sys.executable, "-m", *module]
            variables = self._variables() | environment
            self.launcher = subprocess.Popen(command, env=variables, stdout=output, stderr=output)

    def ready(self) -> None:
        """Wait until it says that it is, and fail with what it said when it ends instead."""
        await_that(lambda: "Ctrl-C stops everything" in self.said() or self.ended(), READY_SECONDS)
        assert not self.ended(), self.said()

    def ended(self) -> bool:
        return self.launcher is None or self.launcher.poll() is not None

    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def tocsin(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command in another terminal."""
        command = [sys.executable, "-m", "tocsin.cli", *words]
        return subprocess.run(command, env=self._variables(), capture_output=True, text=True, timeout=600, check=False)

    def send(self, signum: signal.Signals) -> int:
        """Send a signal to the launcher and wait for its end; its exit code."""
        assert self.launcher is not None
        self.launcher.send_signal(signum)
        return self.launcher.wait(patient(STOP_SECONDS))

    def processes(self) -> list[Process]:
        """All live processes of the stack but for the launcher."""
        return [process for runner in self._runners for process in runner.list()]

    @cached_property
    def _runners(self) -> list[LocalRunner]:
        """Kept, since they remember which processes are none of theirs."""
        settings = self.settings
        return [LocalRunner(name, settings.log) for name in (servers_instance(settings), instance_of(settings))]

    def listening(self) -> set[tuple[str, str]]:
        """The job and the address of every socket on which one of its processes, or a child of one, listens."""
        found: set[tuple[str, str]] = set()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                leader = psutil.Process(process.pid)
                for one in (leader, *leader.children(recursive=True)):
                    found |= {(process.labels.job, address) for address in listening(one)}
        return found

    def pid(self, name: str) -> int | None:
        return next((one.pid for one in self.processes() if one.labels.job == name and one.leader), None)

    def report(self, job: str) -> JobReport:
        beat = read_beat(self.state, job)
        assert beat is not None, job
        return beat.report

    def end(self) -> None:
        """Whatever state it is in: nothing of it is left."""
        if self.launcher is not None and self.launcher.poll() is None:
            self.launcher.terminate()
            try:
                self.launcher.wait(patient(STOP_SECONDS))
            except subprocess.TimeoutExpired:
                self.launcher.kill()
                self.launcher.wait()
        sweep(self.settings)

    def _variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
        home = {"TOCSIN_HOME": os.environ["TOCSIN_HOME"]} if "TOCSIN_HOME" in os.environ else {}
        return kept | home | {"TOCSIN_PROJECT": str(self.project), "TOCSIN_STATE": str(self.state)}
