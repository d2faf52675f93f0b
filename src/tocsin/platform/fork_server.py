"""Run programs in children of a process that has imported their modules already: a server, and its client.

The client hands a command, with its environment, folder and standard files, to a server, and ends as the program does.
Whoever kills it kills the program, too. `python -I -S fork_server.py COMMAND...` is a client that becomes COMMAND when
no server in the folders of `TOCSIN_BATCHES` takes it.

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
from collections.abc import Callable, Sequence
from pathlib import Path

SOCKET, FOLDERS, VARIABLE = "programs.sock", "batches", "TOCSIN_BATCHES"
"""The socket of a server; the folder in the state that has a folder for each; the variable that tells the client where.
"""
CHILD = "TOCSIN_CHILD"
"""The variable that a program has which a server runs."""
_ANSWER_SECONDS = 30.0
_BEGINS = "begins\n"


def serve(listener: socket.socket, parent: int, choose: Callable[[Sequence[str]], Sequence[str]]) -> None:
    """Run a program for each connection until the pipe `parent` ends, and then until the last program has ended.

    Each runs in a child. There `choose` finds the program and its arguments in the client's command, with environment
    and folder of the client; none if it must not run here. This process must have no threads.
    """
    poll, running = select.poll(), dict[int, tuple[int, socket.socket]]()
    poll.register(listener, select.POLLIN)
    poll.register(parent, 0)  # its end is reported in any case
    while listener.fileno() >= 0 or running:
        descriptor, _ = poll.poll()[0]  # one at a time: the next may have the number of one that is closed here
        if descriptor == parent:
            poll.unregister(parent)
            poll.unregister(listener)
            listener.close()
        elif descriptor == listener.fileno():
            connection, _ = listener.accept()
            with contextlib.suppress(OSError):  # no room for a child: the client sees the connection end
                child = _fork(connection, choose)
                running[handle := os.pidfd_open(child)] = child, connection
                poll.register(handle, select.POLLIN)
                poll.register(connection, select.POLLRDHUP)
        elif descriptor in running:
            child, connection = running.pop(descriptor)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            poll.unregister(descriptor)
            os.close(descriptor)
            if connection.fileno() >= 0:
                poll.unregister(connection)
                with connection, contextlib.suppress(OSError):
                    connection.send(f"{code}\n".encode())
        else:  # a client has ended
            child, connection = next(pair for pair in running.values() if pair[1].fileno() == descriptor)
            poll.unregister(connection)
            connection.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)


def _fork(connection: socket.socket, choose: Callable[[Sequence[str]], Sequence[str]]) -> int:
    server, child = os.getpid(), os.fork()
    if child:
        with contextlib.suppress(OSError):  # the child was quicker
            os.setpgid(child, child)
        return child
    os.setpgid(0, 0)
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    code = _run(server, connection, choose)
    with contextlib.suppress(OSError):
        atexit._run_exitfuncs()  # which leave nothing behind among the temporary files
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(server: int, connection: socket.socket, choose: Callable[[Sequence[str]], Sequence[str]]) -> int:
    """Run what the client wants; returns the exit code."""
    import runpy  # noqa: PLC0415 - a client has no use for these
    import tempfile  # noqa: PLC0415
    import time  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    from tocsin.platform.child_process import end_with  # noqa: PLC0415

    try:
        end_with(server)
        connection.settimeout(_ANSWER_SECONDS)
        _, files, *_ = socket.recv_fds(connection, 1, 3)
        asked = json.loads(connection.makefile().readline())
        os.environ.clear()
        os.environ.update(asked["environment"] | {CHILD: "1"})
        os.chdir(asked["folder"])
        time.tzset()
        tempfile.tempdir = None  # it is that of the server
        if not (program := choose(asked["command"])):
            return 0
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        connection.sendall(_BEGINS.encode())
        connection.close()
        sys.argv, sys.path[0] = [*program], str(Path(program[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _ask(path: Path, command: Sequence[str]) -> int | None:
    """Let the server at `path` run a program; returns its exit code, or None if it has not begun."""
    folder = os.open(path.parent, os.O_RDONLY)  # the name of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(f"/proc/self/fd/{folder}/{path.name}")
            socket.send_fds(server, [b"+"], [0, 1, 2])
            asked = {"command": command, "environment": dict(os.environ), "folder": str(Path.cwd())}
            server.sendall(f"{json.dumps(asked)}\n".encode())
            answers = server.makefile()
            if answers.readline() != _BEGINS:
                return None
        except OSError:
            return None
        finally:
            os.close(folder)
        code = answers.readline()
    if not code:
        print("the process that ran the program has ended", file=sys.stderr)
    return int(code or 1)


def main() -> None:
    """Let a server run the program, or become its command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the program ends with this process
    command, folder = sys.argv[1:], os.environ.get(VARIABLE)
    for path in Path(folder).glob(f"*/{SOCKET}") if folder else ():
        if (code := _ask(path, command)) is not None:
            if code < 0:  # killed by this signal
                os.kill(os.getpid(), -code)
            sys.exit(code)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
