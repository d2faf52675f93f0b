"""The folders of a job: one on its machine, and one for what it must find again wherever it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tocsin.declare.setting_blocks import FILE, S3
from tocsin.declare.settings import Settings
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
