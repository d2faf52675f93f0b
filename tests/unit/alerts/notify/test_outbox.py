"""The outbox when others write at the same moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, select

from tests.unit.alerts.scene import MINUTE, NOON, RULES, SECOND, burst
from tocsin.alerts.notify import outbox
from tocsin.alerts.recording import record
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import notifications

ALONE = replace(RULES, paged=())


def test_an_email_that_an_urgent_one_replaced_since_it_was_read_does_not_leave(database: Database) -> None:
    with database.write() as connection:
        record(connection, burst(60), ALONE, NOON + 8 * SECOND)
        (window,) = outbox.waiting_windows(connection)
        emails = outbox.emails_of(connection, {window: ""})
        record(connection, burst(120), ALONE, NOON + 9 * SECOND)
        outbox.release(connection, emails)
        outbox.bind(connection, list(emails), "<m@x>")
        states = connection.execute(select(notifications.c.kind, notifications.c.state)).all()
    assert sorted(map(tuple, states)) == [("email", "replaced"), ("urgent", "pending")]


@pytest.mark.parametrize(("pause", "due"), [(10 * MINUTE, False), (3 * 60 * MINUTE, True)])
def test_a_pause_that_is_longer_than_any_was_set_by_a_clock_that_was_ahead(
    database: Database, pause: timedelta, due: bool
) -> None:
    with database.write() as connection:
        bind(connection, NOON + 8 * SECOND)
        (found,) = outbox.list_due(connection, NOON + 8 * SECOND, SECOND)
        mail = outbox.bound_mail(connection, found.recipient, found.message_id)
        assert mail is not None
        outbox.postpone(connection, mail.ids, "try again", NOON + pause)
        again = outbox.list_due(connection, NOON + 9 * SECOND, SECOND)
    assert bool(again) == due


def bind(connection: Connection, now: datetime) -> None:
    """Make a message of all that has gathered for the owner."""
    record(connection, burst(120), ALONE, now)
    (found,) = outbox.list_due(connection, now, SECOND)
    assert found.group is not None
    (row,) = outbox.rows_of(connection, found.group)
    outbox.bind(connection, [row.id], row.message_id)
