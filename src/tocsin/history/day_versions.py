"""Versions of a sealed day: folders that are written once, and what is known of each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

from pydantic import BaseModel

from tocsin.declare.model.errors import TocsinError
from tocsin.history.places import Places, end
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.verdict import Acceptance

BUCKETS = 32
"""Files of a day that is sealed now, each with its share of the keys; a version notes its own number."""


class BrokenVersion(TocsinError):
    """A version cannot be read; a retry does not help, sealing the day again may."""


class Unsealed(BaseModel, frozen=True, extra="forbid"):
    """Why a day could not be sealed at the last attempt, when that was (UTC), and in which run of a schedule."""

    reason: str
    at: datetime
    run_id: str = ""

    @property
    def text(self) -> str:
        """The same in one sentence, for people."""
        return f"could not be sealed at {self.at:%Y-%m-%d %H:%M} UTC: {self.reason}"


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
        summary: its verdict in words.
        published_at: when it was, UTC; None while it was not.
        rules: digest of the suites by which it was judged; None for versions from before 2026-11-26.
        accepted: who published it though the gate refused it; None when nobody did.
        run_id: the run of a schedule that sealed it; empty if it was sealed by hand, or before 2026-11-27.
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
    summary: str = ""
    published_at: datetime | None = None
    rules: str | None = None
    accepted: Acceptance | None = None
    run_id: str = ""

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


def paths(places: Places, day: date, version: DayVersion) -> Sequence[StoredPath]:
    """The files of a version that hold rows."""
    folder = places.version(day, version.version)
    return [folder / file.name for file in version.files if file.rows]
