import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest
import structlog
from aiosmtpd.smtp import Envelope
from sqlalchemy import Connection, select

from tests.rig.mail_server import DROPPED, OK, MailServer, read_body
from tests.unit.alerts.notifier_scene import OWNER, PAGED, Scene, killed_at
from tests.unit.alerts.scene import FACTS, MINUTE, NOON, RULES, SECOND, WINDOW, burst
from tocsin.alerts.alert_policy import INCOMPLETE_AFTER
from tocsin.alerts.notify import outbox
from tocsin.alerts.notify.channel import SENDING_SECONDS, ChannelAway
from tocsin.alerts.notify.mail import chart, compose
from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import put
from tocsin.alerts.notify.notifier import Sends
from tocsin.alerts.notify.outbox import OutgoingMail
from tocsin.alerts.notify.smtp import SmtpChannel
from tocsin.alerts.recording import record
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter, FindingFilter
from tocsin.alerts.store.schema import notifications
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import REFUSED_RECIPIENTS

ALONE = replace(RULES, paged=())


def test_an_urgent_leaves_at_once_to_the_owner_and_to_those_who_are_paged(
    scene: Scene, logged: list[structlog.typing.EventDict]
) -> None:
    scene.index(120)
    scene.send()
    scene.send()
    assert {to for to, _ in scene.subjects} == {OWNER, PAGED}
    assert len(scene.server.mails) == 2
    assert all(subject.startswith("[URGENT] mallory: 120") for _, subject in scene.subjects)
    assert {n.state for n in scene.notifications} == {"sent"}
    (found,) = queries.list_findings(scene.database, FindingFilter())
    told = [line["finding"] for line in logged if line["event"] == "notification sent"]
    assert told == [found.finding.finding_id] * 2


def test_an_email_leaves_when_its_window_has_closed_and_not_before(scene: Scene) -> None:
    scene.index(60)
    scene.close_windows(NOON + WINDOW - SECOND)
    scene.send()
    assert scene.subjects == []
    scene.now += 20 * SECOND
    scene.close_windows(NOON + WINDOW)
    scene.send()
    scene.send()
    assert [(to, subject[:21]) for to, subject in scene.subjects] == [(OWNER, "mallory: 60 (limit 50")]


def test_an_email_whose_job_is_silent_leaves_late_and_says_so(scene: Scene) -> None:
    scene.index(60)
    scene.now = NOON + WINDOW + FACTS.lateness + INCOMPLETE_AFTER - SECOND
    scene.send()
    assert scene.subjects == []
    scene.now += SECOND
    scene.send()
    (mail,) = scene.server.mails
    body = read_body(mail)
    assert "May be incomplete: the detector's job has not reported" in body
    assert scene.notifications[0].incomplete


def test_while_the_reports_cannot_be_read_urgent_mails_leave_and_emails_keep_their_patience(scene: Scene) -> None:
    scene.reports = TransientError("Kafka is away")
    scene.index(60)
    scene.index(120, user="trent")
    with pytest.raises(TransientError, match="Kafka is away"):
        scene.notifier.release_closed()
    scene.send_due()
    assert {subject[:15] for _, subject in scene.subjects} == {"[URGENT] trent:"}
    scene.now = NOON + 5 * MINUTE
    with pytest.raises(TransientError):
        scene.notifier.release_closed()
    scene.send_due()
    assert scene.subjects[-1][1].startswith("mallory: 60")


def test_nothing_is_lost_while_the_mail_server_is_down(scene: Scene) -> None:
    scene.server.stop()
    scene.index(120)
    scene.index(130, user="trent")
    for _ in range(3):
        with pytest.raises(TransientError, match=r"SMTP server 127\.0\.0\.1:\d+: .*refused"):
            scene.send_later(SECOND)
    assert {n.attempts for n in scene.notifications} == {0}
    scene.server.start()
    scene.now -= timedelta(hours=1)  # a clock that was ahead
    scene.send_later()
    assert sorted(scene.subjects) == sorted((to, "[URGENT] 2 alerts of failed_logins") for to in (OWNER, PAGED))
    assert {n.state for n in scene.notifications} == {"sent"}


def test_a_refused_recipient_is_told_and_keeps_nobody_else_waiting(scene: Scene) -> None:
    scene.server.answer_recipient = lambda to: "550 5.1.1 no such user" if to == OWNER else "250 OK"
    scene.index(120)
    scene.send()
    scene.send()
    assert [to for to, _ in scene.subjects] == [PAGED]
    states = {n.recipient: (n.state, n.error) for n in scene.notifications}
    assert states[PAGED] == ("sent", "")
    assert states[OWNER][0] == "failed"
    assert "550 5.1.1 no such user" in states[OWNER][1]
    left = scene.notifier.tidy()
    assert (left["failed"], left[REFUSED_RECIPIENTS]) == (1, 1)


@pytest.mark.parametrize("which", ["answer_recipient", "answer_mail"])
def test_a_mail_that_is_refused_for_now_is_offered_again_later(scene: Scene, which: str) -> None:
    setattr(scene.server, which, lambda to: "451 4.7.1 greylisted" if to == OWNER else "250 OK")
    scene.index(120)
    waits = []
    for _ in range(4):
        scene.send()
        (owner,) = [n for n in scene.notifications if n.recipient == OWNER]
        waits.append((owner.next_attempt_at - scene.now).total_seconds())
        scene.now = owner.next_attempt_at
    assert waits == [1, 2, 4, 8]
    assert [to for to, _ in scene.subjects] == [PAGED]
    setattr(scene.server, which, lambda to: "250 OK")
    scene.send()
    assert [to for to, _ in scene.subjects] == [PAGED, OWNER]


def test_a_server_that_refuses_the_sender_is_away_and_loses_no_mail(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.index(120)

    async def refuse(*_: object) -> str:
        return "530 5.7.0 authentication required"

    monkeypatch.setattr(scene.server, "handle_MAIL", refuse, raising=False)
    scene.server.stop()
    scene.server.start()
    with pytest.raises(TransientError, match="530"):
        scene.send()
    assert {n.state for n in scene.notifications} == {"leaving"}


def drop_all_to_owner(server: MailServer) -> None:
    server.answer_mail = lambda to: DROPPED if to == OWNER else OK


def refuse_the_first_mail(server: MailServer) -> None:
    first = iter(["552 5.3.4 message size exceeds fixed limit"])

    async def handle(_: object, __: object, envelope: Envelope, sender: str, options: list[str]) -> str:
        answer = next(first, OK)
        if answer == OK:
            envelope.mail_from = sender
        return answer

    server.handle_MAIL = handle  # type: ignore[attr-defined]  # aiosmtpd looks it up
    server.stop()
    server.start()


@pytest.mark.parametrize("fail", [drop_all_to_owner, refuse_the_first_mail])
def test_a_mail_at_which_the_server_ends_the_talk_keeps_nobody_else_waiting(
    scene: Scene, fail: Callable[[MailServer], None]
) -> None:
    """An attempt is one of that mail alone: it comes again after a pause of its own, and others leave."""
    scene.index(120)
    fail(scene.server)
    scene.send()
    scene.send()
    assert len(scene.server.mails) == 1
    (failed,) = [n for n in scene.notifications if n.state == "leaving"]
    assert (failed.attempts, failed.next_attempt_at) == (1, scene.now + SECOND)
    assert "SMTP server" in failed.error
    scene.server.answer_mail = lambda _: OK
    scene.now = failed.next_attempt_at
    scene.send()
    assert len(scene.server.mails) == 2


def test_a_server_that_drops_two_mails_in_a_row_is_away_for_the_others(scene: Scene) -> None:
    for number in range(20):
        put(Notice(subject=f"{number}", paragraphs=("why",)), f"{number}", [f"{number}@a.example"], scene.settings)
    scene.notifier.take_notices()
    scene.server.answer_mail = lambda _: DROPPED
    with pytest.raises(ChannelAway):
        scene.send()
    assert 2 <= len(scene.server.tried) <= 9, "what was under way beside them has been tried too"
    scene.server.answer_mail = lambda _: OK
    with pytest.raises(ChannelAway):
        scene.send()
    assert scene.server.mails == [], "it is left alone for a moment"
    scene.send_later(2 * SECOND)
    assert len(scene.server.mails) == 20


def test_what_fails_for_minutes_is_said(scene: Scene) -> None:
    scene.server.answer_mail = lambda to: "451 4.3.0 try again" if to == OWNER else OK
    scene.index(120)
    for _ in range(8):
        scene.notifier.tidy()
        assert scene.notifier.stuck == ""
        scene.send()
        scene.now += outbox.LONGEST_PAUSE
    scene.notifier.tidy()
    assert scene.notifier.stuck.startswith(f"1 notifications fail again and again, such as one to {OWNER}: SMTP server")


def test_a_mended_address_gets_what_it_refused_with_the_next_finding_and_nobody_gets_it_twice(scene: Scene) -> None:
    scene.server.answer_recipient = lambda to: "550 5.1.1 no such user" if to == OWNER else OK
    scene.index(120)
    scene.send()
    scene.notifier.tidy()
    scene.index(130)
    scene.send()
    assert [to for to, _ in scene.subjects] == [PAGED], "an address is not tried again with each finding"
    scene.now += outbox.LONGEST_PAUSE - MINUTE
    scene.notifier.tidy()
    scene.index(140, at=scene.now)
    scene.send()
    scene.now += MINUTE
    scene.notifier.tidy()
    scene.server.answer_recipient = lambda _: OK
    scene.index(150, at=scene.now)
    scene.send()
    scene.index(160, at=scene.now)
    scene.send()
    assert [to for to, _ in scene.subjects] == [PAGED, OWNER]


def test_a_mail_that_cannot_be_composed_leaves_as_one_that_names_its_alert(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.index(120)
    build = compose.alert_mail

    def fail_for_mallory(*arguments: object) -> object:
        if "mallory" in str(arguments[0]):
            raise ZeroDivisionError("division by zero")
        return build(*arguments)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(compose, "alert_mail", fail_for_mallory)
    scene.send()
    scene.index(130, user="trent")
    scene.send_later()
    assert {n.state for n in scene.notifications} == {"sent"}
    bare = [mail for mail in scene.server.mails if not mail["Subject"].startswith("[URGENT] trent:")]
    assert {(mail["To"], mail["Subject"]) for mail in bare} == {
        (to, "[tocsin] alert 1: the mail could not be composed") for to in (OWNER, PAGED)
    }
    body = read_body(bare[0])
    assert "tocsin alerts 1" in body
    assert "division by zero" in body


def test_the_first_mail_that_a_person_gets_about_an_alert_is_its_first_notification(scene: Scene) -> None:
    """The e-mail that the urgent one replaced has reached nobody."""
    scene.index(60)
    scene.index(120)
    scene.send()
    assert ["Notification 1 of this alert" in read_body(mail) for mail in scene.server.mails] == [True] * 2


def test_an_alert_with_a_message_of_its_own_gets_evidence_and_those_of_a_summary_get_none(scene: Scene) -> None:
    scene.index(120)
    scene.send()
    body = read_body(scene.server.mails[0])
    assert "No events shown: Kafka is not part of this scene" in body
    assert set(scene.enriched) == {"mallory"}
    for number in range(30):
        scene.index(120, user=f"user{number}")
    scene.now += MINUTE
    scene.send()
    assert len(scene.server.mails) > 2
    assert set(scene.enriched) == {"mallory"}


def test_a_chart_that_cannot_be_drawn_does_not_keep_its_mail(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(chart, "draw", fail)
    scene.index(120)
    scene.send()
    assert len(scene.server.mails) == 2


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("owner", "name", "mails"), [(SmtpChannel, "send", 1), (outbox, "mark_sent", 2)])
def test_a_crash_loses_nothing_and_one_between_acceptance_and_mark_sends_the_same_message_again(
    scene: Scene, owner: object, name: str, mails: int
) -> None:
    """The one case in which a mail comes twice; the Message-ID tells the receiver that it is the same."""
    scene.index(120, rules=ALONE)
    with killed_at(owner, name):
        scene.send()
    assert len(scene.server.mails) == mails - 1
    scene.notifier = scene.new_notifier()
    scene.send()
    assert len(scene.server.mails) == mails
    assert len({mail["Message-ID"] for mail in scene.server.mails}) == 1


def test_a_database_that_is_locked_after_the_send_does_not_send_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.index(120)
    mark, locked = outbox.mark_sent, [True, True]

    def locked_at_first(connection: Connection, ids: list[int], now: datetime) -> None:
        if locked and locked.pop():
            raise TransientError("database is locked")
        mark(connection, ids, now)

    monkeypatch.setattr(outbox, "mark_sent", locked_at_first)
    for _ in range(2):
        with pytest.raises(TransientError):
            scene.send()
    scene.send()
    scene.send()
    assert len(scene.server.mails) == 2
    assert {n.state for n in scene.notifications} == {"sent"}


# --- resolving --------------------------------------------------------------------------------------------------------


def test_an_alert_resolves_when_its_period_is_over_and_nothing_waits_and_goes_when_it_is_old(scene: Scene) -> None:
    scene.index(60)
    scene.now = NOON + FACTS.dedup_period
    scene.notifier.tidy()
    assert [a.state for a in queries.list_alerts(scene.database, AlertFilter())] == ["open"]
    scene.send()
    scene.notifier.tidy()
    assert [a.state for a in queries.list_alerts(scene.database, AlertFilter())] == ["resolved"]
    scene.now += timedelta(days=401)
    scene.notifier.tidy()
    assert queries.list_alerts(scene.database, AlertFilter()) == [], "what is old is removed in passing"


def test_the_time_that_many_mails_take_is_no_standstill_and_one_that_never_ends_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        put(Notice(subject=f"{number}", paragraphs=("why",)), f"{number}", [OWNER], scene.settings)
    scene.notifier.take_notices()
    mails_before: list[int] = []
    scene.notifier.send_due(threading.Event(), lambda: mails_before.append(len(scene.subjects)), patience=60.0)
    assert len(mails_before) > 1
    assert (mails_before[0], mails_before[-1]) == (0, 3)
    steps = len(mails_before)
    monkeypatch.setattr(Sends, "longest_seconds", SENDING_SECONDS)
    scene.notifier.send_due(threading.Event(), lambda: mails_before.append(len(scene.subjects)))
    assert len(mails_before) == steps


def test_there_is_work_as_long_as_something_waits_or_is_to_be_sent(scene: Scene) -> None:
    assert not scene.notifier.has_work()
    scene.index(60)
    assert scene.notifier.has_work(), "it waits for its window"
    scene.close_windows(NOON + WINDOW)
    assert scene.notifier.has_work()
    scene.send()
    assert not scene.notifier.has_work()


def test_a_window_that_was_called_complete_too_early_costs_no_notification_and_none_comes_twice(scene: Scene) -> None:
    """An e-mail may say too little, and nobody goes without one."""
    scene.index(60)
    scene.close_windows(NOON + WINDOW, "complete_through")
    scene.send()
    for score, user in ((90, "mallory"), (70, "eve"), (120, "mallory")):
        scene.index(score, user=user)
        scene.send_later()
    scene.close_windows(NOON + 2 * WINDOW)
    scene.send_later(scene.settings.alerts.group_interval)
    told = [subject.partition(" (")[0].rstrip("+") for to, subject in scene.subjects if to == OWNER]
    assert told == ["mallory: 60", "[URGENT] mallory: 120", "eve: 70"]


# --- several at a time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipient", "to_one", "to_all"),
    [("owner@example.com", 4, 8), ("webhook:tickets", 1, 6), ("pagerduty:oncall", 1, 6)],
)
def test_a_person_gets_several_mails_at_a_time_and_a_program_one_message(
    recipient: str, to_one: int, to_all: int
) -> None:
    """So that a mail does not wait for the evidence of another, and a program learns of things in their order."""
    sends, others = Sends(), [f"{recipient}{number % 5}" for number in range(10)]
    under_way = dict.fromkeys([recipient, *others], 0)
    for number, to in enumerate([*[recipient] * 5, *others]):
        mail = Mock(OutgoingMail, recipient=to, message_id=f"<{number}@example.com>")
        if sends.has_room(to, mail.message_id):
            sends.start(Mock(), mail, Mock())
            under_way[to] += 1
            assert not sends.has_room(to, mail.message_id), "it is under way"
    assert under_way[recipient] == to_one
    assert len(sends) == to_all


# --- the outbox when others write at the same moment ------------------------------------------------------------------


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
