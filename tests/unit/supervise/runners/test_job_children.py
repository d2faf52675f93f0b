"""Jobs as children of a server: they are what a start by their command makes of them, whoever ends first."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.rig.waiting import await_that
from tocsin.declare.settings import Settings
from tocsin.dev.servers.ports import free_ports
from tocsin.platform import fork_server
from tocsin.platform.lock import hold
from tocsin.platform.process_exit import ExitCode
from tocsin.supervise.installed_jobs import job_launch
from tocsin.supervise.runners import job_children
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch

JOB = "exporter"
Make = Callable[..., LocalRunner]


@pytest.fixture
def instance() -> str:
    return f"test {uuid.uuid4().hex[:8]}"


@pytest.fixture
def make(tmp_path: Path, instance: str) -> Iterator[Make]:
    def make(**how: bool) -> LocalRunner:
        one = LocalRunner(instance, lambda job: tmp_path / f"{job}.log", servers=tmp_path / "servers", **how)
        made.append(one)
        return one

    made: list[LocalRunner] = []
    yield make
    for one in made:
        for process in one.list():
            one.stop(process, force=True)
        while one.list():
            time.sleep(0.01)
    for lock in (tmp_path / "servers").glob("*/lock"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(lock.read_text()), signal.SIGKILL)


@pytest.fixture
def launch(tmp_path: Path, instance: str) -> Launch:
    settings = Settings(project=tmp_path, state=tmp_path / "state", metrics={"port": free_ports(1)[0]})
    made = job_launch(settings, Labels(instance, JOB, "abc"), Path("/java"))
    return replace(made, log=tmp_path / f"{JOB}.log")


def test_a_job_is_a_child_of_a_server_and_all_else_as_by_its_command(
    make: Make, launch: Launch, tmp_path: Path
) -> None:
    runner = make(tethered=True)
    pid = runner.start(launch)
    (found,) = make().list()
    assert (found.pid, found.labels, found.leader) == (pid, launch.labels, True)
    one = psutil.Process(pid)
    assert (one.name(), one.cmdline(), one.cwd()) == ("python", list(launch.command), str(launch.directory))
    assert (os.getsid(pid), os.getpgid(pid)) == (pid, pid)
    await_that(lambda: "started" in launch.log.read_text())
    parents = {one.ppid(), psutil.Process(runner.start(launch)).ppid()}
    assert parents == {int(lock.read_text()) for lock in (tmp_path / "servers").glob("*/lock")}, "one server for both"
    await_that(lambda: runner.exit_code(JOB) is not None)
    assert runner.exit_code(JOB) == ExitCode.LOCKED, "by the first"
    one.kill()
    await_that(lambda: not runner.list())
    pid = runner.start(launch)
    assert runner.exit_code(JOB) is None
    os.kill(pid, signal.SIGKILL)
    await_that(lambda: runner.exit_code(JOB) == -signal.SIGKILL)


def test_a_tethered_job_ends_with_whoever_started_it(make: Make, launch: Launch, tmp_path: Path) -> None:
    code = """
import pickle, sys, time
from pathlib import Path
from tocsin.supervise.runners.local import LocalRunner
launch = pickle.load(sys.stdin.buffer)
runner = LocalRunner(launch.labels.instance, lambda _: launch.log, tethered=True, servers=Path(sys.argv[1]))
print(runner.start(launch), flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "servers")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdin
        assert starter.stdout
        starter.stdin.write(pickle.dumps(launch))
        starter.stdin.close()
        pid = int(starter.stdout.readline())
        server = psutil.Process(pid).ppid()
        assert [process.pid for process in make().list()] == [pid]
        starter.kill()
    await_that(lambda: not psutil.pid_exists(pid) and not psutil.pid_exists(server))


def test_a_detached_job_goes_on_without_its_server_and_the_next_gets_another(
    make: Make, launch: Launch, tmp_path: Path
) -> None:
    runner = make(detached=True)
    assert runner.start(launch) == 0
    (process,) = runner.list()
    server = psutil.Process(psutil.Process(process.pid).ppid())
    assert server.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    await_that(lambda: "started" in launch.log.read_text())
    server.kill()
    server.wait(30)
    assert runner.start(replace(launch, labels=replace(launch.labels, spec="def"))) == 0
    first, second = runner.list()
    assert first == process
    assert psutil.Process(second.pid).ppid() not in (server.pid, os.getpid())
    await_that(lambda: runner.exit_code(JOB) == ExitCode.LOCKED)
    assert runner.list() == [process]


def test_where_no_server_starts_a_job_starts_by_its_command(make: Make, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "servers").touch()
    runner = make(tethered=True)
    pids = [runner.start(launch) for _ in range(2)]
    assert {psutil.Process(pid).ppid() for pid in pids} == {os.getpid()}


def test_a_server_that_another_process_starts_is_waited_for_and_asked_again_a_minute_after_it_did_not_come(
    make: Make, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_children, "_START_SECONDS", 0.3)
    runner = make(tethered=True)
    assert runner._forks
    path = runner._forks._folder / runner._forks._code(launch) / fork_server.LOCK
    with hold(path):
        by_command = [runner.start(launch) for _ in range(2)]
    assert {psutil.Process(pid).ppid() for pid in by_command} == {os.getpid()}
    monkeypatch.setattr(job_children, "_START_SECONDS", 30.0)
    monkeypatch.setattr(runner._forks, "_next_at", time.monotonic() - 1.0)
    lock = hold(path)
    threading.Timer(0.3, lock.release).start()
    assert psutil.Process(runner.start(launch)).ppid() == int(path.read_text())


def test_of_a_job_that_outlives_its_server_the_exit_code_is_in_its_file(make: Make, launch: Launch) -> None:
    runner = make()
    job = psutil.Process(runner.start(launch))
    await_that(lambda: "started" in launch.log.read_text())
    psutil.Process(job.ppid()).kill()
    await_that(lambda: job.ppid() == 1)
    assert (job.is_running(), runner.exit_code(JOB)) == (True, None)
    runner.start(launch)
    await_that(lambda: runner.exit_code(JOB) == ExitCode.LOCKED)
