import sqlite3
from datetime import date, timedelta
from functools import partial

import pytest
from sqlalchemy import func, insert, select

from tests.rig.samples.backfills import list_backfilled
from tests.unit.alerts.backfilled_days import apply, published, stored
from tests.unit.alerts.scene import NOON, RULES, SECOND, finding
from tocsin.alerts import alert_lifecycle
from tocsin.alerts.finding_feed import FindingRecord, Rejected, put_aside
from tocsin.alerts.notify import outbox
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter, FindingFilter
from tocsin.alerts.store.schema import alerts, findings, invalid_findings, job_usage, notifications

OLD, LATER = NOON, NOON + timedelta(days=400)
BEFORE = NOON + timedelta(days=200)


def fill(database: Database) -> None:
    """The same twice: long ago, and just now; and one alert of long ago about which a mail still waits."""
    for now in (OLD, LATER):
        batch = [finding(120, user=f"user-{n}", at=now + n * 10 * SECOND) for n in range(30)]
        alone = [finding(120, user=f"user-{n}", at=now, detector="undeclared") for n in range(30)]
        aside = FindingRecord(topic="findings", partition=0, offset=now.toordinal(), appended_at=now, value=b"x")
        with database.write() as connection:
            record(connection, [*batch, *alone], RULES, now)
            put_aside(connection, [Rejected(record=aside, reasons=("no finding",))], now)
            connection.execute(insert(job_usage).values(job="indexer", day=now.date(), **dict.fromkeys(FIGURES, 0)))
    with database.write() as connection:
        ids = list(connection.execute(select(notifications.c.id).where(notifications.c.alert_id != 1)).scalars())
        outbox.mark_sent(connection, ids, OLD)
        at = OLD + timedelta(days=1)
        alert_lifecycle.resolve(connection, alert_lifecycle.find_over(connection, at), at)


FIGURES = ("seconds", "cpu_seconds", "rss_bytes", "rows_in", "rows_out", "restarts")


def counts(database: Database) -> dict[str, int]:
    with database.read() as connection:
        tables = (findings, alerts, notifications, job_usage, invalid_findings)
        return {one.name: connection.execute(select(func.count()).select_from(one)).scalar() or 0 for one in tables}


def test_what_is_old_goes_in_chunks_and_an_open_alert_stays(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    monkeypatch.setattr(alert_lifecycle, "CHUNK", 7)
    assert counts(database) == {
        "findings": 120, "alerts": 60, "notifications": 120, "job_usage": 2, "invalid_findings": 2,
    }  # fmt: skip
    removed = [-1]
    while removed[-1]:
        with database.write() as connection:
            removed.append(alert_lifecycle.prune(connection, BEFORE))
    assert len(removed) > 8
    assert max(removed) <= 4 * 7
    assert counts(database) == {
        "findings": 61, "alerts": 31, "notifications": 62, "job_usage": 1, "invalid_findings": 1,
    }  # fmt: skip
    left = queries.list_findings(database, FindingFilter(limit=200))
    assert [one.finding.entity["user_id"] for one in left if one.finding.moment < BEFORE] == ["user-0"]
    assert len(queries.list_alerts(database, AlertFilter(limit=200))) == 31


def test_a_chunk_costs_the_same_however_much_is_in_the_outbox(sqlite: Database) -> None:
    """Each finding that goes is looked for among the notifications, while the indexer waits for the lock."""
    costs: list[int] = []
    for users in (100, 400):
        with sqlite.write() as connection:
            batch = [finding(120, user=f"{users}-{n}", at=LATER) for n in range(users)]
            record(connection, [finding(120, detector="undeclared", user=f"{users}"), *batch], RULES, LATER)
            steps: list[int] = []
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            raw.set_progress_handler(partial(steps.append, 1), 10)
            assert alert_lifecycle.prune(connection, BEFORE) == 1
            raw.set_progress_handler(None, 0)
            costs.append(len(steps))
    assert costs[1] <= costs[0] + 5


def test_superseded_findings_go_too_and_their_day_is_not_stored_again(database: Database) -> None:
    with database.write() as connection:
        record(connection, [finding(60)], Rules(facts={}), NOON)
    apply(database, [], published(), rules=Rules(facts={}))
    assert stored(database).superseded_by
    with database.write() as connection:
        assert alert_lifecycle.prune(connection, BEFORE) == 1
        assert alert_lifecycle.prune(connection, BEFORE) == 0
    assert [one.day for one in list_backfilled(database, "failed_logins")] == [date(2026, 11, 21)]
