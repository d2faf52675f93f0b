"""A lock on a file that no second process can take, and that ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from tocsin.declare.model.errors import TocsinError


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
