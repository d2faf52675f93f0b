"""Choose and copy what a backup takes of a state folder; the rest is a server's, or made anew by the jobs."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

from tocsin.sparkjob.query.checkpoint import save_place
from tocsin.sparkjob.query.progress import batches_in

CHECKPOINTS, ALERTS = "checkpoints", "alerts.db"
FOLDERS = ("history", "supervision", "drains", "views", "tables", "quality", "parity", "replays")
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


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy what the job with the checkpoint folder `source` must not lose: the place it has reached, notes, versions.

    State is not copied: it is made anew from the events before that place. A job that keeps none, an ingest or a flow,
    goes on from Spark's own note of its last batch.
    """
    for path in source.iterdir():
        if path.is_file() and not _is_passing(path):
            copy_file(path, target / path.name)
    if (source / _VERSIONS).is_dir():
        copy_folder(source / _VERSIONS, target / _VERSIONS)
    save_place(source, target)
    query = source / "query"
    if both := batches_in(query / "commits") & batches_in(query / "offsets"):
        for log in ("commits", "offsets"):
            copy_file(query / log / str(max(both)), target / "query" / log / str(max(both)))
        copy_file(query / "metadata", target / "query" / "metadata")
        copy_folder(query / "sources", target / "query" / "sources")


def _turn(path: Path) -> tuple[int, str]:
    return (0 if path.suffix == ".json" else 2 if path.suffix == ".db" else 1, str(path))


def _is_passing(path: Path) -> bool:
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
