"""Lead a job, or wait until the version that leads has ended: a lock of a file decides, on one machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform import private
from tocsin.platform.lock import Lock, LockHeld, hold

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
