"""Describe each day of a detector, and what it would take to run it, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cache

from pydantic import BaseModel

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Attempt, BackfillLedger, Backfills
from tocsin.history.backfill.backfill_planning import BackfillPlan, Sealed, inputs, plan
from tocsin.history.day_status import published_days, why_not
from tocsin.quality.suites.suite_catalog import rules_digest
from tocsin.spark.tables.dated_versions import DatedVersions, anchor, days_of

# Measured with `bench backfill` on 6, 60 and 300 million rows of 60 days, rounded up.
CPU_SECONDS_PER_MILLION = 0.2
"""Of a selective count on history, for a detector that has not been run yet."""

CPU_SECONDS_PER_DAY = 0.5
"""To judge its findings and to publish them."""

START_CPU_SECONDS = 20.0
"""Of Spark, once for a run."""


class BackfillState(StrEnum):
    """The state of a day."""

    DONE = "done"
    """Its findings are published, and nothing that they were made of has changed."""
    DUE = "due"
    """It is to be run."""
    HELD = "held"
    """A gate has stopped its findings, and nothing has changed since."""
    BLOCKED = "blocked"
    """It cannot be computed whole now."""


class BackfillDay(BaseModel, frozen=True):
    """One UTC day of a detector.

    Attributes:
        detector, day: which one.
        state: how it stands.
        why: why it is due, held or blocked; empty when it is done.
        events: that its source holds for the day; null when it is not published.
        findings, version, published_at: what counts for the day; null when nothing does.
        severity: of the latest verdict on its findings; null when there is none.
        report: of that verdict, relative to the state folder.
        expected_cpu_seconds: that a run would take, without the start of Spark.
    """

    detector: str
    day: date
    state: BackfillState
    why: str = ""
    events: int | None = None
    findings: int | None = None
    version: str | None = None
    published_at: datetime | None = None
    severity: str | None = None
    report: str | None = None
    expected_cpu_seconds: float = 0.0


def declared(
    settings: Settings, names: Iterable[str], catalog: Catalog | None = None
) -> tuple[Source, list[DetectorSpec]]:
    """Read the detectors `names` in the versions that are in force, and the source that all of them read.

    ConfigError if one is not declared or cannot be read, or they read several sources. A retry does not help.
    """
    catalog = catalog or read_catalog(settings.project)
    specs = [catalog.detector(name) for name in dict.fromkeys(names)]
    sources = {source.name: source for source in (catalog.history_source(spec) for spec in specs)}
    if len(sources) != 1:
        raise ConfigError.one("backfill", f"must be of detectors of one source, not of {', '.join(sorted(sources))}")
    return sources.popitem()[1], specs


def list_days(
    settings: Settings,
    names: Iterable[str],
    first: date | None = None,
    last: date | None = None,
    catalog: Catalog | None = None,
) -> list[BackfillDay]:
    """List the backfill state of the detectors' days: those in history, and requested ones that it lacks.

    `catalog` is what is in force; None to read it. ConfigError as for `declared`, or if `first` is after `last`.
    TransientError if the catalogue of history does not answer; a retry helps.
    """
    source, specs = declared(settings, names, catalog)
    sealed = published_days(settings, source)
    begin = first or min([*sealed, last or datetime.now(UTC).date()])
    end = last or max([*sealed, begin])
    if begin > end:
        raise ConfigError.one("--from", f"{begin} is after {end}")
    days = [day for day in sealed if begin <= day <= end]
    if first:
        days = [begin + timedelta(days=number) for number in range((end - begin).days + 1)]
    elif last and end not in sealed:
        days.append(end)
    readable = Sealed(
        versions={day: one.version for day, one in sealed.items()},
        rows={day: one.facts.rows for day, one in sealed.items()},
        why_not=why_not(settings, source),
        no_table=without_table(settings, catalog),
        tables=table_queries(settings, catalog),
        rules=finding_rules(settings, source.name),
    )
    return [one for spec in specs for one in statuses(Backfills(settings, spec.name).read(), spec, readable, days)]


def without_table(settings: Settings, catalog: Catalog | None = None) -> Callable[[str, date], str]:
    """Explain why a table of history can have no rows for a day: there is no day that they could be made of.

    So it is with the first days of a history. Of other tables it says nothing. Reads only when it is asked:
    TransientError if the catalogue of history, or the versions of a table, cannot be read; a retry helps.
    """
    in_force = cache(lambda: catalog or read_catalog(settings.project))
    published = cache(lambda source: published_days(settings, in_force().source(source)).keys())
    first = cache(
        lambda name: min((one.day for one in DatedVersions(settings, in_force().table(name)).read()), default=date.max)
    )
    refused = cache(
        lambda name: {one.day: one.reason for one in DatedVersions(settings, in_force().table(name)).refused()}
    )

    def why(name: str, day: date) -> str:
        spec = in_force().table(name)
        if spec.history is None or day >= first(name):
            return ""
        if spec.trains:
            model = in_force().detector(spec.trains).model
            if model is not None and model.before == "refuse":
                train = f"has no model yet (tocsin model train {spec.trains})"
                what = train if first(name) == date.max else "comes before the first model"
                return f'{what}, and before="refuse" is declared'
            if refusal := refused(name).get(anchor(spec, day), ""):
                return f"has no model, since the gate refused that of {anchor(spec, day)}: {refusal}"
        if not published(spec.history).isdisjoint(days_of(spec, day)):
            return ""
        until = days_of(spec, day)[-1]
        what = f"comes before table '{name}': none of the {spec.days} days of {spec.history} until {until} is published"
        return f"{what}; seal these days first: tocsin history seal --source {spec.history}"

    return why


def table_queries(settings: Settings, catalog: Catalog | None = None) -> Callable[[str], str]:
    """Identify the query of a table that is made of history, by its name; empty for others. Reads when it is asked."""
    in_force = cache(lambda: catalog or read_catalog(settings.project))

    def made_by(name: str) -> str:
        spec = in_force().table(name)
        return "" if spec.history is None else spec.made_by

    return made_by


def finding_rules(settings: Settings, source: str) -> str:
    """Return the digest of the rules by which findings of detectors of `source` are judged."""
    return rules_digest(settings.project, source, "findings")


def statuses(ledger: BackfillLedger, spec: DetectorSpec, sealed: Sealed, days: Iterable[date]) -> list[BackfillDay]:
    """List the state of each of `days`, the oldest first."""
    looked_at = sorted(days)
    planned = plan(ledger, spec, sealed, looked_at)
    cost = _cost(ledger)
    found = []
    for day in looked_at:
        published, attempt = ledger.published.get(day), ledger.attempts.get(day)
        state, why = _state(day, planned, attempt)
        latest = attempt or published
        found.append(
            BackfillDay(
                detector=spec.name,
                day=day,
                state=state,
                why=why,
                events=sealed.rows.get(day),
                findings=published.findings if published else None,
                version=published.made.version if published else None,
                published_at=published.at if published else None,
                severity="critical" if attempt and attempt.report else published.severity if published else None,
                report=latest.report if latest else None,
                expected_cpu_seconds=round(
                    CPU_SECONDS_PER_DAY + cost * sum(sealed.rows.get(one, 0) for one in inputs(day, spec)), 3
                ),
            )
        )
    return found


def _state(day: date, planned: BackfillPlan, attempt: Attempt | None) -> tuple[BackfillState, str]:
    if day in planned.blocked:
        return BackfillState.BLOCKED, planned.blocked[day]
    if day in planned.days:
        return BackfillState.DUE, planned.days[day]
    if day in planned.held and attempt is not None:
        return BackfillState.HELD, attempt.why
    return BackfillState.DONE, ""


def _cost(ledger: BackfillLedger) -> float:
    """CPU-seconds for each event, of the published days; else those measured for a simple detector."""
    rows = sum(one.rows for one in ledger.published.values())
    spent = sum(one.cpu_seconds for one in ledger.published.values())
    return spent / rows if rows and spent else CPU_SECONDS_PER_MILLION / 1e6
