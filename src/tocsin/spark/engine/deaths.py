"""Remember which jobs an engine had when it died, and give those a JVM of their own that may be the cause.

An engine that has died twice within an hour with the same jobs leaves half of them, those that attached last, to JVMs
of their own; with each further death half of the rest, so that few remain to suspect. A job stays alone for a day, or
until its version changes. Where one of them dies alone, the usual rules of supervision tell of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel

from tocsin.platform import state_file
from tocsin.platform.heartbeat import boot_id

FOLDER = "engines"
"""The folder in the state folder with the sockets and the memory of engines."""
_ISOLATED = "isolated.json"
_TOGETHER = timedelta(hours=1)
_ALONE = timedelta(days=1)


class Attached(BaseModel, frozen=True):
    """A job of an engine, its version, and when it attached, UTC."""

    version: str
    at: datetime


class Death(BaseModel, frozen=True):
    """An engine that has ended without being asked, found when the next one began, UTC; see `Life`."""

    at: datetime
    jobs: dict[str, Attached]
    blames: tuple[str, str]


class Isolated(BaseModel, frozen=True):
    """A job that has a JVM of its own for now, and why."""

    version: str
    at: datetime
    reason: str


class Life(BaseModel, frozen=True):
    """The memory of a running engine, on the boot of the machine.

    Attributes:
        blames: why it has to end, and the job because of which; empty while it has not.
    """

    boot: str
    jobs: dict[str, Attached] = {}
    blames: tuple[str, str] = ("", "")


class EngineMemory:
    """Keeps the `Life` of one process of an engine in `folder`. Raises OSErrors if it cannot be written."""

    def __init__(self, folder: Path, name: str) -> None:
        """Count as deaths the lives of processes that are gone, and isolate jobs if need be."""
        self._path = folder / f"{name}.{os.getpid()}.json"
        record, now = folder / f"{name}.json", datetime.now(UTC)
        deaths = [death for death in state_file.read(record, list[Death], []) if now - death.at < _TOGETHER]
        for left in sorted(folder.glob(f"{name}.*.json")):
            if is_of_another(left):
                continue
            life = state_file.read(left, Life, None)
            if life is not None and life.boot == boot_id():  # an engine that ended with the machine blames no job
                deaths.append(Death(at=now, jobs=life.jobs, blames=life.blames))
                _isolate(folder, name, deaths)
            left.unlink(missing_ok=True)
        state_file.write(record, list[Death], deaths)
        self._life = Life(boot=boot_id())
        self._write(self._life)

    def attached(self, job: str, version: str) -> None:
        """Note that `job` has attached."""
        now = Attached(version=version, at=datetime.now(UTC))
        self._write(self._life.model_copy(update={"jobs": {**self._life.jobs, job: now}}))

    def detached(self, job: str) -> None:
        """Note that `job` has left."""
        rest = {name: attached for name, attached in self._life.jobs.items() if name != job}
        self._write(self._life.model_copy(update={"jobs": rest}))

    def blame(self, job: str, reason: str) -> None:
        """Note that the engine has to end because of `job`."""
        self._write(self._life.model_copy(update={"blames": (reason, job)}))

    def ended(self) -> None:
        """Note that it ends because it was asked to."""
        self._path.unlink(missing_ok=True)

    def _write(self, life: Life) -> None:
        self._life = life
        state_file.write(self._path, Life, life)


def is_of_another(path: Path) -> bool:
    """Return whether a file with the number of a process in its name is of another one that lives."""
    number = path.name.split(".")[-2]
    return number.isdigit() and number != str(os.getpid()) and Path(f"/proc/{number}").exists()


def _isolate(folder: Path, name: str, deaths: Sequence[Death]) -> None:
    now, suspects = deaths[-1].at, _suspects(deaths)
    known = state_file.read(folder / _ISOLATED, dict[str, Isolated], {})
    known = {job: alone for job, alone in known.items() if now - alone.at < _ALONE}
    why = deaths[-1].blames[0] or f"it died {len(deaths)} times within an hour with this job"
    for job, attached in suspects.items():
        known[job] = Isolated(version=attached.version, at=now, reason=f"left engine:{name}: {why}")
    if suspects:
        state_file.write(folder / _ISOLATED, dict[str, Isolated], known)


def _suspects(deaths: Sequence[Death]) -> dict[str, Attached]:
    """Choose the jobs to isolate after the last of `deaths`: the one that is blamed, or half of the last two's."""
    last = deaths[-1]
    if last.blames[1]:
        return {job: attached for job, attached in last.jobs.items() if job == last.blames[1]}
    if len(deaths) == 1:
        return {}
    both = sorted(last.jobs.keys() & deaths[-2].jobs.keys(), key=lambda job: last.jobs[job].at, reverse=True)
    return {job: last.jobs[job] for job in both[: (len(both) + 1) // 2]}


def isolation(state: Path, job: str, version: str) -> str:
    """Say why `job` has a JVM of its own for now, in a sentence; empty if it may attach to an engine."""
    known = state_file.read(state / FOLDER / _ISOLATED, dict[str, Isolated], {}).get(job)
    if known is None or known.version != version or datetime.now(UTC) - known.at >= _ALONE:
        return ""
    return known.reason
