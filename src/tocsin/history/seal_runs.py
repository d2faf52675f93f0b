"""Remember which run of a schedule seals a source, and since when: a retry belongs to the same run and tells all of it.

It is kept in the folder of the sealing job. What became of the days is not in it: their versions tell what the gate
refused, `tocsin.quality.unsealed_days` what could not be sealed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from pydantic import BaseModel, ValidationError

from tocsin.declare.model.names import sealing_job
from tocsin.declare.settings import Settings
from tocsin.history.day_versions import DayVersion, whole_versions
from tocsin.history.places import Places
from tocsin.platform import state_file
from tocsin.quality.unsealed_days import judge_or_accept, unsealed_days
from tocsin.quality.verdict import Verdict


@dataclass(frozen=True)
class DayOutcome:
    """The outcome of one day of one source or detector in a run.

    Attributes:
        subject: the detector or source.
        day: UTC.
        published: whether what the run has made of it counts now.
        said: what became of it and why.
        report: the verdict on it, relative to the state folder; None when there is none.
        commands: what to type for it.
    """

    subject: str
    day: date
    published: bool
    said: str
    report: str | None
    commands: tuple[str, ...] = ()


class Sealing(BaseModel, frozen=True, extra="forbid"):
    """One run, over all its tries.

    Attributes:
        run_id: how the schedule calls it.
        began_at: when its first try did, UTC.
    """

    run_id: str
    began_at: datetime


def begin_sealing(settings: Settings, source: str, run_id: str) -> Sealing:
    """Look up the run `run_id`, which begins now unless an earlier try of it did. For who holds the lock.

    Raises:
        OSError: the disk is full or the folder cannot be written; a retry helps once that is fixed.
    """
    sealing = read_sealing(settings, source, run_id)
    if sealing is None:
        sealing = Sealing(run_id=run_id, began_at=datetime.now(UTC))
        state_file.write(_file(settings, source), Sealing, sealing)
    return sealing


def read_sealing(settings: Settings, source: str, run_id: str) -> Sealing | None:
    """Look up the run `run_id`; None before its first try, and once another run has begun."""
    sealing = state_file.read(_file(settings, source), Sealing, None)
    return sealing if sealing is not None and sealing.run_id == run_id else None


def sealed_since(settings: Settings, source: str, moment: datetime) -> dict[date, DayVersion]:
    """The latest version of each day that was sealed at `moment` (UTC) or later, published or not."""
    on_this_machine = Places(settings.history_folder, source)
    latest = {day: versions[-1] for day, versions in whole_versions(on_this_machine).items()}
    return {day: version for day, version in sorted(latest.items()) if version.sealed_at >= moment}


class _Judged(BaseModel):
    """Of a record of the gate, which lies beside its page, the verdict alone."""

    verdict: Verdict


def seal_outcomes(settings: Settings, source: str, run_id: str) -> list[DayOutcome]:
    """List each day of `source` that any try of the run `run_id` sealed or failed to seal, the oldest first.

    Nothing is told of a run once the next one has begun.
    """
    run = read_sealing(settings, source, run_id)
    if run is None:
        return []
    found = {
        day: DayOutcome(source, day, False, f"failed: {one.reason}", None)
        for day, one in unsealed_days(settings.state, source).items()
        if one.at >= run.began_at
    }
    for day, version in sealed_since(settings, source, run.began_at).items():
        if version.published_at is not None:
            words = (
                f"published, {version.facts.rows} event{'s' * (version.facts.rows != 1)}, verdict {version.severity}"
            )
            found[day] = DayOutcome(source, day, True, words, version.report)
        elif version.refused:
            said, commands = f"refused: {verdict_text(settings, version.report)}", judge_or_accept(source, day)
            found[day] = DayOutcome(source, day, False, said, version.report, commands)
    return [found[day] for day in sorted(found)]


def verdict_text(settings: Settings, report: str | None) -> str:
    """The verdict of a `report` in words: the rules that broke, with what was observed and what is allowed."""
    try:
        path = (settings.state / str(report)).with_suffix(".json")
        verdict = _Judged.model_validate_json(path.read_bytes()).verdict
    except (OSError, ValidationError):
        return "its verdict is unreadable; seal the day again."
    return verdict.model_copy(update={"report": None}).text


def _file(settings: Settings, source: str) -> Path:
    return settings.checkpoint(sealing_job(source)) / "run.json"
