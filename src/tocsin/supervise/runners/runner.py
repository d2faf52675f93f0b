"""Define where jobs run: one interface for this machine and for a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

from tocsin.declare.settings import Settings


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
        """Start a process and return its number, 0 if only its labels tell, without waiting for it to work.

        Raises:
            OSError: it cannot be started (no such program, disk full, refused by the cluster).
        """

    def stop(self, process: Process, *, force: bool = False) -> None:
        """Ask `process` to stop; with `force` end it and all its children at once. Does not wait. Gone is no error."""

    def list(self) -> Sequence[Process]:
        """List those of this installation; raises TransientError, to be retried, while a cluster does not tell."""

    def wait_for_end(self, seconds: float) -> bool:
        """Wait until a process that was listed last ends, at most `seconds`; returns whether one has, once of each."""

    def shares_files(self) -> bool:
        """Return whether the processes that were listed last see the file system that this one sees; no if none was."""

    def exit_code(self, job: str) -> int | None:
        """Return the end of the last process of `job`: minus the signal, or the code; None if unknown."""

    def logs(self, job: str, lines: int) -> Sequence[str]:
        """The last `lines` lines of the log of `job`."""


VARIABLE = "TOCSIN_LABELS"
LEADER = "TOCSIN_LEADER"  # variable with the number of the leading process, for programs that take no labels
_ARGUMENT = "--label"
_PROPERTY = "-Dtocsin.labels="


@dataclass(frozen=True)
class Labels:
    """The identity of a process: a job, or a component of the stack, in an installation.

    `spec` is the hash of all that it was started with; another one means that it is to be replaced.
    """

    instance: str
    job: str
    spec: str

    def arguments(self) -> tuple[str, ...]:
        """As arguments of a program that ignores `--label`."""
        return tuple(word for pair in self._pairs() for word in (_ARGUMENT, pair))

    def java_property(self) -> str:
        """As an option of a JVM whose program takes no unknown arguments."""
        return _PROPERTY + " ".join(self._pairs())

    def variable(self) -> dict[str, str]:
        """As the environment variable that children inherit."""
        return {VARIABLE: " ".join(self._pairs())}

    def _pairs(self) -> tuple[str, ...]:
        pairs = {"instance": self.instance, "job": self.job, "spec": self.spec}
        return tuple(
            f"{key}={quote(value, safe=':')}" for key, value in pairs.items()
        )  # no spaces: they separate pairs


def leading(command: Sequence[str]) -> tuple[str, ...]:
    """Wrap the command of a program that takes no labels: its environment then says that it leads."""
    return ("/bin/sh", "-c", f'{LEADER}=$$ exec "$0" "$@"', *command)


def instance_of(settings: Settings) -> str:
    """The label of one installation: its name and its state folder, so that two that share a name never meet."""
    return settings.local_id


def of_command(command: Sequence[str]) -> Labels | None:
    """The labels on a command line; None when there are none."""
    for word in command:
        if word.startswith(_PROPERTY):
            return _labels(word.removeprefix(_PROPERTY).split())
    pairs = [value for word, value in itertools.pairwise(command) if word == _ARGUMENT]
    return _labels(pairs)


def of_environment(environment: Mapping[str, str]) -> Labels | None:
    """The labels that a process inherited; None when there are none."""
    return _labels(environment.get(VARIABLE, "").split())


def _labels(pairs: Sequence[str]) -> Labels | None:
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if not found.keys() >= {"instance", "job", "spec"}:
        return None
    return Labels(unquote(found["instance"]), unquote(found["job"]), unquote(found["spec"]))
