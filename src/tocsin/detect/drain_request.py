"""Drains that an operator has asked for, as files: a detector reads all that there is, and is stopped then.

`<state>/drains/<job>.asked.json` says since when. The job renames it to `<job>.drained.json` once it has read all that
had come in by then, and is stopped for it. Who ends a drain removes first the one and then the other, so that a job
that gets there at that moment undoes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import structlog

from tocsin.model.errors import TransientError
from tocsin.model.names import file_name
from tocsin.runtime import state_file

_Job = TypeVar("_Job")
_Offsets = Mapping[Any, int]  # by place

log = structlog.get_logger()


@dataclass(frozen=True)
class Drain:
    """One drain: the job that is to read all, and when that was asked, in epoch seconds."""

    job: str
    asked_at: float


@dataclass(frozen=True)
class Drains:
    """When each drain was asked for, by job: of jobs that still read, and of those that have read all."""

    asked: Mapping[str, float] = field(default_factory=dict)
    drained: Mapping[str, float] = field(default_factory=dict)

    def applied(self, jobs: Mapping[str, _Job]) -> dict[str, _Job]:
        """Choose those of `jobs` that are to run: all that have not drained, or were asked again."""
        return {job: one for job, one in jobs.items() if job not in self.drained or job in self.asked}


def read_drains(state: Path) -> Drains:
    """Read all drains; a file that cannot be read is none."""
    found: dict[str, dict[str, float]] = {"asked": {}, "drained": {}}
    for stage, jobs in found.items():
        for path in (state / "drains").glob(f"*.{stage}.json"):
            drain = state_file.read(path, Drain, None)
            if drain is not None:
                jobs[drain.job] = drain.asked_at
    return Drains(**found)


def ask_drain(state: Path, job: str) -> None:
    """Let `job` read all that there is now, and then stop. One that has done so before is started for it.

    Raises:
        OSError: the state folder cannot be written.
    """
    _path(state, job, "drained").unlink(missing_ok=True)
    state_file.write(_path(state, job, "asked"), Drain, Drain(job, time.time()))


def asked_at(state: Path, job: str) -> float | None:
    """Read when `job` was asked to drain; None when it was not, or has done it."""
    drain = state_file.read(_path(state, job, "asked"), Drain, None)
    return None if drain is None else drain.asked_at


def finish_drain(state: Path, job: str, requested_at: float) -> bool:
    """Record that `job` has finished the drain of `requested_at`; False, without effect, if that was cancelled."""
    if asked_at(state, job) == requested_at:
        with contextlib.suppress(FileNotFoundError):
            _path(state, job, "asked").rename(_path(state, job, "drained"))
            return True
    return False


def end_drain(state: Path, job: str) -> None:
    """Let `job` run on, or again, if it was asked to drain.

    Raises:
        OSError: the state folder cannot be written.
    """
    for stage in ("asked", "drained"):
        _path(state, job, stage).unlink(missing_ok=True)


def end_other_drains(state: Path, jobs: Container[str]) -> None:
    """End the drains of all but `jobs`.

    Raises:
        OSError: the state folder cannot be written.
    """
    drains = read_drains(state)
    for job in {*drains.asked, *drains.drained}:
        if job not in jobs:
            end_drain(state, job)


class RequestedDrain:
    """Finishes the drain of one job once it has read all; whoever runs the job stops it then."""

    def __init__(self, state: Path, job: str) -> None:
        self._state, self._job = state, job
        self._asked_at: float | None = None
        self._ends: _Offsets = {}

    def look(
        self,
        bounds: Callable[[], tuple[_Offsets, _Offsets]],
        ingest_lag: Callable[[], timedelta],
        position: _Offsets,
    ) -> None:
        """Finish the drain if there is one and `position`, where a restart would resume, has reached its end.

        Its end is that of the topics when the drain was first seen and the ingest had no backlog: never before what had
        come in when it was asked. While Kafka does not answer, nothing is finished.

        Args:
            bounds: see `TopicSet.bounds`.
            ingest_lag: how far behind the ingest says it is; 0 when it keeps up or says nothing.
            position: what the last finished batch has committed.
        """
        requested_at = asked_at(self._state, self._job)
        if requested_at != self._asked_at:
            try:
                if requested_at is not None and ingest_lag():
                    return
                self._ends = {} if requested_at is None else bounds()[1]
            except TransientError:
                return
            self._asked_at = requested_at
            if requested_at is not None:
                log.info("drain started", until=self._ends)
        if requested_at is not None and all(position.get(place, 0) >= end for place, end in self._ends.items()):
            if finish_drain(self._state, self._job, requested_at):
                log.info("drain finished", position=position)
            self._asked_at = None


def _path(state: Path, job: str, stage: str) -> Path:
    return state / "drains" / f"{file_name(job)}.{stage}.json"
