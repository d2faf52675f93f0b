"""Ledger entries and versions that tests put together."""

from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from tocsin.declare.settings import Settings
from tocsin.history.day_rows import DayRows
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import Entry, ImportedFile, LandedFile, LandingLedger, OffsetSpan
from tocsin.quality.day_facts import DayFacts, Hole
from tocsin.quality.verdict import Check, CheckStage, Severity, Verdict

DAY = date(2026, 11, 19)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def entry(run: str, *days: date, tick: datetime | None = NOON, at: int = 0, holes: Iterable[Hole] = ()) -> Entry:
    """A run of landing that brought one event for each of `days`, from offset `at` of partition 0 on."""
    end = at + len(days)
    span = OffsetSpan(from_offset=at, to_offset=end, events=len(days), newest_tick=tick, holes=tuple(holes))
    return Entry(
        run=run,
        began=datetime(2026, 11, 18, 12, tzinfo=UTC),
        ended=NOON,
        topic="events.logins",
        partitions={0: span},
        columns={"user_id": "string"},
        files=tuple(landed(run, day) for day in days),
    )


def imported(run: str, *days: date) -> Entry:
    file = ImportedFile(name="a.jsonl", sha256="00", rows=len(days), refused=0)
    files = tuple(landed(run, day, partition=-1) for day in days)
    return Entry(run=run, began=NOON, ended=NOON, columns={"user_id": "string"}, files=files, imported=file)


def landed(run: str, day: date, *, partition: int = 0) -> LandedFile:
    return LandedFile(
        path=Path(f"landing/logins/dt={day}/run={run}/part-00000.parquet"),
        day=day,
        rows={partition: 1},
        late=0,
        newest_event=NOON,
        newest_append=NOON,
        bytes=100,
        sha256="00",
    )


def ledger(*entries: Entry) -> LandingLedger:
    return LandingLedger("logins", entries)


def facts_of(version: str, rows: int, landed: int | None = None) -> DayFacts:
    """Of DAY; what `landed` has beyond `rows` were duplicates."""
    landed = rows if landed is None else landed
    nothing = dict.fromkeys(("newest_event", "newest_append", "read_through", "previous_rows"))
    return DayFacts(
        source="logins",
        day=DAY,
        version=version,
        rows=rows,
        landed=landed,
        duplicates=landed - rows,
        imported=0,
        late=0,
        partitions={},
        **nothing,
    )


def version(
    name: str,
    *runs: str,
    published: datetime | None = NOON,
    severity: str | None = "pass",
) -> DayVersion:
    return DayVersion(
        version=name,
        sealed_at=NOON,
        code="0",
        key="user_id",
        buckets=32,
        columns={},
        runs=frozenset(runs),
        base=None,
        facts=facts_of(name, 1),
        files=(),
        severity=severity,
        published_at=published,
    )


def day_rows(settings: Settings, source: str = "logins") -> DayRows:
    rows = DayRows(settings, source)
    rows.prepare()
    return rows


def refuse(settings: Settings, *days: date, summary: str = "rows is 0") -> None:
    """A version of each of `days` of `logins` that the gate refuses."""
    for day in days:
        made = version(f"v{day.day}", published=None, severity="critical").model_copy(update={"summary": summary})
        day_rows(settings).write(day, made)


def judged(severity: str = "pass", day: date = DAY, **own: Any) -> Verdict:
    """A verdict on `day` by one rule, which has that severity if it has not passed."""
    is_passed = severity == "pass"
    kind = Severity.CRITICAL if is_passed else Severity(severity)
    rule = Check(name="a", stage=CheckStage.DAY, severity=kind, passed=is_passed, observed="1", limit="0")
    known = {"subject": "logins", "run_id": "v1", "judged_at": datetime.now(UTC), "checks": (rule,)}
    return Verdict(day=day, **known | own)
