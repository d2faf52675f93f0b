"""Remember what each job was started with, so that `tocsin plan` can name what has changed since."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import BaseModel, Field

from tocsin.declare.model.names import file_name
from tocsin.platform import state_file
from tocsin.supervise.job_states import Desired

_KEPT = 3  # the version that runs, the one that is to take over from it, and the one before


class StartRecord(BaseModel, frozen=True):
    """One start of a job, `at` epoch seconds; the labels of the process have the same `spec`, the hash of `inputs`."""

    spec: str
    at: float
    inputs: dict[str, str] = Field(default_factory=dict)


def note_start(state: Path, job: str, wanted: Desired) -> None:
    """Note that `job` is started as `wanted`; raises OSError if the state folder cannot be written."""
    others = [start for start in read_starts(state, job) if start.spec != wanted.spec]
    new = StartRecord(spec=wanted.spec, at=time.time(), inputs=dict(wanted.inputs))
    state_file.write(_path(state, job), list[StartRecord], [*others, new][-_KEPT:])


def read_starts(state: Path, job: str) -> list[StartRecord]:
    """Read the last starts of `job` from different specs, the latest at the end; none if the file is missing."""
    return state_file.read(_path(state, job), list[StartRecord], [])


def _path(state: Path, job: str) -> Path:
    return state / "supervision" / "starts" / f"{file_name(job)}.json"
