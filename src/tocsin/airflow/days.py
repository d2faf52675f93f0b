"""The days of a run of a backfill: which it is to be about, and what became of them. Imports nothing of Airflow."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from tocsin.backfill.ledger import Backfills
from tocsin.settings import Settings


@dataclass(frozen=True)
class DayOutcome:
    """One day of one detector in one run.

    Attributes:
        detector, day: which.
        published: whether its findings count now.
        said: one sentence without a full stop: what became of it and why.
        report: the verdict on its findings, relative to the state folder; None when there is none.
    """

    detector: str
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
    return sorted(found, key=lambda one: (one.detector, one.day))
