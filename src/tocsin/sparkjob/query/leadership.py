"""Let one process lead a job, and one write a checkpoint: those that hold a lock.

A new version of a detector or a flow starts beside the one that leads. It makes itself ready, and leads as soon as that
one has ended, however it ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import structlog

from tocsin.model.job_report import JobState
from tocsin.runtime.lock import Lock, LockHeld, hold
from tocsin.runtime.state_file import write_whole
from tocsin.sparkjob import jvm
from tocsin.sparkjob.query.work import Run

_LOOK_SECONDS = 0.1
_OUTLIVES_SECONDS = 5.0
_SAME_START_SECONDS = 1.0

log = structlog.get_logger()


class Lead:
    """The lock of one job, held or waited for until `close`.

    Attributes:
        held: this process leads.
    """

    def __init__(self, path: Path, *, beside: bool) -> None:
        """Take the lock on `path`; a process that is started `beside` another one may wait for it.

        Raises:
            LockHeld: another process leads, and this one is not meant to run beside it.
            OSError: the lock cannot be written.
        """
        self._path, self._stop = path, threading.Event()
        self._lock: Lock | None = None
        self._thread: threading.Thread | None = None
        try:
            self._lock = hold(path)
        except LockHeld:
            if not beside:
                raise

    @property
    def held(self) -> bool:
        """See the class."""
        return self._lock is not None

    def follow(self, took: Callable[[], None]) -> None:
        """Wait for the lock in the background if it is not held, and call `took` from there once it is."""
        if not self.held:
            self._thread = threading.Thread(target=self._wait, args=(took,), name="lead", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Give the lock back, or wait for it no longer."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Lead:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait(self, took: Callable[[], None]) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            with contextlib.suppress(LockHeld, OSError):
                self._lock = hold(self._path)
                log.info("leadership taken")
                took()
                return


class Ownership:
    """The checkpoint that this process alone writes, once it has taken it."""

    def __init__(self) -> None:
        self._owned: tuple[Path, Lock] | None = None

    def take(self, run: Run, checkpoint: Path) -> bool:
        """Become the one that writes `checkpoint`; False when `run` was asked to stop while another process still does.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._owned is not None and self._owned[0] == checkpoint:
            return True
        if self._owned is not None:
            self._owned[1].release()
        lock = _await_own(run, checkpoint)
        self._owned = None if lock is None else (checkpoint, lock)
        return lock is not None


def _await_own(run: Run, checkpoint: Path) -> Lock | None:
    reported = None
    while not run.is_stopping:
        with contextlib.suppress(LockHeld):
            return own(checkpoint, jvm.process_id())
        state = JobState.WAITING if run.reporter.leads else JobState.READY
        if state is not reported:  # each update is a sign of life, and this loop does not need the JVM
            run.reporter.update(state=state, reason="resumes the running version's checkpoint")
            reported = state
        run.wait(_LOOK_SECONDS)
    return None


def own(checkpoint: Path, jvm_id: int) -> Lock:
    """Become the one process that writes `checkpoint` (of one fingerprint), with its JVM (a process id).

    A JVM outlives a killed driver by a moment, and goes on writing: it is waited for, then ended.

    Raises:
        LockHeld: another process writes it; a retry helps once that one has ended.
        OSError: the folder cannot be written.
    """
    lock = hold(checkpoint / "lock")
    try:
        _end_former(checkpoint / "jvm")
        write_whole(checkpoint / "jvm", f"{jvm_id} {psutil.Process(jvm_id).create_time()}")
    except BaseException:
        lock.release()
        raise
    return lock


def _end_former(note: Path) -> None:
    """Wait for the end of the JVM that `note` names; one that takes too long is ended."""
    try:
        pid, created = note.read_text(encoding="ascii").split()
        former = psutil.Process(int(pid))
        if abs(former.create_time() - float(created)) > _SAME_START_SECONDS:
            return
        try:
            former.wait(_OUTLIVES_SECONDS)
        except psutil.TimeoutExpired:
            log.warning("orphaned JVM killed", pid=former.pid)
            former.kill()
            former.wait(_OUTLIVES_SECONDS)
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        return
