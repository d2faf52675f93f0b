"""A receiver of another kind: its module and its entry in the registry are all that it takes."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rig.mail_server import MailServer
from tests.unit.alerts.notifier_scene import OWNER, Scene
from tests.unit.alerts.scene import RULES
from tocsin.alerts.notify import channel_registry
from tocsin.alerts.notify.channel import ChannelAway, Delivery, Message, Result
from tocsin.alerts.notify.channel_registry import channel_of
from tocsin.alerts.notify.mail import chart
from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.store.database import Database
from tocsin.project.setting_blocks import SmtpSettings
from tocsin.project.settings import Settings
from tocsin.supervision.incidents.mail_outbox import Outbox, addressed, send_waiting

ROOM = "chat:room"
WITH_ROOM = replace(RULES, paged=(ROOM,))


class Chat:
    """Takes what a room is told."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.answer = Delivery(Result.SENT)
        self.tries = self.closed = 0
        self.fails: set[str] = set()

    def send(self, message: Message) -> Delivery:
        self.tries += 1
        if message.subject in self.fails:
            return Delivery(Result.FAILED, "the chat hung up")
        if self.answer.result is Result.SENT:
            self.messages.append(message)
        return self.answer

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Chat:
    made = Chat()
    monkeypatch.setitem(channel_registry.CHANNELS, "chat", lambda _: made)
    monkeypatch.setattr(chart, "draw", lambda _: b"\x89PNG\r\n\x1a\n")
    return made


@pytest.fixture
def scene(sqlite: Database, server: MailServer, tmp_path: Path, chat: Chat) -> Scene:
    return Scene(sqlite, server, tmp_path)


def test_the_form_of_a_recipient_chooses_its_channel(chat: Chat) -> None:
    assert [channel_of(one) for one in (ROOM, "ann@example.com", "pager:ann", "chat")] == ["chat", *["smtp"] * 3]


def test_alerts_go_to_the_channel_of_each_recipient(scene: Scene, chat: Chat) -> None:
    scene.index(120, rules=WITH_ROOM)
    scene.send()
    (message,) = chat.messages
    assert [to for to, _ in scene.subjects] == [OWNER]
    assert (message.recipient, message.urgent, message.picture[:4]) == (ROOM, True, b"\x89PNG")
    assert "tocsin alerts show" in message.text
    assert chat.closed == 1


@pytest.mark.parametrize("away", ["chat", "smtp"])
def test_a_channel_that_is_away_keeps_no_other_back_and_loses_nothing(scene: Scene, chat: Chat, away: str) -> None:
    if away == "smtp":
        scene.server.stop()
    else:
        chat.answer = Delivery(Result.AWAY, "the chat is down")
    for user in ("mallory", "trent", "eve"):
        scene.index(120, user=user, rules=WITH_ROOM)
    with pytest.raises(ChannelAway, match="SMTP server" if away == "smtp" else "the chat is down"):
        scene.notifier.send_due(threading.Event())
    assert (len(scene.server.mails), len(chat.messages)) == ((0, 3) if away == "smtp" else (3, 0))
    assert chat.tries == (3 if away == "smtp" else 1), "one that is away is not asked again for each message"
    if away == "smtp":
        scene.server.start()
    chat.answer = Delivery(Result.SENT)
    scene.send()
    assert (len(scene.server.mails), len(chat.messages)) == (3, 3)
    assert {n.state for n in scene.notifications} == {"sent"}


def test_mails_about_jobs_go_the_same_way(chat: Chat, server: MailServer, tmp_path: Path) -> None:
    server.stop()
    settings = Settings(state=tmp_path, smtp=SmtpSettings(port=server.port))
    notice, outbox = Notice(subject="held", paragraphs=("why",)), Outbox(tmp_path)
    for name, to in (("a", "ann@example.com"), ("b", ROOM), ("c", "chat:hall")):
        outbox.put(name, addressed(notice, name, to, settings))
    chat.answer = Delivery(Result.AWAY, "the chat is down")
    assert not send_waiting(settings)
    assert (outbox.waiting(), chat.tries) == (["a", "b", "c"], 1)
    chat.answer = Delivery(Result.SENT)
    assert not send_waiting(settings)
    assert {(one.recipient, one.subject) for one in chat.messages} == {(ROOM, "held"), ("chat:hall", "held")}
    assert outbox.waiting() == ["a"]
    server.start()
    assert send_waiting(settings)
    assert [mail["To"] for mail in server.mails] == ["ann@example.com"]


def test_mails_about_jobs_that_fail_keep_no_other_back(chat: Chat, tmp_path: Path) -> None:
    """Two failures in a row end a round, whichever mails they are; no two of them are the first in each."""
    settings, outbox = Settings(state=tmp_path), Outbox(tmp_path)
    for name in ("a", "b", "c"):
        outbox.put(name, addressed(Notice(subject=name, paragraphs=("why",)), name, ROOM, settings))
    chat.fails = {"a", "b"}
    assert not any(send_waiting(settings) for _ in range(100))
    assert [message.subject for message in chat.messages] == ["c"]
    assert sorted(outbox.waiting()) == ["a", "b"]
