"""Versions of a sealed day: folders that are written once, and a small file in each that says what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

import structlog
from pydantic import BaseModel, ValidationError

from tocsin.declare.model.errors import TocsinError
from tocsin.declare.settings import Settings
from tocsin.history.places import VERSION_FILE, Places, end
from tocsin.platform import state_file
from tocsin.platform.storage.stored_path import ObjectPath, StoredPath, find_all, read_each
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.verdict import Acceptance

log = structlog.get_logger()
BUCKETS = 32
"""Files of a day that is sealed now, each with its share of the keys; a version notes its own number."""


class BrokenVersion(TocsinError):
    """A version cannot be read; a retry does not help, sealing the day again may."""


class SealedFile(BaseModel, frozen=True, extra="forbid"):
    """One Parquet file of a version: its name in the version's folder, and what it holds."""

    name: str
    rows: int
    bytes: int
    sha256: str


class DayVersion(BaseModel, frozen=True, extra="forbid"):
    """The contents of one version of a sealed day.

    Attributes:
        version: its name, as in `v20261121T020000000Z`; later versions sort behind.
        sealed_at: UTC.
        code: of the code that sealed it.
        key: the column by whose hash events are spread over the buckets, and by which they are sorted, then by time.
        buckets: how many; file `..._00003.c000.zstd.parquet` is bucket 3, and an empty bucket has none.
        columns: names and types, in order.
        runs: of landing that are in it.
        base: the version whose events it took over; None when all came from landing.
        facts: what was known of the day.
        files: all of it.
        severity: of its verdict: pass, warning or critical; None while it is not judged.
        report: of its verdict, relative to the state folder.
        published_at: when it was, UTC; None while it was not.
        rules: digest of the suites by which it was judged; None for versions from before 2026-11-26.
        accepted: who published it though the gate refused it; None when nobody did.
    """

    version: str
    sealed_at: datetime
    code: str
    key: str
    buckets: int
    columns: dict[str, str]
    runs: frozenset[str]
    base: str | None
    facts: DayFacts
    files: tuple[SealedFile, ...]
    severity: str | None = None
    report: str | None = None
    published_at: datetime | None = None
    rules: str | None = None
    accepted: Acceptance | None = None

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(file.bytes for file in self.files)

    @property
    def whole(self) -> bool:
        """Return whether its day was over when it was sealed."""
        return self.sealed_at >= end(self.facts.day)

    @property
    def refused(self) -> bool:
        """Return whether the gate refused it, and nobody has accepted it since."""
        return self.severity == "critical" and self.accepted is None

    @property
    def state(self) -> str:
        """Name its state in one word, for people."""
        if self.published_at is not None:
            return "published"
        return "refused" if self.refused else "unfinished"


def write_version(places: Places, day: date, version: DayVersion) -> None:
    """Say what a version holds: from now on it is whole.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    folder = places.version(day, version.version)
    state_file.write(folder / VERSION_FILE, DayVersion, version)


def note_version(settings: Settings, places: Places, day: date, version: DayVersion) -> None:
    """Say what a version holds, on this machine too: Airflow has no client of an object store. Errors as above."""
    write_version(places, day, version)
    if isinstance(places.root, ObjectPath):
        write_version(Places(settings.history_folder, places.source), day, version)


def read_version(places: Places, day: date, name: str) -> DayVersion:
    """One version.

    Raises:
        BrokenVersion: it is not there, or not whole.
    """
    path = places.version(day, name) / VERSION_FILE
    try:
        return DayVersion.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise BrokenVersion(f"{path} cannot be read: {str(error).splitlines()[0]}; seal {day} again") from error


def whole_versions(places: Places) -> dict[date, list[DayVersion]]:
    """All versions that were written to their end, by day, the oldest first; one that cannot be read is none."""
    days = places.day_folders()
    found = read_each(lambda one: _whole(places, *one), days, places.days)
    return {day: versions for (day, _), versions in zip(days, found, strict=True) if versions}


def _whole(places: Places, day: date, folder: StoredPath) -> list[DayVersion]:
    found = []
    for file in find_all(folder, f"*/{VERSION_FILE}"):
        try:
            found.append(read_version(places, day, file.parent.name))
        except BrokenVersion as error:
            log.error("version unreadable", error=str(error))
    return found


def paths(places: Places, day: date, version: DayVersion) -> Sequence[StoredPath]:
    """The files of a version that hold rows."""
    folder = places.version(day, version.version)
    return [folder / file.name for file in version.files if file.rows]
