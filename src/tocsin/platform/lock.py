"""A lock on a file that no second process can take, and that ends with the process, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import structlog

from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.declare.settings import Settings
from tocsin.platform import private


class LockHeld(TocsinError):
    """Another process holds the lock (`pid`, if readable); a retry helps only once that one has ended."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path, self.pid = path, pid
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{path} is held by {holder}")


class Lock:
    """A held lock: keep it until the work is done, or use it in a `with` statement."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Give the lock back; a second call does nothing. The file stays, since removing it would let two in."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def hold(path: Path) -> Lock:
    """Take the lock on `path` (made with its folder when missing) without waiting.

    The lock belongs to this process alone: a child such as a JVM does not inherit it. Raises LockHeld if another
    process, or another `Lock` of this one, holds it, and an OSError if the file cannot be opened or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except BlockingIOError:
        os.close(descriptor)
        raise LockHeld(path, _holder(path)) from None
    except OSError:
        os.close(descriptor)
        raise
    return Lock(path, descriptor)


def _holder(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


_LOOK_SECONDS = 0.1
log = structlog.get_logger()


def try_lead(settings: Settings, path: Path) -> Lock:
    """Take the lock file `path`, of a checkpoint folder; makes the state folder if this is the first to write there.

    Raises:
        LockHeld: another process holds it; a retry helps once that one has ended.
        ConfigError: the state folder cannot be used (see `private.protect`).
        OSError: the lock cannot be written.
    """
    private.begin(settings.state)
    return hold(path)


class Lead:
    """The right to lead one job, held or waited for until `close`."""

    def __init__(self, settings: Settings, job: str, *, beside: bool = False) -> None:
        """Take the right to lead `job`, or wait for it `beside` another process. Raises as `try_lead` otherwise."""
        self._settings, self._path = settings, settings.checkpoint(job) / "lock"
        self._stop = threading.Event()
        self._lock: Lock | None = None
        self._thread: threading.Thread | None = None
        try:
            self._lock = try_lead(settings, self._path)
        except LockHeld:
            if not beside:
                raise

    @property
    def is_leading(self) -> bool:
        """Return whether this process leads."""
        return self._lock is not None

    def follow(self, took: Callable[[], None]) -> None:
        """Wait for the lock in the background unless this process leads, and call `took` from there once it is."""
        if not self.is_leading:
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
            with contextlib.suppress(LockHeld, OSError, ConfigError):
                self._lock = try_lead(self._settings, self._path)
                log.info("leadership taken")
                took()
                return
