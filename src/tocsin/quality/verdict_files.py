"""Keep what the gates decided: `<state>/quality/<subject>/<day>/<run>.json`, and a page beside each.

A record holds all figures of its day, so the records are the table of profiles too. The latest record of a day counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path

import structlog
from pydantic import BaseModel, ValidationError

from tocsin.declare.model.errors import ConfigError, nearest
from tocsin.platform import state_file
from tocsin.platform.state_file import write_whole
from tocsin.quality.day_profile import Profile
from tocsin.quality.verdict import CheckStage, Severity, Verdict

FOLDER = "quality"
INDEX = "index.html"
_OF_FINDINGS = "findings."

log = structlog.get_logger()


class VerdictRecord(BaseModel, frozen=True, extra="forbid"):
    """One verdict, and the profile that it is about; None for a verdict about findings."""

    verdict: Verdict
    profile: Profile | None = None


class Records:
    """The records below one state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.folder = state / FOLDER

    def place(self, subject: str, day: date, run_id: str, ending: str = "html") -> Path:
        """File of a run, relative to the state folder."""
        return Path(FOLDER) / subject / str(day) / f"{run_id}.{ending}"

    def write(self, record: VerdictRecord, page: str) -> None:
        """Keep a record and its page; each is whole or not there, and a repetition replaces them.

        OSError if the disk is full or not writable; a retry helps once that is fixed.
        """
        verdict = record.verdict
        where = (verdict.subject, verdict.day, verdict.run_id)
        write_whole(self.state / self.place(*where), page)
        state_file.write(self.state / self.place(*where, ending="json"), VerdictRecord, record)

    def write_index(self, page: str) -> None:
        """Keep the page of all subjects and days."""
        write_whole(self.folder / INDEX, page)

    def subjects(self) -> list[str]:
        """Sources, and detectors as `findings.<detector>`, of which something was judged."""
        return sorted(path.name for path in self.folder.glob("*") if path.is_dir())

    def days(self, subject: str) -> list[date]:
        """Days of `subject` of which something was judged, the latest first."""
        names = [path.name for path in (self.folder / subject).glob("????-??-??")]
        return sorted((date.fromisoformat(name) for name in names), reverse=True)

    def check_subject(self, subject: str) -> str:
        """Return `subject` if it was ever judged; else ConfigError, which names the nearest subject that was."""
        subjects = self.subjects()
        if subject in subjects:
            return subject
        near = nearest(subject, subjects)
        what = f"no day of '{subject}' has been judged" + (f"; did you mean '{near}'?" if near else "")
        raise ConfigError.one(self.folder, what)

    def of_day(self, subject: str, day: date | None = None) -> VerdictRecord:
        """Read the latest record of `day`, or of the latest judged day; ConfigError if none can be read."""
        days = self.days(self.check_subject(subject))
        day = day or days[0]
        record = self.latest(subject, day)
        if record is None:
            raise ConfigError.one(self.folder / subject, f"{day} has not been judged; tocsin quality shows the days")
        return record

    def forget(self, subject: str, before: date) -> None:
        """Remove records and pages of days before `before`; only while nothing judges `subject`.

        A record that cannot be read is left with its page, and the log says so. OSError if a folder cannot be written;
        the next time removes the rest.
        """
        for day in self.days(subject):
            folder = self.folder / subject / str(day)
            if day >= before:
                continue
            broken = {path.stem for path in folder.glob("*.json") if not _is_readable(path)}
            for path in folder.iterdir():
                if path.stem not in broken:
                    path.unlink()
            if not broken:
                folder.rmdir()
        if (self.folder / subject).exists() and not any((self.folder / subject).iterdir()):
            (self.folder / subject).rmdir()

    def latest(self, subject: str, day: date) -> VerdictRecord | None:
        """Read the last verdict on `day`; None if there is none that can be read."""
        paths = (self.folder / subject / str(day)).glob("*.json")
        found = [record for path in paths if (record := state_file.read(path, VerdictRecord, None)) is not None]
        return max(found, key=lambda record: record.verdict.judged_at, default=None)

    def profiles(self, source: str, days: Iterable[date]) -> list[Profile]:
        """The profiles of those of `days` that may count as usual, in that order.

        A day that broke a critical rule may not. One stopped for its drift alone may: the median leaves out one that is
        odd, and after some weeks a change that stays is what is usual.
        """
        records = [self.latest(source, day) for day in days]
        return [one.profile for one in records if one is not None and one.profile and not _is_bad(one.verdict)]


def subject_of(detector: str) -> str:
    """Name the subject of verdicts on the findings of `detector`."""
    return f"{_OF_FINDINGS}{detector}"


def detector_of(subject: str) -> str | None:
    """The detector on whose findings there are verdicts; None where they are about a source."""
    return subject.removeprefix(_OF_FINDINGS) if subject.startswith(_OF_FINDINGS) else None


def _is_readable(path: Path) -> bool:
    try:
        VerdictRecord.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        log.warning("old verdict unreadable, kept", file=str(path), error=str(error).splitlines()[0])
        return False
    return True


def _is_bad(verdict: Verdict) -> bool:
    return any(check.severity is Severity.CRITICAL and check.stage is not CheckStage.DRIFT for check in verdict.failed)
