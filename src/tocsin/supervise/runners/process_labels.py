"""Identify the processes of jobs by labels on their command line, and in the environment of their children.

The live process list is the only truth about what runs. A pid file outlives its process, and its number is given again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tocsin.declare.settings import Settings

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
