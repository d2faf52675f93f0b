"""Define where jobs run: one interface for this machine and for a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tocsin.supervise.runners.process_labels import Labels


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A process to start.

    Attributes:
        command: program and arguments; carries `labels` already.
        environment: the whole environment; nothing else is inherited.
    """

    labels: Labels
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Process:
    """A live process.

    Attributes:
        started_at: seconds since the epoch; with the pid it names the process for good.
        leader: False for one whose leader is gone, as a JVM without its Python driver: nothing supervises it.
        restarts: how often a cluster has restarted it, and will again; None if supervision has to.
    """

    labels: Labels
    pid: int
    started_at: float
    leader: bool = True
    restarts: int | None = None


class Runner(Protocol):
    """Starts and stops labelled processes, and knows which there are."""

    def start(self, launch: Launch) -> int:
        """Start a process and return its number, without waiting for it to work.

        Raises:
            OSError: it cannot be started (no such program, disk full, refused by the cluster).
        """

    def stop(self, process: Process, *, force: bool = False) -> None:
        """Ask `process` to stop; with `force` end it and all its children at once. Does not wait. Gone is no error."""

    def list(self) -> Sequence[Process]:
        """List those of this installation; raises TransientError, to be retried, while a cluster does not tell."""

    def exit_code(self, job: str) -> int | None:
        """Return the end of the last process of `job`: minus the signal, or the code; None if unknown."""

    def logs(self, job: str, lines: int) -> Sequence[str]:
        """The last `lines` lines of the log of `job`."""
