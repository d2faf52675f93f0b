"""Which alerts leave in one message: those that come at once, and those that were found too late."""

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine.interfaces import DBAPICursor

from tests.rig.mail_server import MailServer, read_body
from tests.unit.alerts.notifier_scene import OWNER, PAGED, Scene, killed_at
from tests.unit.alerts.scene import MINUTE, NOON, SECOND
from tocsin.alerts.notify import grouping, notifier, outbox
from tocsin.alerts.notify.grouping import GroupState
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
        if hour == 2:
            scene.index(60, user="late", at=NOON)
            scene.send_later(2 * MINUTE)
        if hour == 24:
            assert [subject.partition(" ")[0] for _, subject in scene.subjects] == ["mallory:", "[summary]"]
    assert [subject for _, subject in scene.subjects[1:]] == ["[summary] 1 alert of failed_logins"] * 2
    assert sorted(Counter(sent.state for sent in scene.notifications).items()) == [
        ("replaced", 24), ("sent", 3), ("waiting", 1)
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


# --- grouping ---------------------------------------------------------------------------------------------------------


def played(*steps: str) -> list[str]:
    """Play steps `SECONDS ALERTS[+URGENT]`: so many alerts more have gathered by then. Returns what leaves, and when.

    `12 of 3` is a message of three alerts after twelve seconds, with `storm` while one goes on.
    """
    group, waiting, urgent, left = GroupState(), 0, 0, []
    for step in steps:
        at, _, alerts = step.partition(" ")
        plain, _, more = alerts.partition("+")
        waiting, urgent = waiting + int(plain) + int(more or 0), urgent + int(more or 0)
        departure = grouping.decide(group, waiting, urgent, NOON + timedelta(seconds=float(at)))
        if departure is not None:
            group, leaves = departure.after, urgent if departure.urgent_alone else waiting
            waiting, urgent = waiting - leaves, 0
            left.append(f"{at} of {leaves}{' storm' * (group.storm_since is not None)}")
    return left


CASES = {
    "the first leaves at once, and the next after a quiet while": (["0 1", "30 1"], ["0 of 1", "30 of 1"]),
    "what comes within the wait leaves as one message": (["0 1", "1 1", "29 1", "30 0"], ["0 of 1", "30 of 2"]),
    "an urgent alert waits as well": (["0 1", "1 0+1", "30 0"], ["0 of 1", "30 of 1"]),
    "nothing leaves when nothing has gathered": (["0 1", "30 0", "60 0"], ["0 of 1"]),
    "20 in one message are none, 21 are a storm": (["0 20", "30 21"], ["0 of 20", "30 of 21 storm"]),
    "a storm is one message, and then a digest": (
        ["0 1", "1 5000", "30 0", "60 4999", "90 0", "930 0"],
        ["0 of 1", "30 of 5000 storm", "930 of 4999 storm"],
    ),
    "the seventh message within ten minutes begins a storm": (
        [f"{seconds} 1" for seconds in range(0, 270, 30)],
        [*(f"{seconds} of 1" for seconds in range(0, 180, 30)), "180 of 1 storm"],
    ),
    "six within ten minutes, again and again, are none": (
        [f"{seconds} 1" for seconds in range(0, 1300, 100)],
        [f"{seconds} of 1" for seconds in range(0, 1300, 100)],
    ),
    "the first urgent alert of a storm of e-mails leaves at once, the second in the digest": (
        ["0 21", "5 3+1", "6 0+1", "899 0", "900 16"],
        ["0 of 21 storm", "5 of 1 storm", "900 of 20 storm"],
    ),
    "an urgent alert waits in a storm that has had one": (["0 20+1", "5 0+1", "900 0"], ["0 of 21 storm", "900 of 1"]),
    "a storm ends with a digest of fewer than 20": (
        ["0 21", "900 19", "931 1"],
        ["0 of 21 storm", "900 of 19", "931 of 1"],
    ),
    "a storm after which nothing comes has ended": (["0 21", "5000 1"], ["0 of 21 storm", "5000 of 1"]),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "left"), CASES.values(), ids=CASES)
def test_what_leaves(steps: list[str], left: list[str]) -> None:
    assert played(*steps) == left


def test_a_shorter_interval_of_the_settings_holds_for_urgent_alerts_too() -> None:
    sent, second = GroupState(NOON), timedelta(seconds=1)
    assert [grouping.decide(sent, 1, 1, NOON + wait, second) is None for wait in (second / 2, second)] == [True, False]


def test_a_clock_that_was_ahead_keeps_nothing_back() -> None:
    ahead = grouping.decide(GroupState(), 21, 0, NOON + timedelta(days=1))
    assert ahead is not None
    assert grouping.decide(ahead.after, 1, 0, NOON) is not None


@pytest.mark.parametrize(
    ("last", "oldest", "until", "due"),
    [
        (None, 1, None, True),
        (None, 0.9, None, False),
        (60, 1, None, True),
        (59, 30, None, False),
        (-5, 1, None, True),
        (None, -5, None, True),
        (None, None, -1, False),
        (59, 30, 0, True),
        (60, 1, -1, True),
    ],
)
def test_a_summary_of_delayed_alerts_gathers_a_minute_and_leaves_once_an_hour_and_what_continues_waits_for_it(
    last: float | None, oldest: float | None, until: float | None, due: bool
) -> None:
    def ago(minutes: float | None) -> datetime | None:
        return None if minutes is None else NOON - timedelta(minutes=minutes)

    assert grouping.is_due(ago(last), ago(oldest), ago(until), NOON) == due
