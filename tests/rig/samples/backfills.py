"""Detectors, findings and ledger entries that tests put together."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select

from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import backfilled_days
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.finding import Finding, Origin, finding_id
from tocsin.history.backfill.backfill_ledger import Attempt, End, Made, Published
from tocsin.history.places import begin

DAY = date(2026, 11, 19)
NEXT = date(2026, 11, 20)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SPEC = read_spec(Path(__file__).parents[3] / "detectors" / "failed_logins.py")


def published(made: Made | None, run: str = "20261121T120000000Z") -> Published:
    assert made is not None
    return Published(run=run, run_id="night", made=made, at=NOON, severity="pass")


def attempt(end: End, made: Made | None) -> Attempt:
    return Attempt(end=end, why="so it is", run_id="night", made=made, at=NOON)


def finding(user: str, day: date = DAY, second: int = 0, *, score: float = 60, level: str = "email") -> Finding:
    start = begin(day) + timedelta(seconds=second)
    stop = start + timedelta(seconds=10)
    entity = {"user_id": user}
    return Finding(
        finding_id=finding_id("failed_logins", entity, start, stop),
        detector="failed_logins",
        version=SPEC.version,
        entity=entity,
        window_start=start,
        window_end=stop,
        level=level,
        score=score,
        limit=50 if level == "email" else 100,
        origin=Origin.BACKFILL,
        run_id="night",
    )


def list_backfilled(database: Database, detector: str) -> Sequence[Row[Any]]:
    """The days of a detector whose backfill is in the DB, the newest first."""
    if not database.is_ready():
        return []
    own = select(backfilled_days).filter_by(detector=detector).order_by(backfilled_days.c.day.desc())
    with database.read() as connection:
        return connection.execute(own).all()
