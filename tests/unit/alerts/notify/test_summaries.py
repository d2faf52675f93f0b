"""Summaries of what was found too late to notify at once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine.interfaces import DBAPICursor

from tests.rig.mail_server import MailServer, read_body
from tests.unit.alerts.notifier_scene import OWNER, PAGED, Scene, killed_at
from tests.unit.alerts.scene import MINUTE, NOON, SECOND
from tocsin.alerts.notify import notifier, outbox
from tocsin.alerts.notify.mail import compose
from tocsin.alerts.store import queries
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter


def test_late_findings_leave_in_one_summary_an_hour(scene: Scene) -> None:
    scene.now = NOON + timedelta(hours=3)
    for user in ("mallory", "trent", "eve"):
        scene.index(120, user=user)
    scene.send()
    assert scene.subjects == []
    scene.now += MINUTE
    scene.send()
    scene.send()
    (mail,) = scene.server.mails
    assert (mail["To"], mail["Subject"]) == (OWNER, "[summary] 3 alerts of failed_logins")
    body = read_body(mail)
    assert all(f"{user}: 120 (limit 100)" in body for user in ("mallory", "trent", "eve"))
    scene.index(120, user="oscar")
    scene.now += 58 * MINUTE
    scene.send()
    assert len(scene.server.mails) == 1
    scene.now += 3 * MINUTE
    scene.send()
    assert scene.server.mails[-1]["Subject"] == "[summary] 1 alert of failed_logins"


def test_what_continues_is_one_line_for_its_entity_in_a_daily_summary_and_leaves_no_alert_open(scene: Scene) -> None:
    for hour in range(27):
        start = NOON + timedelta(hours=hour)
        scene.now = start + 12 * SECOND
        scene.index(60, at=start)
        scene.close_windows(start + MINUTE)
        scene.send()
        scene.notifier.tidy()
        if hour == 24:
            assert [subject.partition(" ")[0] for _, subject in scene.subjects] == ["mallory:"]
    assert [subject for _, subject in scene.subjects[1:]] == ["[summary] 1 alert of failed_logins"]
    assert sorted(Counter(sent.state for sent in scene.notifications).items()) == [
        ("replaced", 24), ("sent", 2), ("waiting", 1)
    ]  # fmt: skip
    assert [alert.state for alert in queries.list_alerts(scene.database, AlertFilter())].count("open") == 1


def test_a_clock_that_was_ahead_for_a_while_keeps_no_mail_until_it_is_there_again(scene: Scene) -> None:
    scene.now = NOON + timedelta(hours=3)
    scene.index(120, user="trent")
    scene.now += MINUTE
    scene.send()
    scene.index(120, user="eve")
    scene.now = NOON + 9 * SECOND
    scene.send()
    assert scene.subjects == [(OWNER, "[summary] 1 alert of failed_logins")] * 2
    scene.now = NOON + 10 * MINUTE
    scene.index(120, user="oscar")
    scene.now = NOON + 10 * SECOND
    scene.send()
    assert {to for to, subject in scene.subjects if subject.startswith("[URGENT] oscar")} == {OWNER, PAGED}


def test_a_summary_of_many_alerts_reads_only_what_it_shows(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.now = NOON + timedelta(hours=3)
    for number in range(compose.SUMMARY_LINES + 7):
        scene.index(60, user=f"user{number}")
    scene.now += MINUTE
    read: list[int] = []

    def counted(connection: Connection, alert: int) -> AlertDetails | None:
        read.append(alert)
        return queries.alert_details(connection, alert)

    monkeypatch.setattr(notifier, "alert_details", counted)
    scene.send()
    (mail,) = scene.server.mails
    assert mail["Subject"] == f"[summary] {compose.SUMMARY_LINES + 7} alerts of failed_logins"
    assert len(read) == compose.SUMMARY_LINES
    body = read_body(mail)
    assert "and 7 more" in body


def test_a_long_summary_leaves_whole_and_no_step_holds_the_lock_for_all_of_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "CHUNK", 5)
    monkeypatch.setattr(notifier, "_PAUSE_SECONDS", 0.0)
    written: list[int] = []

    def count(_: Connection, cursor: DBAPICursor, statement: str, *__: object) -> None:
        if statement.startswith("UPDATE notifications"):
            written.append(cursor.rowcount if cursor.rowcount >= 0 else 0)

    scene.now = NOON + timedelta(hours=3)
    for number in range(12):
        scene.index(60, user=f"user{number}")
    scene.now += MINUTE
    event.listen(scene.database.engine, "after_cursor_execute", count)
    scene.send()
    assert [subject for _, subject in scene.subjects] == ["[summary] 12 alerts of failed_logins"]
    assert {n.state for n in scene.notifications} == {"sent"}
    assert len({n.message_id for n in scene.notifications}) == 1
    assert max(written) <= 5


def test_a_look_for_what_is_due_waits_for_no_other_writer(sqlite: Database, server: MailServer, tmp_path: Path) -> None:
    scene = Scene(sqlite, server, tmp_path)
    scene.now = NOON + timedelta(hours=3)
    scene.index(60)
    with sqlite.write():
        scene.send()
    assert scene.subjects == []


def test_a_summary_that_could_not_leave_stays_the_same_mail(scene: Scene) -> None:
    scene.now = NOON + timedelta(hours=3)
    scene.index(120)
    scene.now += MINUTE

    with killed_at(outbox, "mark_sent"):
        scene.send()
    scene.index(120, user="trent")
    scene.notifier = scene.new_notifier()
    scene.send()
    first, again = scene.server.mails
    assert (first["Message-ID"], first["Subject"]) == (again["Message-ID"], again["Subject"])
