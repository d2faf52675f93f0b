"""List what a backup holds and where it came from: the file that is written last, and checked first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tocsin.alerts.store.database import code_schema
from tocsin.history.parquet_files import digest
from tocsin.model.errors import ConfigError, Fault
from tocsin.runtime import state_file

MANIFEST = "manifest.json"
FORMAT = 1


class FileMark(BaseModel, frozen=True, extra="forbid"):
    """Size and hash of one file."""

    size: int
    sha256: str


class BackupOrigin(BaseModel, frozen=True, extra="forbid"):
    """The software and the installation that a backup belongs to.

    Attributes:
        format: of the backup itself.
        tocsin: release that made it.
        alerts_schema: revision of the alerts DB.
        state: the state folder; tables of history name files in it by their whole path.
        topic_prefix: of its topics.
        cluster: id of its Kafka, whose offsets it holds.
    """

    format: int = FORMAT
    tocsin: str
    alerts_schema: str
    state: str
    topic_prefix: str
    cluster: str


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """One backup.

    Attributes:
        origin: see there.
        made_at: UTC.
        indexed: offsets of the findings topic that the alerts DB holds all before.
        files: all other files, by their path in the backup.
    """

    origin: BackupOrigin
    made_at: datetime
    indexed: dict[int, int]
    files: dict[str, FileMark]

    def write(self, folder: Path) -> None:
        """Write it to `folder`, which makes that a backup."""
        state_file.write(folder / MANIFEST, Manifest, self)


def origin_of(state: Path, topic_prefix: str, cluster: str) -> BackupOrigin:
    """Describe this software and the installation in `state`."""
    return BackupOrigin(
        tocsin=version("tocsin"),
        alerts_schema=code_schema(),
        state=str(state.resolve()),
        topic_prefix=topic_prefix,
        cluster=cluster,
    )


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the backup in `folder`.

    Raises:
        ConfigError: there is no whole backup, or one that this Tocsin does not know.
    """
    if not folder.is_dir():
        raise ConfigError.one(folder, "is no folder")
    path = folder / MANIFEST
    try:
        return state_file.load(path, Manifest)
    except FileNotFoundError:
        raise ConfigError.one(folder, f"is no whole backup: it has no {MANIFEST}; take another one") from None
    except ValidationError as error:
        what = f"cannot be read: it was changed, or made by another Tocsin ({error.error_count()} faults in it)"
        raise ConfigError.one(path, what) from error


def faults_of_files(folder: Path, manifest: Manifest) -> list[Fault]:
    """Compare each file in `folder` with `manifest`."""
    there = {str(path.relative_to(folder)) for path in files_in(folder)} - {MANIFEST}
    faults = [Fault(str(folder / one), "is missing; take another backup") for one in manifest.files.keys() - there]
    faults += [
        Fault(str(folder / one), "is no part of this backup; remove it") for one in there - manifest.files.keys()
    ]
    for name in sorted(there & manifest.files.keys()):
        if mark_of(folder / name) != manifest.files[name]:
            faults.append(Fault(str(folder / name), "was changed since the backup was made; take another backup"))
    return sorted(faults, key=lambda fault: fault.where)


def files_in(folder: Path) -> Iterator[Path]:
    """List all files below `folder`."""
    return (path for path in folder.rglob("*") if not path.is_dir())


def mark_of(path: Path) -> FileMark:
    """Read the size and hash of the file at `path`."""
    return FileMark(size=path.stat().st_size, sha256=digest(path))
