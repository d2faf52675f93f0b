"""Start jobs by forking a process that has imported what they need (`tocsin.spark.engine.job_server`)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from tocsin.platform import fork_server, private
from tocsin.platform.fork_server import RunningProgram
from tocsin.platform.state_file import stamps
from tocsin.setup.paths import here
from tocsin.supervise.runners.runner import Launch

FOLDER = "job_servers"
"""The folder in the state that has a folder for each server."""
_LOG = "server.log"
_START_SECONDS, _PAUSE_SECONDS = 15.0, 0.1
_RETRY_SECONDS = 60.0
# In the process list the command of a job takes the place of the server's command, which must be the shorter one, and
# then of its variables.
_ROOM = 2048
_SERVERS: list[tuple[subprocess.Popen[bytes], int]] = []
"""What this process has started, with its end of a connection to the server, which a tied server does not survive."""

log = structlog.get_logger()


class JobChildren:
    """Starts jobs by forking a server; starts that server if none runs the current code.

    A server ends two seconds after its last job; a tied one also with the process that has started it.
    """

    def __init__(self, folder: Path, *, tied: bool) -> None:
        """`folder` has a folder for each server. If `tied` a job ends with its server, and with this process."""
        self._folder, self._tied = folder, tied
        self._next_at = float("-inf")

    def start(self, launch: Launch, environment: Mapping[str, str], files: Sequence[int]) -> RunningProgram | None:
        """Start `launch` with all of `environment` and three standard `files`; None if it must run by its command.

        None on other systems than Linux, for other programs, and for a minute after no server could be started.
        """
        now = time.monotonic()
        if sys.platform != "linux" or launch.command[1:3] != ("-m", "tocsin.job") or now < self._next_at:
            return None
        path = self._folder
        while time.monotonic() < now + _START_SECONDS:
            path = self._folder / self._code(launch) / fork_server.SOCKET
            if program := fork_server.begin(path, launch.command, environment, launch.directory, files):
                return program
            if _is_held(path.with_name(fork_server.LOCK)):  # another process starts it, or it is about to end
                time.sleep(_PAUSE_SECONDS)
            elif not self._start(path, launch):
                break
        self._next_at = time.monotonic() + _RETRY_SECONDS
        log.warning("jobs start by their commands: their server does not start", log=str(path.with_name(_LOG)))
        return None

    def _start(self, path: Path, launch: Launch) -> bool:
        """Start a server, and return whether it listens at `path`."""
        ours, theirs = (end.detach() for end in socket.socketpair())  # each side sees the end of the other
        prefix = [] if self._tied else ["setsid", "--fork"]  # nobody's child
        how = {"path": str(path), "starter": theirs, "tied": self._tied}
        # Settings come with each job, and with labels the server would count as a part of one.
        own = {name: value for name, value in launch.environment.items() if not name.startswith("TOCSIN_")}
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.with_name(_LOG).open("ab") as log_file:
                program = subprocess.Popen(
                    [*prefix, launch.command[0], "-m", "tocsin.spark.engine.job_server"],
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    cwd=launch.directory,
                    env=own | {fork_server.JOBS: json.dumps(how), "TOCSIN_ROOM": "-" * _ROOM},
                    umask=private.UMASK,
                    pass_fds=[theirs],
                    start_new_session=True,
                )
        except OSError as error:
            log.warning("the server of jobs cannot be started", error=str(error))
            os.close(ours)
            return False
        finally:
            os.close(theirs)
        if prefix:
            program.wait()  # it has forked the server
        _forget_ended()
        _SERVERS.append((program, ours))
        return fork_server.is_readable(ours, _START_SECONDS) and os.read(ours, 1) != b""

    def _code(self, launch: Launch) -> str:
        """Hash what a server has imported, and the world that it shows its children."""
        paths, python = here(), Path(launch.command[0])
        code = sorted(stamps((paths.root / "src").rglob("*.py")))
        installed = [path.stat().st_mtime_ns for path in (python, paths.package("pyspark").parent)]
        world = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid")]  # a container has its own
        languages = [launch.environment.get(name) for name in ("LANG", "LC_ALL")]
        shown = repr((code, installed, world, languages, python, self._tied))
        return hashlib.sha256(shown.encode()).hexdigest()[:16]


def _is_held(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _forget_ended() -> None:
    for ended in [each for each in _SERVERS if each[0].poll() is not None]:
        _SERVERS.remove(ended)
        os.close(ended[1])
