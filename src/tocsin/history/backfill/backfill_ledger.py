"""Keep what backfills have published, detector by detector: the truth that the alerts DB follows.

::

    <history folder>/backfills/<detector>/
      ledger.json                              which run counts for each day, and what came of later attempts
      dt=2026-11-21/<run>.jsonl.gz             the findings of a run, one a line

A day is published by one replacement of the ledger, so its findings change all at once or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path

import structlog
from pydantic import BaseModel

from tocsin.declare.model.errors import TocsinError
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings
from tocsin.history.places import stamp
from tocsin.history.seal_outcomes import DayOutcome
from tocsin.platform import state_file
from tocsin.platform.state_file import write_whole

_FINDINGS = ".jsonl.gz"

log = structlog.get_logger()


class BrokenFindings(TocsinError):
    """Published findings cannot be read; a retry does not help, running the day again does."""


class Made(BaseModel, frozen=True, extra="forbid"):
    """What findings were made of: two equal ones make equal findings.

    Attributes:
        inputs: the sealed version of each day that was read.
        tables: the declaration of each joined table that is made of history; None in entries from before 2026-11-26.
    """

    version: str
    inputs: dict[date, str]
    tables: dict[str, str] | None = None


class Published(BaseModel, frozen=True, extra="forbid"):
    """The findings that count for one day; times are UTC.

    Attributes:
        run: its name, which sorts by time; a later publication of the same day sorts behind.
        run_id: which run of Airflow, or of a person, computed them; it is in each finding.
        sha256: of their file; empty until it is written.
        severity: of the verdict on them: pass or warning.
        report: of that verdict, relative to the state folder.
        rows: events that were read for it, its share of a longer run.
        cpu_seconds: likewise; what the next one is expected to take follows from it.
    """

    run: str
    run_id: str
    made: Made
    at: datetime
    findings: int = 0
    sha256: str = ""
    severity: str
    report: str | None = None
    rows: int = 0
    cpu_seconds: float = 0.0


class End(StrEnum):
    """The end of an attempt that published nothing."""

    HELD = "held"
    """The verdict on its findings was critical."""
    FAILED = "failed"
    """It could not be computed."""


class Attempt(BaseModel, frozen=True, extra="forbid"):
    """The latest attempt at a day that published nothing; times are UTC.

    Attributes:
        why: one sentence.
        made: what it would have been made of; None when not even that could be said.
        report: of the verdict, relative to the state folder; None when there is none.
        rules: digest of the rules by which its findings were judged; None in entries from before 2026-11-26.
    """

    end: End
    why: str
    run_id: str
    made: Made | None
    at: datetime
    report: str | None = None
    rules: str | None = None


class BackfillLedger(BaseModel, frozen=True, extra="forbid"):
    """All days of one detector: what counts, and the latest attempt where that published nothing."""

    published: dict[date, Published] = {}
    attempts: dict[date, Attempt] = {}


class Backfills:
    """The published findings of one detector. Who writes holds the lock of `names.backfill_job`."""

    def __init__(self, settings: Settings, detector: str) -> None:
        self.detector = detector
        self.folder = folder(settings) / detector

    @property
    def file(self) -> Path:
        """Changes with each publication and each failed attempt."""
        return self.folder / "ledger.json"

    def read(self) -> BackfillLedger:
        """Read the ledger; empty before the first run. A broken ledger counts as empty: all days are run again."""
        return state_file.read(self.file, BackfillLedger, BackfillLedger())

    def next_run(self, day: date) -> str:
        """A name for the next run of `day`."""
        before = self.read().published.get(day)
        return stamp(datetime.now(UTC), before.run if before else None)

    def publish(self, day: date, findings: Sequence[Finding], published: Published) -> Published:
        """Let `findings` be those of `day` from now on; returns `published` with their count and checksum.

        `published.run` is a `next_run`. OSError if the folder cannot be written; what was published still counts.
        """
        ledger = self.read()
        before = ledger.published.get(day)
        lines = b"".join(finding.to_json() + b"\n" for finding in findings)
        content = gzip.compress(lines, mtime=0)
        own = {"findings": len(findings), "sha256": hashlib.sha256(content).hexdigest()}
        published = published.model_copy(update=own)
        write_whole(self._findings(day, published.run), content)
        attempts = {other: attempt for other, attempt in ledger.attempts.items() if other != day}
        self._write(BackfillLedger(published={**ledger.published, day: published}, attempts=attempts))
        if before is not None and before.run != published.run:
            self._findings(day, before.run).unlink(missing_ok=True)
        return published

    def note(self, day: date, attempt: Attempt) -> None:
        """Record an attempt that published nothing; what was published still counts. OSError as in `publish`."""
        ledger = self.read()
        self._write(ledger.model_copy(update={"attempts": {**ledger.attempts, day: attempt}}))

    def findings(self, day: date, published: Published) -> Iterator[Finding]:
        """Read the findings published for `day`, in the order in which they were computed.

        BrokenFindings if the file is gone or is not what was written. Reading the ledger again helps if the day has
        been published anew meanwhile.
        """
        path = self._findings(day, published.run)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise BrokenFindings(f"{path}: is gone; run {self.detector} for {day} again") from None
        if hashlib.sha256(content).hexdigest() != published.sha256:
            raise BrokenFindings(f"{path}: differs from the published file; run {self.detector} for {day} again")
        return (Finding.model_validate_json(line) for line in gzip.decompress(content).splitlines())

    def forget(self, before: date) -> None:
        """Remove what lies further back than history is kept, and files that nothing refers to.

        The folder goes with the last day. Where the ledger cannot be read nothing is removed, and the log says so.
        OSError if the folder cannot be written; the next time removes the rest.
        """
        ledger = state_file.read(self.file, BackfillLedger, None)
        if ledger is None:
            if self.file.exists():
                log.warning("backfill ledger unreadable, kept", file=str(self.file))
                return
            ledger = BackfillLedger()
        published = {day: one for day, one in ledger.published.items() if day >= before}
        attempts = {day: one for day, one in ledger.attempts.items() if day >= before}
        if (published, attempts) != (ledger.published, ledger.attempts):
            self._write(BackfillLedger(published=published, attempts=attempts))
        known = {self._findings(day, one.run) for day, one in published.items()}
        # Hidden files are drafts of runs that were killed, for who writes holds the lock.
        for file in [*self.folder.glob(f".{self.file.name}.*"), *self.folder.glob("dt=*/*")]:
            if file not in known:
                file.unlink()
        for path in self.folder.glob("dt=*"):
            if not any(path.iterdir()):
                path.rmdir()
        if not published and not attempts and self.folder.exists():
            self.file.unlink(missing_ok=True)
            self.folder.rmdir()

    def _findings(self, day: date, run: str) -> Path:
        return self.folder / f"dt={day}" / f"{run}{_FINDINGS}"

    def _write(self, ledger: BackfillLedger) -> None:
        state_file.write(self.file, BackfillLedger, ledger)


def folder(settings: Settings) -> Path:
    """Locate the backfills of all detectors."""
    return settings.history_folder / "backfills"


def backfilled(settings: Settings) -> list[str]:
    """The detectors of which something was published or tried, declared or not."""
    return sorted(path.parent.name for path in folder(settings).glob("*/ledger.json"))


def held_by(settings: Settings, detectors: Iterable[str], run_id: str) -> dict[tuple[str, date], str]:
    """Return the verdicts of what the run `run_id` computed, a gate held, and nothing has dealt with since."""
    return {
        (name, day): attempt.why
        for name in detectors
        for day, attempt in Backfills(settings, name).read().attempts.items()
        if attempt.run_id == run_id and attempt.end is End.HELD
    }


def backfill_outcomes(settings: Settings, detectors: Iterable[str], run_id: str) -> list[DayOutcome]:
    """List each day that the run `run_id` published or failed, by detector, the oldest day first.

    A day that a later run has dealt with is left out.
    """
    found = []
    for name in detectors:
        ledger = Backfills(settings, name).read()
        for day, one in ledger.published.items():
            if one.run_id == run_id and day not in ledger.attempts:
                words = f"published, {one.findings} finding{'s' * (one.findings != 1)}, verdict {one.severity}"
                found.append(DayOutcome(name, day, True, words, one.report))
        for day, attempt in ledger.attempts.items():
            if attempt.run_id == run_id:
                found.append(DayOutcome(name, day, False, f"{attempt.end.value}: {attempt.why}", attempt.report))
    return sorted(found, key=lambda one: (one.subject, one.day))


def counts(published: Mapping[date, Published], days: Iterable[date]) -> list[int]:
    """Count the published findings of each of `days` that is known, in their order."""
    return [published[day].findings for day in days if day in published]
