"""Run jobs in children of one process: `python -m tocsin.spark.engine.job_server`.

A job begins half a second of CPU time earlier there, since what it imports is in memory, which all of them share. See
`tocsin.supervise.runners.job_children`, which starts this program.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from setproctitle import getproctitle, setproctitle, setthreadtitle

from tocsin import job
from tocsin.declare.model.job_kinds import KINDS
from tocsin.platform import fork_server
from tocsin.platform.lock import hold
from tocsin.platform.process_exit import ExitCode
from tocsin.spark.engine.warm_engine import preload, remove_dead

_IDLE_SECONDS = 2.0


def _serve(path: str, starter: int, *, tied: bool) -> int:
    folder = Path(path).parent
    with hold(folder / fork_server.LOCK) as lock:
        ours = lock.path.stat().st_ino
        remove_dead(folder.parent)
        preload(kind.run for kind in KINDS.values() if kind.is_spark)
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("a module starts threads when it is imported, so this process must not fork")
        getproctitle()  # it finds the place of the command by that of the variables, which a child replaces
        with fork_server.listen(Path(path)) as listener:
            os.write(starter, b"+")
            parent = starter if tied else None
            fork_server.serve(listener, _job, parent=parent, idle_seconds=_IDLE_SECONDS, tied=tied)
        with contextlib.suppress(OSError):
            if lock.path.stat().st_ino == ours:  # else the state folder was wiped, and has another server now
                shutil.rmtree(folder)
    return ExitCode.OK


def _job(command: Sequence[str]) -> Callable[[], int]:
    sys.orig_argv[:], sys.argv[:] = command, [job.__file__, *command[3:]]
    setproctitle(" ".join(command))  # supervision finds a job by the labels in its command
    setthreadtitle("python")  # else the name of the process is the beginning of that
    return functools.partial(job.main, list(command[3:]))


if __name__ == "__main__":
    sys.exit(job.exit_code_of(lambda: _serve(**json.loads(os.environ[fork_server.JOBS]))))
