"""The days of a run that judges: which it is to be about, and what became of them. Imports nothing of Airflow."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from pydantic import BaseModel, ValidationError

from tocsin.backfill.backfill_ledger import Backfills
from tocsin.history.day_versions import DayVersion
from tocsin.history.seal_runs import read_sealing, sealed_since
from tocsin.project.settings import Settings
from tocsin.quality.unsealed_days import unsealed_days
from tocsin.quality.verdict import Verdict


@dataclass(frozen=True)
class DayOutcome:
    """One day of one detector or source in one run.

    Attributes:
        subject: the detector or source.
        day: UTC.
        published: whether what the run has made of it counts now.
        said: what became of it and why.
        report: the verdict on it, relative to the state folder; None when there is none.
    """

    subject: str
    day: date
    published: bool
    said: str
    report: str | None


def asked_day(run_type: str, partition_key: str | None, param: str | None) -> str | None:
    """The day that a run is about, as it was given; None for one that is about all days that need it.

    Args:
        run_type: what Airflow calls its kind. The run of the night has a day in its key, too, because its DAG has one
            run for each day; it is about all.
        partition_key: the day of a run of a Backfill.
        param: what was put into the form.
    """
    return None if run_type == "scheduled" else partition_key or param or None


def due_days(told: str) -> dict[str, str]:
    """The days that need a run, and why, out of what `tocsin backfill --plan --json` wrote."""
    return {one["day"]: one["why"] for one in json.loads(told) if one["state"] == "due"}


def outcomes(settings: Settings, detectors: Iterable[str], run_id: str) -> list[DayOutcome]:
    """Each day that the run `run_id` has published or tried in vain, by detector, the oldest day first.

    A day that a later run has dealt with is not told.
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


class _Judged(BaseModel):
    """Of a record of the gate, which lies beside its page, the verdict alone."""

    verdict: Verdict


def sealed(settings: Settings, source: str, run_id: str) -> list[DayOutcome]:
    """Each day of `source` that the run `run_id` has sealed or tried in vain, in any of its tries, the oldest first.

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
            found[day] = DayOutcome(source, day, False, f"refused: {_verdict(settings, version)}", version.report)
    return [found[day] for day in sorted(found)]


def _verdict(settings: Settings, version: DayVersion) -> str:
    """The verdict on a version in words: the rules that broke, with what was observed and what is allowed."""
    try:
        path = (settings.state / str(version.report)).with_suffix(".json")
        verdict = _Judged.model_validate_json(path.read_bytes()).verdict
    except (OSError, ValidationError):
        return "its verdict cannot be read any more; seal the day again"
    return verdict.model_copy(update={"report": None}).text
