"""The folders of a job: one on its machine, and one for what it must find again wherever it starts."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import FILE, S3
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.storage.s3_store import s3_store
from tocsin.platform.storage.stored_path import ObjectPath, StoredPath

TABLES = "tables"
"""The folder of the published rows of tables, beside those of jobs."""


@dataclass(frozen=True)
class JobFolders:
    """The folders of one job.

    Attributes:
        local: of locks, requests of operators, and what is worthless once its process has ended.
        elsewhere: of what it must find again; None if that lies in `local` too.
    """

    local: Path
    elsewhere: StoredPath | None = None

    @property
    def stored(self) -> StoredPath:
        """The folder of what it must find again."""
        return self.local if self.elsewhere is None else self.elsewhere

    @classmethod
    def of(cls, settings: Settings, job: str) -> JobFolders:
        """Find those of `job`."""
        local = settings.checkpoint(job)
        return cls(local, None if settings.storage.checkpoints is None else checkpoint_root(settings) / local.name)


def checkpoint_root(settings: Settings) -> StoredPath:
    """Find the folder with a folder for each job's lasting state. ConfigError if the credentials cannot be read."""
    uri = settings.storage.checkpoints
    return settings.checkpoint("any").parent if uri is None else folder_at(settings, uri)


def folder_at(settings: Settings, uri: str) -> StoredPath:
    """Find the folder that a setting names by `uri`. ConfigError if the file of credentials cannot be read."""
    if uri.startswith(S3):
        return ObjectPath(s3_store(settings.storage), uri.removeprefix(S3))
    return Path(uri.removeprefix(FILE))


def stored_folder(settings: Settings, job: str) -> StoredPath:
    """Find the folder of what `job` must find again."""
    return JobFolders.of(settings, job).stored


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
