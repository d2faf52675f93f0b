"""Share an engine among short programs, such as tests: the first one starts it, and it ends when none came for a while.

It is an engine like any other (`tocsin.spark.engine.engine_job`), but for supervision: it runs detached, with its state
in a folder of its own that it removes at its end, and reports to nobody. The name of that folder has the identity of
code and settings, so that programs of two versions work side by side.

Beside it may live a process that has imported what its programs need, and runs them in children (`fork_server`), as
long as the code is still the same.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from pyspark.sql import SparkSession

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.names import JobName
from tocsin.declare.settings import Settings
from tocsin.job import exit_code_of
from tocsin.platform import fork_server, private
from tocsin.platform.lock import LockHeld, hold
from tocsin.platform.process_exit import ExitCode, on_signals
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.spark.engine import jvm
from tocsin.spark.engine.attachment import Attachment, attach, hashed_code
from tocsin.spark.engine.engine_job import Engine
from tocsin.spark.entry import offer_to_the_kernel
from tocsin.spark.session import clean_scratch, prepare_python

ENGINE_LOG = "engine.log"
"""The file in the folder of an engine that has what it writes."""
_START_SECONDS, _LOOK_SECONDS = 60.0, 0.1
_LABELS = ("TOCSIN_LABELS", "TOCSIN_LEADER")


def attach_or_start(own: Settings, pool: str, job: str, command: Sequence[str]) -> Attachment:
    """Attach `job` to the engine of `pool` whose state folder is `own.state`; without one, start it by `command`.

    Raises:
        TransientError: it does not start, or does not answer within a minute; says what it wrote last.
        OSError: its folder cannot be written, or is of another user.
    """
    _make_private(own.state)
    own.log(job).parent.mkdir(exist_ok=True)  # Python workers write there
    deadline, engine = time.monotonic() + _START_SECONDS, None
    while True:
        try:
            attachment = attach(own, job, pool, "")
            if engine is not None:
                engine.returncode = engine.poll() or ExitCode.OK  # it outlives this process, which is no fault
            return attachment
        except TransientError as error:
            missing = error
        # A locked one met another that starts too, or that is about to end.
        if engine is None or engine.poll() == ExitCode.LOCKED:
            engine = _start(own.state, command)
        elif engine.poll() is not None or time.monotonic() > deadline:
            said = _log(own.state).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise TransientError(f"the engine does not start: {said[-1] if said else missing}")
        time.sleep(_LOOK_SECONDS)


@dataclass(frozen=True)
class Programs:
    """The programs that run in children of an engine's process.

    Attributes:
        modules: what they need, to be imported once.
        choose: finds a program and its arguments in the command of a client, with its environment and in its folder;
            none if it must not run here.
    """

    modules: Sequence[str]
    choose: Callable[[Sequence[str]], Sequence[str]]


def run_until_idle(
    own: Settings, pool: str, start: Callable[[str], SparkSession], seconds: float, programs: Programs | None = None
) -> None:
    """Run the engine of `pool` in the folder `own.state`, until it has had no program for `seconds`.

    `start` starts the session of the job that it is given, in a JVM that this process starts; before, it must have no
    threads.

    Raises LockHeld if another process runs it, an OSError if the folder cannot be written, and a RuntimeError when the
    JVM has ended, or cannot go on.
    """
    offer_to_the_kernel()
    private.protect(own.state)
    name, stop = f"{pool}-1", threading.Event()
    with hold(own.state / fork_server.LOCK):
        remove_dead(own.state.parent)
        if programs is not None:
            _fork(own.state, programs, sys.argv[-1])
        try:
            os.environ["JAVA_HOME"] = str(find_java().home)
            clean_scratch(own, str(JobName("engine", name)))
            spark = start(str(JobName("engine", name)))
            jvm.halt_at_end()
            on_signals(stop)  # Spark has put its own handler in place
            engine = Engine(own, name, spark)
            with engine.listen():
                _await_idle(engine, own.state, stop, seconds)
            if not stop.is_set():
                _await_idle(engine, own.state, stop, 2 * _LOOK_SECONDS)  # a program may have come at the last moment
        finally:
            jvm.end()
        shutil.rmtree(own.state, ignore_errors=True)  # behind an error it stays: its log tells
        with contextlib.suppress(OSError):  # others are there
            own.state.parent.rmdir()


def remove_dead(folders: Path) -> None:
    """Remove what killed engines, or servers of jobs, have left: after an upgrade none has that name any more."""
    for lock in folders.glob(f"*/{fork_server.LOCK}"):
        with contextlib.suppress(LockHeld, OSError), hold(lock):
            shutil.rmtree(lock.parent, ignore_errors=True)


def _await_idle(engine: Engine, folder: Path, stop: threading.Event, seconds: float) -> None:
    since = time.monotonic()
    while time.monotonic() - since < seconds and not stop.wait(_LOOK_SECONDS):
        if engine.unfit or not jvm.is_alive():
            raise RuntimeError(engine.unfit or "the JVM has ended")
        if not folder.is_dir():  # it must not remove that of the next one at its end
            raise RuntimeError(f"{folder} has been removed")
        if engine.jobs:
            since = time.monotonic()


def _fork(folder: Path, programs: Programs, code: str) -> None:
    """Fork the process that runs `programs`, which must be of `code`; it takes none when this one has ended."""
    parent, _ = os.pipe()
    if not os.fork():
        os.closerange(3, parent)
        os.closerange(parent + 1, os.sysconf("SC_OPEN_MAX"))  # with that of the lock, which is the engine's alone
        os._exit(exit_code_of(lambda: _serve(folder, programs, code, parent)))
    os.close(parent)


def _serve(folder: Path, programs: Programs, code: str, parent: int) -> int:
    preload(programs.modules)
    if _code() != code:  # it has changed since this process was started
        return ExitCode.FAILED

    def choose(command: Sequence[str]) -> Callable[[], int | None] | None:
        program = programs.choose(command) if _code() == code else ()
        return functools.partial(fork_server.run_program, program) if program else None

    with fork_server.listen(folder / fork_server.SOCKET) as listener:
        fork_server.serve(listener, choose, parent=parent)
    return ExitCode.OK


def preload(modules: Iterable[str]) -> None:
    """Import `modules`, and PySpark as jobs have it, for children to share as long as nobody writes to them."""
    for module in modules:
        resolve_name(module)
    prepare_python()
    gc.freeze()


def _code() -> str:
    """Hash all that programs run: Tocsin's modules, and when packages were last installed beside them."""
    paths = here()
    return hashed_code(paths.root / "src", paths.package("pyspark").parent.stat().st_mtime_ns)


def _start(folder: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    # Labelled like a job's child it would be ended with that job, as what is left of it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LABELS)}
    with _log(folder).open("ab") as log:
        return subprocess.Popen(
            [*command, _code()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def _log(folder: Path) -> Path:
    return folder / ENGINE_LOG


def _make_private(folder: Path) -> None:
    """Make `folder` and the one around it, which may lie among those of all users. PermissionError if not ours."""
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = each.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{each} must be a folder of this user alone")
