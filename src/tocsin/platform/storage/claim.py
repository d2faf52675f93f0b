"""Let one installation use a folder of checkpoints or of history: two would write each other's state.

Each looks for other marks, and writes none where there is one. Then it writes its own and looks again, so of two that
begin at once at least one finds the other.
"""

from __future__ import annotations

import socket
from datetime import UTC, datetime

from pydantic import BaseModel

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.storage.job_folders import folder_at
from tocsin.platform.storage.stored_path import StoredPath

_MARKS = "owners"


class OwnerMark(BaseModel, frozen=True):
    """The mark of an installation: its name, and where its last job started, and when, UTC."""

    instance: str
    host: str
    state: str
    at: datetime


def claim(settings: Settings) -> None:
    """Mark the folder that `storage.checkpoints` names as that of this installation; nothing to do without the setting.

    Raises a ConfigError if another installation has marked it or the store refuses, a TransientError if the store does
    not answer, and an OSError if the folder cannot be written.
    """
    _claim(settings, settings.storage.checkpoints, "storage.checkpoints")


def claim_history(settings: Settings) -> None:
    """Mark the folder that `storage.history` names, likewise; errors as of `claim`."""
    _claim(settings, settings.storage.history, "storage.history")


def _claim(settings: Settings, uri: str | None, key: str) -> None:
    if uri is None:
        return
    marks, own = folder_at(settings, uri) / _MARKS, f"{settings.instance}.json"
    mark = OwnerMark(
        instance=settings.instance, host=socket.gethostname(), state=str(settings.state), at=datetime.now(UTC)
    )
    if (found := _other(marks, own)) is None:
        was_there = (marks / own).exists()
        state_file.write(marks / own, OwnerMark, mark)
        if (found := _other(marks, own)) is None:
            return
        if not was_there:
            (marks / own).unlink(missing_ok=True)
    other = state_file.read(marks / found, OwnerMark, None)
    who = f"'{found.removesuffix('.json')}'"
    if other is not None:
        who += f" (its last job started at {other.at:%Y-%m-%d %H:%M} UTC on {other.host}, state folder {other.state})"
    what = f"belongs to installation {who}, this is '{settings.instance}'; choose another prefix"
    what += f", or remove {marks / found} if that one is gone"
    raise ConfigError.one(uri, what, key=key)


def _other(marks: StoredPath, own: str) -> str | None:
    return min((path.name for path in marks.glob("*.json") if path.name != own), default=None)
