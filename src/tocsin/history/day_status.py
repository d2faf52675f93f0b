"""Judge the state of each day of a source, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cache

import structlog
from pydantic import BaseModel

from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import LandingLedger, read_ledger
from tocsin.history.places import Places, begin, end
from tocsin.history.seal_planning import SealFacts, SealPlan, missing, oldest_kept, plan
from tocsin.quality.suites.suite_catalog import rules_digest
from tocsin.quality.verdict import judge_or_accept

_MISSING = "nothing has landed for it; unless the day was empty, import it: tocsin history import --source {} FILE"

log = structlog.get_logger()


class DayState(StrEnum):
    """The state of a day."""

    PUBLISHED = "published"
    """A version of it counts, and nothing has landed since."""
    OUTDATED = "outdated"
    """A version of it counts, but more has landed, or it was sealed before the day was over."""
    REFUSED = "refused"
    """The gate has stopped its latest version, and no other counts."""
    READY = "ready"
    """It is to be sealed."""
    WAITING = "waiting"
    """It is not over, or not read to its end."""
    FAILED = "failed"
    """It could not be sealed, and no version of it counts; the next seal tries again."""
    MISSING = "missing"
    """Nothing has landed for it, though there are days before and behind it."""
    WITHDRAWN = "withdrawn"
    """All that was imported for it was taken back, and nothing else has landed."""
    TOO_OLD = "too old"
    """Events have landed for it, but it is further back than history is kept."""


class DayStatus(BaseModel, frozen=True):
    """One UTC day of a source.

    Attributes:
        source, day: which one.
        state: how it stands.
        version: that counts; null when none does.
        rows, bytes: of that version.
        landed: events that came for the day, duplicates included.
        versions: how many there are, refused ones included.
        severity: of the verdict on its latest version; null when there is none.
        report: of that verdict, relative to the state folder.
        published_at: when the version that counts was published; null when none does.
        refused: whether the gate refuses the latest version; an earlier one may count.
        note: what it waits for, why it could not be sealed or was refused, who accepted it; empty when there is nothing
            to say.
    """

    source: str
    day: date
    state: DayState
    version: str | None = None
    rows: int | None = None
    bytes: int | None = None
    landed: int = 0
    versions: int = 0
    severity: str | None = None
    report: str | None = None
    published_at: datetime | None = None
    refused: bool = False
    note: str = ""


def known(settings: Settings, source: Source, table: DayTable) -> SealFacts:
    """Read what is known of the days of `source` now.

    BrokenLedger if an entry of the ledger cannot be read, TransientError if the catalogue does not answer; a retry
    helps.
    """
    return SealFacts(
        ledger=read_ledger(Places.of(settings, source.name)),
        versions=table.rows.versions(),
        published=table.published(),
        now=datetime.now(UTC),
        grace=settings.history.grace,
        kept=timedelta(days=source.history_days),
        unsealed=table.rows.unsealed(),
        rules=day_rules(settings, source.name),
    )


def day_rules(settings: Settings, source: str) -> str:
    """Return the digest of the rules by which the gate judges days of `source`."""
    return rules_digest(settings.project, source, "rows", "day")


def kept_from(settings: Settings, source: Source, now: datetime | None = None) -> date:
    """Find the first day of which anything that belongs to the history of `source` is kept at the moment `now`.

    It is `history_days` back, or the oldest day that is published: what lies beside history goes with it.
    TransientError if the catalogue does not answer; a retry helps.
    """
    with DayTable(settings, source) as table:
        published = table.published()
    edge = oldest_kept(now or datetime.now(UTC), timedelta(days=source.history_days)).date()
    return min([edge, *published])


def published_days(settings: Settings, source: Source) -> dict[date, DayVersion]:
    """The published versions of all days that were over when they were sealed, the oldest first.

    One that cannot be read is logged and left out. TransientError if the catalogue does not answer; a retry helps.
    """
    with DayTable(settings, source) as table:
        published, versions = table.published(), table.rows.versions()
    found = {
        day: version for day, known in versions.items() for version in known if version.version == published.get(day)
    }
    for day in published.keys() - found.keys():
        log.error("published day unreadable, seal it again", source=source.name, day=str(day))
    return {day: version for day, version in found.items() if version.whole}


def why_not(settings: Settings, source: Source) -> Callable[[date], str]:
    """Explain why a day is not among `published_days`, and which command helps. Reads history at the first call.

    Errors as for `known`.
    """

    @cache
    def by_day() -> dict[date, DayStatus]:
        return {one.day: one for one in list_days(settings, source)}

    return lambda day: f"is not published: {_obstacle(source, day, by_day().get(day))}"


def list_days(settings: Settings, source: Source) -> list[DayStatus]:
    """List the state of every day of `source`, the oldest first; errors as for `known`."""
    with DayTable(settings, source) as table:
        return statuses(source.name, known(settings, source, table))


def _refusal(source: str, day: date, version: DayVersion) -> str:
    """Say which rules refused the latest version of a day, and what judges the day again, or publishes it as it is."""
    again, accept = judge_or_accept(source, day)
    return f"{version.summary} When the rule or the data is mended: {again}. To publish it as it is: {accept}"


def _obstacle(source: Source, day: date, status: DayStatus | None) -> str:
    name, now = source.name, datetime.now(UTC)
    seal = f"`tocsin history seal --source {name}`"
    if now < begin(day):
        return "it has not begun yet"
    if now < end(day):
        part = ", and only a part of it is sealed" if status is not None and status.version else ""
        return f"it is not over yet{part}; then {seal} publishes it"
    state = DayState.MISSING if status is None else status.state
    if state is DayState.READY or (
        status is not None and status.version
    ):  # a version that counts is one of half the day
        return f"it has not been sealed since it was over; run {seal}"
    reasons = {
        DayState.WAITING: f"{status.note if status else ''}; run {seal}",
        DayState.FAILED: f"{status.note if status else ''}; {seal} retries",
        DayState.REFUSED: f"the quality gate refused it; {status.note if status else ''}",
        DayState.TOO_OLD: f"history is kept for {source.history_days} days (history_days)",
    }
    load = f"`tocsin history import --source {name} FILE`"
    nothing = f"nothing has landed for it; run {seal} if Kafka still has it, else {load} before"
    return reasons.get(state, nothing)


def statuses(source: str, facts: SealFacts) -> list[DayStatus]:
    """Every day of which there is anything, and those that are missing between them, the oldest first."""
    planned = plan(facts)
    days = {
        *facts.ledger.by_day,
        *facts.ledger.withdrawn,
        *facts.versions,
        *facts.published,
        *facts.unsealed,
        *planned.ready,
    }
    gaps = {day: DayStatus(source=source, day=day, state=DayState.MISSING, note=_MISSING.format(source))
            for day in missing(facts, days)}  # fmt: skip
    return [gaps.get(day) or _status(source, day, facts, planned)
            for day in sorted(days | gaps.keys())]  # fmt: skip


def _status(source: str, day: date, facts: SealFacts, planned: SealPlan) -> DayStatus:
    versions = facts.versions.get(day, ())
    current = next((one for one in versions if one.version == facts.published.get(day)), None)
    latest = versions[-1] if versions else None
    state = _state(day, facts, planned, current)
    accepted = current.accepted.text if current and current.accepted else ""
    note = "; ".join(filter(None, (_reason(day, facts, planned), accepted, *_withdrawn(day, facts.ledger))))
    refused = latest if latest and latest.refused and state not in (DayState.WITHDRAWN, DayState.TOO_OLD) else None
    return DayStatus(
        source=source,
        day=day,
        state=state,
        version=facts.published.get(day),
        rows=current.facts.rows if current else None,
        bytes=current.bytes if current else None,
        landed=sum(file.total for file in facts.ledger.files(day)),
        versions=len(versions),
        severity=latest.severity if latest else None,
        report=latest.report if latest else None,
        published_at=current.published_at if current else None,
        refused=refused is not None,
        note=_refusal(source, day, refused) if refused and state is not DayState.FAILED else note,
    )


def _reason(day: date, facts: SealFacts, planned: SealPlan) -> str:
    return facts.unsealed[day].text if day in facts.unsealed else planned.waiting.get(day, "")


def _withdrawn(day: date, ledger: LandingLedger) -> Iterator[str]:
    names = {entry.run: entry.imported.name for entry in ledger.entries if entry.imported is not None}
    for run, at in ledger.withdrawn.get(day, {}).items():
        yield f"{names[run]} ({run}) was withdrawn at {at:%Y-%m-%d %H:%M} UTC"


def _state(day: date, facts: SealFacts, planned: SealPlan, current: DayVersion | None) -> DayState:
    if day in planned.too_old:
        return DayState.TOO_OLD
    is_open = day in planned.ready or day in planned.waiting
    if day in facts.ledger.withdrawn and not is_open and current is None:
        return DayState.WITHDRAWN
    if current is not None:
        return DayState.OUTDATED if is_open else DayState.PUBLISHED
    if day in facts.unsealed:
        return DayState.FAILED
    latest = facts.versions.get(day, ())[-1:]
    if latest and latest[0].refused and not is_open:
        return DayState.REFUSED
    return DayState.READY if day in planned.ready else DayState.WAITING
