"""Remember which run of a schedule seals a source, and since when: a retry belongs to the same run and tells all of it.

It is kept in the folder of the sealing job. What became of the days is not in it: their versions tell what the gate
refused, `tocsin.quality.unsealed_days` what could not be sealed.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tocsin.history.day_versions import DayVersion, whole_versions
from tocsin.history.places import Places
from tocsin.model.names import sealing_job
from tocsin.project.settings import Settings
from tocsin.runtime import state_file


class Sealing(BaseModel):
    """One run, over all its tries.

    Attributes:
        run_id: how the schedule calls it.
        began_at: when its first try did, UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    began_at: datetime


def begin_sealing(settings: Settings, source: str, run_id: str) -> Sealing:
    """Look up the run `run_id`, which begins now unless an earlier try of it did. For who holds the lock.

    Raises:
        OSError: the disk is full or the folder cannot be written; a retry helps once that is mended.
    """
    known = read_sealing(settings, source, run_id)
    if known is None:
        known = Sealing(run_id=run_id, began_at=datetime.now(UTC))
        state_file.write(_file(settings, source), Sealing, known)
    return known


def read_sealing(settings: Settings, source: str, run_id: str) -> Sealing | None:
    """Look up the run `run_id`; None before its first try, and once another run has begun."""
    known = state_file.read(_file(settings, source), Sealing, None)
    return known if known is not None and known.run_id == run_id else None


def sealed_since(settings: Settings, source: str, moment: datetime) -> dict[date, DayVersion]:
    """The latest version of each day that was sealed at `moment` (UTC) or later, published or not."""
    latest = {day: versions[-1] for day, versions in whole_versions(Places.of(settings, source)).items()}
    return {day: version for day, version in sorted(latest.items()) if version.sealed_at >= moment}


def _file(settings: Settings, source: str) -> Path:
    return settings.checkpoint(sealing_job(source)) / "run.json"
