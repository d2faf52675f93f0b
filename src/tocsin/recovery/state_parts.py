"""Choose and copy what a backup takes of a state folder; the rest is a server's, or made anew by the jobs."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

from tocsin.project.settings import Settings
from tocsin.runtime.state_file import write_whole
from tocsin.sparkjob.query.checkpoint import save_place
from tocsin.sparkjob.query.progress import batches_in
from tocsin.storage.job_folders import JobFolders, checkpoint_root
from tocsin.storage.stored_path import StoredPath

CHECKPOINTS, ALERTS = "checkpoints", "alerts.db"
FOLDERS = ("history", "supervision", "views", "tables", "quality", "parity", "replays")
FILES = ("web.token",)
OWNED = (CHECKPOINTS, ALERTS, f"{ALERTS}-wal", f"{ALERTS}-shm", *FOLDERS, *FILES)
"""All in a state folder that a restore writes."""

_SQLITE = b"SQLite format 3\0"
_NOT_STATE = {"lock", "jvm"}
_VERSIONS = "versions"


def copy_folder(source: Path, target: Path) -> None:
    """Copy `source`, which jobs may write meanwhile: each file whole, and what notes name with them.

    Notes (JSON) come first, since what they name is kept for a while, and databases last: they may know more than the
    files beside them, never less.
    """
    for path in sorted((one for one in source.rglob("*") if one.is_file()), key=_turn):
        if not _is_passing(path):
            copy_file(path, target / path.relative_to(source))


def copy_other_parts(source: Path, target: Path) -> None:
    """Copy what is neither a checkpoint nor the alerts DB, from a state folder to a backup or back."""
    for name in FOLDERS:
        if (source / name).is_dir():
            copy_folder(source / name, target / name)
    for name in FILES:
        if (source / name).exists():
            copy_file(source / name, target / name)


def copy_file(source: Path, target: Path) -> None:
    """Copy one file to the disk; a database as of one moment. One that was removed meanwhile is left out.

    Raises:
        OSError: it cannot be read or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if _is_database(source):
            _copy_database(source, target)
        else:
            shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def copy_checkpoint(folders: JobFolders, target: Path) -> None:
    """Copy what the job with these `folders` must not lose: the place it has reached, notes, versions.

    State is not copied: it is made anew from the events before that place. A job that keeps none, an ingest or a flow,
    goes on from Spark's own note of its last batch.
    """
    for source in dict.fromkeys((folders.local, folders.stored)):
        for path in source.glob("*"):
            if path.is_file() and not _is_passing(path):
                _take(path, target / path.name)
    if (folders.local / _VERSIONS).is_dir():
        copy_folder(folders.local / _VERSIONS, target / _VERSIONS)
    save_place(folders.stored, target)
    query = folders.stored / "query"
    if both := batches_in(query / "commits") & batches_in(query / "offsets"):
        for log in ("commits", "offsets"):
            _take(query / log / str(max(both)), target / "query" / log / str(max(both)))
        _take(query / "metadata", target / "query" / "metadata")
        for path in (query / "sources").glob("*/*"):
            _take(path, target / "query" / "sources" / path.parent.name / path.name)


def restore_checkpoints(source: Path, settings: Settings) -> None:
    """Put the checkpoints of a backup, in `source`, where the jobs of `settings` look for them.

    Raises:
        OSError: a folder cannot be written.
        ConfigError, TransientError: the object store refuses, or does not answer.
    """
    root = checkpoint_root(settings)
    for path in source.rglob("*"):
        job, *rest = path.relative_to(source).parts
        if path.is_dir():
            continue
        is_local = rest[0] == _VERSIONS or settings.storage.checkpoints is None
        target = settings.state / CHECKPOINTS / job if is_local else root / job
        for name in rest:
            target = target / name
        if isinstance(target, Path):
            copy_file(path, target)
        else:
            target.write_whole(path.read_bytes())


def _take(source: StoredPath, target: Path) -> None:
    """Copy a file of a checkpoint; one that was removed meanwhile is left out."""
    if isinstance(source, Path):
        copy_file(source, target)
    else:
        with contextlib.suppress(FileNotFoundError):
            write_whole(target, source.read_bytes())


def _turn(path: Path) -> tuple[int, str]:
    return (0 if path.suffix == ".json" else 2 if path.suffix == ".db" else 1, str(path))


def _is_passing(path: StoredPath) -> bool:
    """Return whether `path` is a lock, a draft that a writer has not finished, or a database's journal."""
    name = path.name
    return name in _NOT_STATE or name.startswith(".") or name.endswith((".lock", ".db-wal", ".db-shm", ".draft.json"))


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _copy_database(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"file:{source.absolute()}?mode=ro", uri=True, timeout=30)) as read,
        contextlib.closing(sqlite3.connect(target)) as written,
    ):
        read.backup(written)
        written.execute("PRAGMA journal_mode=DELETE")
