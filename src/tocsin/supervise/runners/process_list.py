"""The live processes of one installation, found by their labels; cheap enough to be asked each second.

Most processes of a machine are never ours, and stay so: one that has settled is looked at once, then left out until the
next full look.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

from tocsin.supervise.runners import process_labels
from tocsin.supervise.runners.process_labels import Labels

# A process that is this old has replaced itself by its program, if it does (`child_process`, `exec` of a shell).
_SETTLED_SECONDS = 5.0
_FULL_LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class ProcessRow:
    """One row of the process list that carries labels of this installation.

    `started_at` is epoch seconds, `parent` a pid; `leads` is False for a child that only inherits its labels.
    """

    process: psutil.Process
    started_at: float
    labels: Labels
    parent: int
    leads: bool


class ProcessList:
    """Finds the processes labelled `instance` that run as this user: labels of another user prove nothing."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._strangers: set[int] = set()
        self._labels: dict[tuple[int, float], tuple[Labels, bool]] = {}  # as read last
        self._settled: set[tuple[int, float]] = set()
        self._full_look_at = 0.0

    def rows(self) -> dict[int, ProcessRow]:
        """The processes of now, by pid; what ends, or may not be looked at, is left out."""
        pids, now = set(psutil.pids()), time.monotonic()
        if now >= self._full_look_at:
            self._full_look_at = now + _FULL_LOOK_SECONDS
            self._strangers = set()
        self._strangers &= pids
        self._labels = {key: own for key, own in self._labels.items() if key[0] in pids}
        self._settled &= self._labels.keys()
        found = {}
        for pid in sorted(pids - self._strangers):
            try:
                row = self._row(psutil.Process(pid))
            except (psutil.Error, OSError):  # it has ended, or may not be looked at: others are not hidden by it
                continue
            if row is not None:
                found[pid] = row
        return found

    def _row(self, process: psutil.Process) -> ProcessRow | None:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            started_at = process.create_time()
            key = (process.pid, started_at)
            own = self._labels.get(key)
            if key not in self._settled:
                own = self._read_labels(process) or own  # while a program replaces another it shows none
            is_settled = time.time() - started_at > _SETTLED_SECONDS
            if own is not None:
                self._labels[key] = own
                self._settled |= {key} if is_settled else set()
            elif is_settled:
                self._strangers.add(process.pid)
            return None if own is None else ProcessRow(process, started_at, own[0], process.ppid(), own[1])

    def _read_labels(self, process: psutil.Process) -> tuple[Labels, bool] | None:
        """The labels of `process`, and whether it leads; None when it is none of ours."""
        if process.uids().real != os.getuid():
            return None
        try:
            written = process_labels.of_command(process.cmdline())
            inherited = {} if written is not None else process.environ()
        except (psutil.Error, OSError):  # it ends, or may not be looked at, as those of the kernel
            return None
        found = written or process_labels.of_environment(inherited)
        if found is None or found.instance != self._instance:
            return None
        return found, written is not None or inherited.get(process_labels.LEADER) == str(process.pid)
