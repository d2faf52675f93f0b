"""A fork server: what a client gets of the program that runs there, and what ends with what."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.rig.waiting import await_that
from tocsin.platform import fork_server

SERVES = """
import os, sys
from functools import partial
from pathlib import Path
from tocsin.platform.fork_server import listen, run_program, serve
listener = listen(Path(sys.argv[1]))
print("listens", flush=True)
ends = {"idle_seconds": 0.5, "tied": False} if sys.argv[2] == "free" else {"parent": 0}
if sys.argv[2] == "full":
    os.fork = partial(os.stat, "nowhere")
serve(listener, lambda command: partial(run_program, command[1:]) if os.environ["TAKEN"] else None, **ends)
"""
PROGRAM = """
import atexit, os, subprocess, sys, time
from pathlib import Path
atexit.register(lambda: print("at its exit"))
print(sys.argv[1:], os.environ["WHO"], Path.cwd(), sys.stdin.read())
print("to standard error", file=sys.stderr)
if wait := os.environ.get("WAIT"):
    child = subprocess.Popen(["sleep", "1000"])
    Path(wait + ".pids").write_text(f"{os.getpid()} {child.pid}")
    while not Path(wait).exists():
        time.sleep(0.01)
    child.kill()
if text := os.environ.get("TEXT"):
    sys.exit(text)
sys.stdout.flush()
os.kill(os.getpid(), 9) if sys.argv[1] == "-9" else sys.exit(int(sys.argv[1]))
"""

Starts = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=["tied"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    (folder := tmp_path / ("long" * 30) / "code").mkdir(parents=True)
    command = [sys.executable, "-c", SERVES, fork_server.SOCKET, request.param]
    with subprocess.Popen(command, cwd=folder, stdin=-1, stdout=-1, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "listens\n"
        yield server
        server.kill()


@pytest.fixture
def start(server: subprocess.Popen[str], tmp_path: Path) -> Iterator[Starts]:
    (program := tmp_path / "program.py").write_text(PROGRAM)
    (instead := tmp_path / "instead").write_text('#!/bin/sh\necho "instead $@"\nexit 5\n')
    instead.chmod(0o755)
    (folder := tmp_path / "folder").mkdir()

    def start(code: int, **environment: str) -> subprocess.Popen[str]:
        own = {fork_server.VARIABLE: str(tmp_path / ("long" * 30)), "WHO": "ann", "TAKEN": "yes", **environment}
        command = [sys.executable, "-I", "-S", fork_server.__file__, str(instead), str(program), str(code), "a b"]
        client = subprocess.Popen(command, cwd=folder, env=own, stdin=-1, stdout=-1, stderr=-1, text=True)
        return clients.enter_context(client)

    with ExitStack() as clients:
        yield start


@pytest.mark.parametrize("code", [0, 20, -9])
def test_a_program_has_what_its_client_has_and_the_client_its_output_and_its_end(
    start: Starts, tmp_path: Path, code: int
) -> None:
    client = start(code)
    output, errors = client.communicate("input")
    last = "at its exit\n" if code >= 0 else ""
    assert output == f"['{code}', 'a b'] ann {tmp_path / 'folder'} input\n{last}"
    assert errors == "to standard error\n"
    assert client.returncode == code


def test_what_a_program_says_last_is_written_and_code_1(start: Starts) -> None:
    client = start(0, TEXT="it is wrong")
    assert client.communicate("")[1].endswith("it is wrong\n")
    assert client.returncode == 1


def test_a_client_that_is_killed_takes_its_program_with_it_and_no_other(start: Starts, tmp_path: Path) -> None:
    clients = {name: start(7, WAIT=str(tmp_path / name)) for name in ("first", "second")}
    pids = {name: _pids(client, tmp_path / f"{name}.pids") for name, client in clients.items()}
    clients["first"].kill()
    await_that(lambda: not any(map(_runs, pids["first"])), 30)
    assert all(map(_runs, pids["second"]))
    (tmp_path / "second").touch()
    assert clients["second"].wait() == 7


def test_a_server_whose_parent_ends_takes_no_more_and_ends_with_its_last_program(
    start: Starts, server: subprocess.Popen[str], tmp_path: Path
) -> None:
    client = start(7, WAIT=str(tmp_path / "ends"))
    _pids(client, tmp_path / "ends.pids")
    assert server.stdin
    server.stdin.close()
    await_that(lambda: start(0).communicate("")[0].startswith("instead"), 30)
    assert server.poll() is None
    (tmp_path / "ends").touch()
    assert (client.wait(), server.wait()) == (7, 0)


def test_a_program_ends_with_its_server_and_the_client_says_so(
    start: Starts, server: subprocess.Popen[str], tmp_path: Path
) -> None:
    client = start(0, WAIT=str(tmp_path / "ends"))
    pid, child = _pids(client, tmp_path / "ends.pids")
    server.kill()
    assert client.wait() == 1
    await_that(lambda: not _runs(pid), 30)
    os.kill(child, signal.SIGKILL)
    assert client.stderr
    assert client.stderr.read().endswith("the process that ran the program has ended\n")


def test_a_program_that_its_server_does_not_take_is_run_by_its_command(start: Starts, tmp_path: Path) -> None:
    client = start(0, TAKEN="")
    assert client.communicate("")[0] == f"instead {tmp_path / 'program.py'} 0 a b\n"
    assert client.returncode == 5


@pytest.mark.parametrize("server", ["free"], indirect=True)
def test_programs_of_a_server_that_is_not_tied_outlive_client_and_server_which_ends_when_it_has_none(
    start: Starts, server: subprocess.Popen[str], tmp_path: Path
) -> None:
    clients = [start(7, WAIT=str(tmp_path / name)) for name in ("first", "second")]
    pids = [_pids(client, tmp_path / f"{name}.pids") for client, name in zip(clients, ("first", "second"), strict=True)]
    for client in clients:
        client.kill()
    (tmp_path / "first").touch()
    await_that(lambda: not any(map(_runs, pids[0])), 30)
    assert server.poll() is None, "it has the second"
    (tmp_path / "second").touch()
    assert server.wait(30) == 0
    assert not any(map(_runs, pids[1]))


@pytest.mark.parametrize("server", ["free"], indirect=True)
def test_a_program_of_a_server_that_is_not_tied_goes_on_without_it(
    start: Starts, server: subprocess.Popen[str], tmp_path: Path
) -> None:
    client = start(7, WAIT=str(tmp_path / "ends"))
    pid, child = _pids(client, tmp_path / "ends.pids")
    server.kill()
    assert client.wait() == 1
    assert _runs(pid)
    (tmp_path / "ends").touch()
    await_that(lambda: not _runs(pid) and not _runs(child), 30)


@pytest.mark.parametrize("server", ["full"], indirect=True)
def test_a_server_without_room_for_a_child_says_so_at_once(start: Starts, server: subprocess.Popen[str]) -> None:
    began = time.monotonic()
    assert start(0).communicate("")[0].startswith("instead")
    assert time.monotonic() - began < fork_server._ANSWER_SECONDS
    assert server.poll() is None


def _pids(client: subprocess.Popen[str], file: Path) -> list[int]:
    assert client.stdin
    client.stdin.close()
    await_that(lambda: file.exists() and len(file.read_text().split()) == 2, 30)
    return [int(pid) for pid in file.read_text().split()]


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
