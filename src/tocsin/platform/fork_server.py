"""Run programs in children of a process that has imported their modules already: a server, and its clients.

A client hands a command, with its environment, folder and standard files, to a server, and learns how it ends. This
file is one, too: `python -I -S fork_server.py COMMAND...` ends as the program does, takes it along when it is killed,
and becomes COMMAND when no server in the folders of `TOCSIN_BATCHES` takes it.

Standard library only, and little of it: the start of the client is most of what a short program costs.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

SOCKET, LOCK, FOLDERS, VARIABLE = "programs.sock", "lock", "batches", "TOCSIN_BATCHES"
"""The socket of a server and what it locks; the folder in the state that has a folder for each; the variable that tells
the client where.
"""
CHILD, JOBS = "TOCSIN_CHILD", "TOCSIN_JOB_SERVER"
"""The variables that a program has which a server runs, and that tell the server of jobs how to run."""
_ANSWER_SECONDS = 10.0
_BEGINS = "begins"
Choose = Callable[[Sequence[str]], Callable[[], int | None] | None]
"""Returns what a child runs for a client's command, in its environment and folder, or None to refuse."""


def listen(path: Path) -> socket.socket:
    """Listen at `path`, where a server that has ended may have left its socket."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with short_path(path) as name:
        listener.bind(name)
    listener.listen(256)
    return listener


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Name `path` by the number of its open folder: the name of a socket has at most 107 bytes."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def serve(
    listener: socket.socket, choose: Choose, *, parent: int | None = None, idle_seconds: float = -1, tied: bool = True
) -> None:
    """Run a program for each connection until the pipe `parent` ends, and then until the last program has ended.

    Each runs in a child, as `choose` says. If `tied` it is killed when its client ends, or this process. With
    `idle_seconds` it returns when there was no program for so long. This process must have no threads.
    """
    poll, running = select.poll(), dict[int, tuple[int, socket.socket]]()
    poll.register(listener, select.POLLIN)
    if parent is not None:
        poll.register(parent, 0)  # its end is reported in any case
    while listener.fileno() >= 0 or running:
        if not (events := poll.poll(-1 if running else 1000 * idle_seconds)):
            return
        descriptor, _ = events[0]  # one at a time: the next may have the number of one that is closed here
        if descriptor == parent:
            poll.unregister(parent)
            poll.unregister(listener)
            listener.close()
        elif descriptor == listener.fileno():
            connection, _ = listener.accept()
            if (child := _fork(connection, choose, tied=tied)) is not None:
                running[handle := os.pidfd_open(child)] = child, connection
                poll.register(handle, select.POLLIN)
                if tied:
                    poll.register(connection, select.POLLRDHUP)
        elif descriptor in running:
            child, connection = running.pop(descriptor)
            poll.unregister(descriptor)
            os.close(descriptor)
            if tied and connection.fileno() >= 0:
                poll.unregister(connection)
            _tell_end(child, connection)
        else:  # a client has ended
            child, connection = next(pair for pair in running.values() if pair[1].fileno() == descriptor)
            poll.unregister(connection)
            connection.close()
            _kill(child)


def _kill(child: int) -> None:
    for kill in (os.kill, os.killpg):  # it may not have a group of its own yet
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)


def _tell_end(child: int, connection: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with connection, contextlib.suppress(OSError):  # the client has ended, or does not want to know
        connection.send(f"{code}\n".encode())


def _fork(connection: socket.socket, choose: Choose, *, tied: bool) -> int | None:
    """Run the program of a client in a child; returns its number, None if there is no room for one."""
    server = os.getpid()
    try:
        if child := os.fork():
            return child
    except OSError:
        connection.close()
        return None
    os.setsid()
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    code = _run(connection, choose, server if tied else None)
    with contextlib.suppress(OSError):
        atexit._run_exitfuncs()  # which leave nothing behind among the temporary files
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(connection: socket.socket, choose: Choose, server: int | None) -> int:
    """Run what the client wants, until `server` ends; returns the exit code."""
    import tempfile  # noqa: PLC0415 - a client has no use for these
    import time  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    from tocsin.platform.child_process import end_with  # noqa: PLC0415

    try:
        if server is not None:
            end_with(server)
        connection.settimeout(_ANSWER_SECONDS)
        _, files, *_ = socket.recv_fds(connection, 1, 3)
        asked = json.loads(connection.makefile().readline())
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        time.tzset()
        tempfile.tempdir = None  # it is that of the server
        if (run := choose(asked["command"])) is None:
            return 0
        connection.sendall(f"{_BEGINS} {os.getpid()}\n".encode())
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return run() or 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def run_program(program: Sequence[str]) -> None:
    """Run a file of Python with arguments, as in a process of its own; it knows by `CHILD` that it has none."""
    import runpy  # noqa: PLC0415 - a client has no use for it

    os.environ[CHILD] = "1"
    sys.argv, sys.path[0] = [*program], str(Path(program[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


class RunningProgram:
    """A program that a server runs, as its client sees it. A `tied` one ends when this object is gone.

    Attributes:
        pid: of the child.
        is_lost: whether the server has ended before the program, or with it.
    """

    def __init__(self, server: socket.socket, pid: int) -> None:
        self.pid, self.is_lost, self._server = pid, False, server
        self._code: int | None = None

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the end; returns the exit code, minus the number of a signal, 1 if lost, None while it runs."""
        if self._code is None and is_readable(self._server, seconds):
            with self._server:
                answer = _line(self._server)
            self._code, self.is_lost = int(answer or 1), not answer
        return self._code

    def poll(self) -> int | None:
        """Return as `wait`, at once."""
        return self.wait(0)

    def close(self) -> None:
        """Take no more notice of the program: a `tied` one is killed."""
        self._server.close()


def is_readable(connection: socket.socket | int, seconds: float | None) -> bool:
    """Wait until `connection` has something to read, or has ended; False if not within `seconds`."""
    poll = select.poll()  # `select` takes no descriptor above 1023
    poll.register(connection, select.POLLIN)
    return poll.poll(None if seconds is None else 1000 * seconds) != []


def begin(
    path: Path, command: Sequence[str], environment: Mapping[str, str], folder: Path, files: Sequence[int]
) -> RunningProgram | None:
    """Let the server at `path` run `command` with three standard `files`; None if it does not begin in time."""
    server = socket.socket(socket.AF_UNIX)
    server.settimeout(_ANSWER_SECONDS)
    try:
        with short_path(path) as name:
            server.connect(name)
        socket.send_fds(server, [b"+"], files)
        asked = {"command": command, "environment": dict(environment), "folder": str(folder)}
        server.sendall(f"{json.dumps(asked)}\n".encode())
    except OSError:
        server.close()
        return None
    begins, _, pid = _line(server).partition(" ")
    if begins != _BEGINS:
        server.close()
        return None
    server.settimeout(None)
    return RunningProgram(server, int(pid))


def _line(server: socket.socket) -> str:
    """Read a line and nothing beyond it; empty when the server has ended, or does not answer."""
    line = b""
    with contextlib.suppress(OSError):
        while (byte := server.recv(1)) not in (b"", b"\n"):
            line += byte
    return line.decode()


def main() -> None:
    """Let a server run the program, or become its command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the program ends with this process
    command, folder = sys.argv[1:], os.environ.get(VARIABLE)
    for path in Path(folder).glob(f"*/{SOCKET}") if folder else ():
        if begun := begin(path, command, os.environ, Path.cwd(), [0, 1, 2]):
            code = begun.wait() or 0
            if begun.is_lost:
                print("the process that ran the program has ended", file=sys.stderr)
            if code < 0:  # killed by this signal
                os.kill(os.getpid(), -code)
            sys.exit(code)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
