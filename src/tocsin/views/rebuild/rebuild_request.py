"""Requests to compute a view anew, as one file for each view: `<state>/views/<name>.rebuild.json`.

The file stays: what it says is part of the name of the build that its compute job runs (`ViewRow.build`). So a request
that is made twice, or while no job runs, loses nothing, and no job has to take it away.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tocsin.runtime import state_file


@dataclass(frozen=True)
class Rebuild:
    """The latest request: its id, and when it was made, UTC."""

    id: str
    asked_at: datetime


def ask_rebuild(state: Path, view: str) -> Rebuild:
    """Let `view` be computed anew, from the earliest event that Kafka keeps; readers see the old rows until then.

    Raises:
        OSError: the state folder cannot be written.
    """
    rebuild = Rebuild(uuid.uuid4().hex[:12], datetime.now(UTC))
    state_file.write(_path(state, view), Rebuild, rebuild)
    return rebuild


def read_rebuild(state: Path, view: str) -> Rebuild | None:
    """Read the latest request to compute `view` anew; None if there was none, or the file cannot be read."""
    return state_file.read(_path(state, view), Rebuild, None)


def _path(state: Path, view: str) -> Path:
    return state / "views" / f"{view}.rebuild.json"
