"""Many alerts at once: few messages, and none of them keeps another detector's back."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.rig.mail_server import MailServer, read_body
from tests.unit.alerts.notifier_scene import OWNER, Scene, let_a_program_read_mails
from tests.unit.alerts.scene import FACTS, MINUTE, NOON, SECOND, finding, index
from tocsin.alerts import actions
from tocsin.alerts.actions import Actor
from tocsin.alerts.alert_states import Action
from tocsin.alerts.notify import notifier, outbox
from tocsin.alerts.notify.channel import Message
from tocsin.alerts.notify.mail import compose
from tocsin.alerts.recording import Rules
from tocsin.alerts.store.database import Database
from tocsin.declare.blocks.web_settings import WebSettings
from tocsin.declare.model.errors import TransientError
from tocsin.declare.setting_blocks import SmtpSettings
from tocsin.declare.settings import Settings

OTHER = FACTS.model_copy(update={"name": "outage"})
RULES = Rules(facts={FACTS.name: FACTS, OTHER.name: OTHER})


def found(scene: Scene, users: range, **changes: object) -> None:
    """One alert of each user, now."""
    at = scene.now - 8 * SECOND
    index(scene.database, [finding(120, user=f"user{user}", at=at, **changes) for user in users], RULES, scene.now)


@pytest.fixture
def scene(sqlite: Database, server: MailServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(notifier, "_PAUSE_SECONDS", 0.0)
    smtp, web = SmtpSettings(port=server.port, sender="tocsin@tocsin.example.com"), WebSettings(address="https://pages")
    return Scene(sqlite, server, Settings(project=tmp_path, state=tmp_path, smtp=smtp, web=web))


def test_a_storm_is_three_mails_and_an_urgent_alert_of_another_detector_leaves_in_the_middle(scene: Scene) -> None:
    scene.now = NOON
    for second in range(60):
        found(scene, range(20 * second, 20 * second + 20))
        scene.send_later(SECOND)
        if second == 40:
            found(scene, range(1), detector="outage")
            scene.send()
            assert scene.server.mails[-1]["Subject"].startswith("[URGENT] user0: 120")
    for _ in range(4):
        scene.send_later(5 * MINUTE)
    subjects = [subject for _, subject in scene.subjects if "Bursts" not in subject]
    assert subjects == [
        "[URGENT] 20 alerts of failed_logins",
        "[URGENT] Storm: 600 alerts of failed_logins",
        "[URGENT] Storm: 580 alerts of failed_logins",
    ]
    storm = " ".join(read_body(scene.server.mails[1]).split())
    assert "600 of them urgent" in storm
    assert "leaves as a digest every 15 minutes, until fewer than 20 gather" in storm
    assert "No alert is dropped: tocsin alerts --detector failed_logins --limit 600 lists them all" in storm
    assert "and 550 more" in storm
    assert "https://pages/alerts?detector=failed_logins" in storm
    with scene.database.read() as connection:
        assert outbox.counts(connection) == {}


def test_email_alerts_of_all_detectors_to_a_person_gather_and_urgent_ones_do_not(scene: Scene) -> None:
    scene.now = NOON
    found(scene, range(1), level="email")
    scene.close_windows(NOON + MINUTE)
    scene.send()
    for detector, users in (("failed_logins", range(1, 3)), ("outage", range(2, 5))):
        found(scene, users, detector=detector, level="email")
    scene.close_windows(NOON + MINUTE)
    scene.send_later(29 * MINUTE)
    found(scene, range(1, 2))
    scene.send()
    assert [subject.partition(":")[0] for _, subject in scene.subjects] == ["user0", "[URGENT] user1"]
    scene.send_later(MINUTE)
    assert [subject for _, subject in scene.subjects[2:]] == ["4 alerts of failed_logins, outage"]
    (several,) = scene.server.mails[2:]
    assert "alerts." in several["List-Id"]
    with scene.database.read() as connection:
        assert outbox.counts(connection) == {}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Messages about several alerts."""
    composed, sent = compose.summary_mail, list[Message]()

    def compose_and_keep(*what: Any) -> Message:
        sent.append(composed(*what))
        return sent[-1]

    monkeypatch.setattr(compose, "summary_mail", compose_and_keep)
    return sent


def test_the_lines_of_a_message_about_several_begin_with_the_highest(
    scene: Scene, sent: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_a_program_read_mails(monkeypatch)
    found(scene, range(1))
    scene.send()
    scores = ((60, "email", "low"), (80, "urgent", "high"), (300, "urgent", "highest"), (90, "email", "mid"))
    for score, level, user in scores:
        index(scene.database, [finding(score, user=user, level=level)], RULES, scene.now)
    scene.close_windows(NOON + MINUTE)
    scene.send_later()
    (mail,) = scene.server.mails[1:]
    assert mail["Subject"] == "[URGENT] 4 alerts of failed_logins"
    places = [read_body(mail).index(user) for user in ("highest:", "high:", "mid:", "low:")]
    assert places == sorted(places)
    assert "[tocsin" not in read_body(mail)
    assert [facts.entity["user_id"] for facts in sent[-1].several] == ["highest", "high", "mid", "low"]
    assert (sent[-1].alerts, {facts.happened for facts in sent[-1].several}) == (4, {Action.OPENED})


def test_a_message_about_several_that_could_not_leave_stays_the_same(scene: Scene) -> None:
    found(scene, range(3))
    scene.server.answer_mail = lambda _: "451 later"
    scene.send()
    scene.server.answer_mail = lambda _: "250 OK"
    found(scene, range(3, 5))
    scene.send_later()
    # They leave side by side, so either may come first.
    assert sorted(subject for _, subject in scene.subjects) == [
        "[URGENT] 2 alerts of failed_logins",
        "[URGENT] 3 alerts of failed_logins",
    ]


def test_an_answer_meanwhile_does_not_change_what_a_message_about_several_says_happened(
    scene: Scene, sent: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_a_program_read_mails(monkeypatch)
    found(scene, range(3))
    scene.server.answer_mail = lambda _: "451 later"
    scene.send()
    with scene.database.write() as connection:
        actions.acknowledge(connection, [1], Actor("ann@example.com", scene.now))
    scene.server.answer_mail = lambda _: "250 OK"
    scene.send_later()
    assert {facts.happened for facts in sent[-1].several} == {Action.OPENED}
    assert [subject.split()[0] for _, subject in scene.subjects] == ["[URGENT]", "[acknowledged]"]


def test_a_database_that_is_locked_while_a_message_is_bound_costs_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "CHUNK", 5)
    bind, calls = outbox.bind, iter(range(100))

    def locked_once(connection: Connection, ids: Sequence[int], message: str) -> None:
        if next(calls) == 1:
            raise TransientError("database is locked")
        bind(connection, ids, message)

    monkeypatch.setattr(outbox, "bind", locked_once)
    found(scene, range(12))
    with pytest.raises(TransientError):
        scene.send()
    scene.send()
    scene.send_later()
    assert [subject for _, subject in scene.subjects] == [
        "[URGENT] 5 alerts of failed_logins",
        "[URGENT] 7 alerts of failed_logins",
    ]


@pytest.mark.parametrize("by", [OWNER, None], ids=["by one", "by anybody"])
def test_what_was_refused_is_a_condition_and_is_sent_again(scene: Scene, by: str | None) -> None:
    scene.server.answer_recipient = lambda _: "550 5.1.1 no such user"
    found(scene, range(2))
    scene.send()
    with scene.database.read() as connection:
        ((recipient, reason),) = outbox.refused_recipients(connection, scene.now + timedelta(days=1)).items()
        assert recipient == OWNER
        assert "no such user" in reason
        assert outbox.refused_recipients(connection, scene.now + timedelta(days=8)) == {}
    scene.server.answer_recipient = lambda _: "250 OK"
    scene.now += MINUTE
    found(scene, range(2, 5))
    scene.send()
    with scene.database.write() as connection:
        assert outbox.refused_recipients(connection, scene.now) == {}, "it takes others since"
        assert outbox.resend(connection, "nobody@example.com", scene.now) == 0
        assert outbox.resend(connection, None, scene.now + timedelta(days=8)) == 0
        assert outbox.resend(connection, 1, scene.now) == 1
        assert outbox.resend(connection, by, scene.now) == 1
        assert outbox.resend(connection, by, scene.now) == 0
    scene.send()
    assert scene.subjects == [(OWNER, f"[URGENT] {count} alerts of failed_logins") for count in (3, 2)]
    with scene.database.read() as connection:
        assert outbox.refused_recipients(connection, scene.now) == {}


def test_what_people_were_notified_of_since_is_not_sent_again(scene: Scene) -> None:
    scene.server.answer_recipient = lambda _: "550 5.1.1 no such user"
    found(scene, range(1))
    scene.send()
    scene.server.answer_recipient = lambda _: "250 OK"
    scene.now += outbox.LONGEST_PAUSE
    scene.notifier.tidy()
    found(scene, range(1))
    scene.send()
    with scene.database.write() as connection:
        assert outbox.resend(connection, OWNER, scene.now) == 0
    assert len(scene.subjects) == 1
