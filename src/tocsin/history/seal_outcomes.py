"""Tell people what became of the days of a source: in the mail of a run, in status, and on the page of all days."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from tocsin.declare.settings import Settings
from tocsin.history.day_rows import DayRows
from tocsin.history.day_versions import DayVersion
from tocsin.quality.verdict import judge_or_accept


@dataclass(frozen=True)
class DayOutcome:
    """The outcome of one UTC day of one source or detector in a run.

    Attributes:
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


def seal_outcomes(settings: Settings, source: str, run_id: str) -> list[DayOutcome]:
    """List each day of `source` that any try of the run `run_id` sealed or failed to seal, the oldest first.

    TransientError or OSError if the catalogue of history cannot be read; a retry helps.
    """
    rows, found = DayRows(settings, source), dict[date, DayOutcome]()
    for day, unsealed in rows.unsealed().items():
        if unsealed.run_id == run_id:
            found[day] = DayOutcome(source, day, False, f"failed: {unsealed.reason}", None)
    for day, version in [(day, versions[-1]) for day, versions in rows.versions().items()]:
        if version.run_id != run_id:
            continue
        if version.published_at is not None:
            count = f"{version.facts.rows} event{'s' * (version.facts.rows != 1)}"
            words = f"published, {count}, verdict {version.severity}"
            found[day] = DayOutcome(source, day, True, words, version.report)
        elif version.refused:
            commands = judge_or_accept(source, day)
            found[day] = DayOutcome(source, day, False, f"refused: {version.summary}", version.report, commands)
    return [found[day] for day in sorted(found)]


def refusal(source: str, days: Mapping[date, DayVersion]) -> str:
    """Say in a line which `days` of `source` are refused, at least one, and what to type."""
    newest = max(days)
    which = str(newest) if len(days) == 1 else f"{len(days)} days from {min(days)} to {newest}"
    accept = judge_or_accept(source, newest)[1]
    why = f"Why: tocsin history list --source {source}. To publish a day as it is: {accept}"
    return f"{source}: the quality gate refuses {which}. {why}"
