"""Days of findings as backfills publish them, and the alerts DB after them."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import TypeVar, cast

from sqlalchemy import Connection

from tests.unit.alerts.scene import MINUTE, NOON, RULES
from tocsin.alerts.backfilled import published_day
from tocsin.alerts.backfilled.published_day import StoredDays
from tocsin.alerts.finding_merging import StoredFinding
from tocsin.alerts.recording import Recorded, Rules
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills, Made, Published

T = TypeVar("T")
DAY = NOON.date()
MORNING = NOON + timedelta(hours=16.5)
"""The next day at 04:30, when the backfills of `DAY` run."""


def published(run: str = "r1", version: str = "v1", at: datetime = MORNING) -> Published:
    made = Made(version=version, inputs={DAY: "s1"})
    return Published(run=run, run_id=f"id-{run}", made=made, at=at, findings=0, sha256="", severity="pass")


def apply(
    database: Database, found: Sequence[Finding], one: Published, *, rules: Rules = RULES, day: date = DAY
) -> Recorded:
    ready = published_day.read_day("failed_logins", day, one, list(found))
    return drain(days_of(database, rules, one.at + MINUTE).apply(ready))


def days_of(database: Database, rules: Rules = RULES, now: datetime = MORNING + MINUTE) -> StoredDays:
    @contextmanager
    def write() -> Iterator[tuple[Connection, Rules]]:
        with database.write() as connection:
            yield connection, rules

    return StoredDays(database.read, write, lambda: now)


def drain(steps: Generator[None, None, T]) -> T:
    """Go all steps; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


def stored(database: Database, user: str = "mallory", day: date = DAY) -> StoredFinding:
    (one,) = [
        one
        for one in queries.findings_of_day(database, "failed_logins", day)
        if one.finding.entity == {"user_id": user}
    ]
    return one


def publish(
    settings: Settings, found: Sequence[Finding], day: date = DAY, detector: str = "failed_logins"
) -> Published:
    ledger = Backfills(settings, detector)
    return ledger.publish(day, found, published(ledger.next_run(day)))
