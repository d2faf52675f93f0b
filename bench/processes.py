"""Start a program, say what it and its children cost, and stop all of it by process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from tocsin.platform.fork_server import RunningProgram

_STOP_SECONDS = 20.0
_TAIL_LINES = 25


@dataclass(frozen=True)
class Memory:
    """Bytes resident in a process and its children.

    Attributes:
        rss: pages shared between them count in each.
        pss: pages shared with any process count in part.
    """

    rss: int
    pss: int


class Program:
    """A running program in a session of its own; leaving the `with` block stops it and all its children."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
        others: Callable[[], list[psutil.Process]] = list,
        begin: Callable[[Sequence[int]], RunningProgram | None] = lambda files: None,
    ) -> None:
        """Start `command`, with the environment of this process if none is given; `others` work for it elsewhere.

        `begin` starts it with three standard files; None if it is to be started by its command.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log, self.started_at, self._others = log, time.time(), others
        with open(os.devnull, "rb") as nothing, log.open("ab") as out:
            self._child = begin([nothing.fileno(), out.fileno(), out.fileno()]) or subprocess.Popen(
                [str(part) for part in command],
                stdin=nothing,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raise RuntimeError with the end of the log when the program has ended."""
        if (code := self._child.poll()) is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
            raise RuntimeError(f"ended with {code}; the end of {self.log}:\n{tail}")

    def members(self) -> list[psutil.Process]:
        """The program and its children of any depth, and the others that work for it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.pid)
            return [top, *top.children(recursive=True), *self._others()]
        return []

    def cpu_seconds(self) -> float:
        """User and system time of the program and its children, ended ones included."""
        return cpu_seconds(self.members())

    def memory(self) -> Memory:
        """What the program and its children hold now."""
        rss = pss = 0
        for process in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                held = process.memory_full_info()
                rss, pss = rss + held.rss, pss + held.pss
        return Memory(rss, pss)

    def stop(self) -> float:
        """SIGTERM, then SIGKILL for what is left after 20 seconds; returns the seconds it took."""
        began = time.monotonic()
        members = self.members()
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        for _ in waiting(_STOP_SECONDS, 0.02):
            if self._child.poll() is not None:
                break
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._child.wait()
        return time.monotonic() - began


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """User and system time of `processes`, and of their children that have ended."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


def waiting(seconds: float, every: float = 0.1) -> Iterator[float]:
    """Seconds waited so far, every so often; the loop's end without a break is the time-out."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        yield time.monotonic() - began
        time.sleep(every)


def await_that(condition: Callable[[], object], seconds: float, what: str, *programs: Program) -> None:
    """Wait until `condition()` is true.

    Raises:
        RuntimeError: when one of `programs` ends first.
        TimeoutError: when the time is over, with `what` was waited for.
    """
    for _ in waiting(seconds):
        if condition():
            return
        for program in programs:
            program.check()
    raise TimeoutError(f"waited {seconds:.0f} s for {what}")
