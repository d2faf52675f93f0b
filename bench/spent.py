"""Run a program to its end and say what it and its children took."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_EVERY_SECONDS = 0.25
_LINGER_SECONDS = 10.0


@dataclass(frozen=True)
class Spent:
    """What a program took.

    Attributes:
        code: its exit code.
        seconds: by the clock, until it had ended.
        cpu: seconds of the program and its children, as far as seen four times a second.
        rss: bytes resident in all of them together, at most.
    """

    code: int
    seconds: float
    cpu: float
    rss: int


def spent_by(command: Sequence[str | Path], log: Path, environment: Mapping[str, str], folder: Path) -> Spent:
    """Run `command` in `folder`, its output behind what is in `log`; an exception stops it and all its children."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("ab") as out:
        child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    seen = _Seen(psutil.Process(child.pid))
    try:
        while child.poll() is None:
            seen.look()
            time.sleep(_EVERY_SECONDS)
        seconds = time.monotonic() - began
        seen.await_end()  # Spark's JVM ends a little later than the Python that started it
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return Spent(child.returncode, seconds, sum(seen.cpu.values()), seen.rss)


class _Seen:
    """What was seen of a process and its children."""

    def __init__(self, top: psutil.Process) -> None:
        self._top, self._known = top, {top}
        self.cpu: dict[int, float] = {}
        self.rss = 0

    def look(self) -> None:
        """Look at all of them."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._known.update(self._top.children(recursive=True))
        rss = 0
        for process in self._known:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess), process.oneshot():
                used = process.cpu_times()
                self.cpu[process.pid] = max(self.cpu.get(process.pid, 0.0), used.user + used.system)
                rss += process.memory_info().rss
        self.rss = max(self.rss, rss)

    def await_end(self) -> None:
        """Wait until those that are left have ended, ten seconds at most."""
        end = time.monotonic() + _LINGER_SECONDS
        while any(process.is_running() for process in self._known - {self._top}) and time.monotonic() < end:
            self.look()
            time.sleep(_EVERY_SECONDS)
