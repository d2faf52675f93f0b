"""Start jobs as children of a process that has imported what they need (`tocsin.spark.engine.job_server`)."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from tocsin.platform import fork_server, private
from tocsin.platform.fork_server import Begun
from tocsin.platform.state_file import stamps
from tocsin.setup.paths import here
from tocsin.supervise.runners.runner import Launch

FOLDER = "job_servers"
"""The folder in the state that has a folder for each server."""
_LOG = "server.log"
_START_SECONDS = 15.0
# In the process list the command of a job takes the place of the server's command, which must be the shorter one, and
# then of its variables.
_ROOM = 2048
_HOW = "TOCSIN_JOB_SERVER"
_SERVERS: list[tuple[subprocess.Popen[bytes], int]] = []
"""What this process has started, with its end of a connection to the server, which a tied server does not survive."""

log = structlog.get_logger()


class JobChildren:
    """Starts jobs in children of a server, and the server when there is none of the code of now.

    That ends two seconds after its last job; a tied one also with whoever has started it.
    """

    def __init__(self, folder: Path, *, tied: bool) -> None:
        """`folder` has a folder for each server. If `tied` a job ends with its server, and with this process."""
        self._folder, self._tied = folder, tied
        self._refused: set[str] = set()

    def start(self, launch: Launch, environment: Mapping[str, str], files: Sequence[int]) -> Begun | None:
        """Start `launch` with all of `environment` and three standard `files`; None if it must run by its command.

        That is so elsewhere than on Linux, for programs that are no jobs, and where no server starts.
        """
        if sys.platform != "linux" or launch.command[1:3] != ("-m", "tocsin.job"):
            return None
        ask = functools.partial(
            fork_server.begin, command=launch.command, environment=environment, folder=launch.directory, files=files
        )
        while (code := self._code(launch)) not in self._refused:
            path = self._folder / code / fork_server.SOCKET
            if begun := ask(path) or (self._start(path, launch) and self._code(launch) == code and ask(path)):
                return begun
            if self._code(launch) == code:  # else it was changed while it was imported
                self._refused.add(code)
                log.warning("jobs start by their commands: their server does not start", log=str(path.with_name(_LOG)))
        return None

    def _start(self, path: Path, launch: Launch) -> bool:
        """Start a server, and return whether it listens at `path`."""
        # Settings come with each job, and with labels the server would count as a part of one.
        own = {name: value for name, value in launch.environment.items() if not name.startswith("TOCSIN_")}
        ours, theirs = (end.detach() for end in socket.socketpair())  # each side sees the end of the other
        prefix = [] if self._tied else ["setsid", "--fork"]  # nobody's child
        how = {"path": str(path), "starter": theirs, "tied": self._tied}
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.with_name(_LOG).open("ab") as log_file:
                program = subprocess.Popen(
                    [*prefix, launch.command[0], "-m", "tocsin.spark.engine.job_server"],
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    cwd=launch.directory,
                    env=own | {_HOW: json.dumps(how), "TOCSIN_ROOM": "-" * _ROOM},
                    umask=private.UMASK,
                    pass_fds=[theirs],
                    start_new_session=True,
                )
        except OSError as error:
            log.warning("the server of jobs does not start", error=str(error))
            return False
        finally:
            os.close(theirs)
        if prefix:
            program.wait()  # it has forked the server
        for ended in [each for each in _SERVERS if each[0].poll() is not None]:
            _SERVERS.remove(ended)
            os.close(ended[1])
        _SERVERS.append((program, ours))
        return select.select([ours], [], [], _START_SECONDS)[0] != [] and os.read(ours, 1) != b""

    def _code(self, launch: Launch) -> str:
        """Hash what a server has imported, and the world that it shows its children."""
        paths = here()
        code = sorted(stamps((paths.root / "src").rglob("*.py"))), paths.package("pyspark").parent.stat().st_mtime_ns
        world = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid")]  # a container has its own
        languages = [launch.environment.get(name) for name in ("LANG", "LC_ALL")]
        return hashlib.sha256(repr((code, world, languages, launch.command[0], self._tied)).encode()).hexdigest()[:16]
