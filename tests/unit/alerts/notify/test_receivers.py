"""A receiver of another kind: its module and its record are all that it takes, also through the settings."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rig.mail_server import MailServer
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that
from tests.unit.alerts.notifier_scene import OWNER, Scene
from tests.unit.alerts.notify.chat_receiver import RECORD, Chat
from tests.unit.alerts.scene import RULES, SECOND
from tocsin.alerts.notify.channel import ChannelAway, Delivery, Message
from tocsin.alerts.notify.grouping import WAIT
from tocsin.alerts.notify.mail import chart
from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import NoticeFiles, compose_notice, put, send_overdue
from tocsin.alerts.store.database import Database
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.receivers import RECEIVERS, kind_of
from tocsin.declare.settings import Settings, load_settings

ROOM = "chat:room"
WITH_ROOM = replace(RULES, paged=(ROOM,))


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setitem(RECEIVERS, "chat", RECORD)
    monkeypatch.setattr(chart, "draw", lambda _: b"\x89PNG\r\n\x1a\n")
    chat = tmp_path / "chat"
    chat.mkdir()
    yield chat
    Chat.tries = Chat.closed = 0


@pytest.fixture
def settings(tmp_path: Path, server: MailServer) -> Settings:
    return installation(tmp_path, server.port)


@pytest.fixture
def scene(sqlite: Database, server: MailServer, settings: Settings) -> Scene:
    return Scene(sqlite, server, settings)


def installation(project: Path, port: int, chat: str = "folder = '{}/chat'") -> Settings:
    copy_project(project, "sources", "detectors")
    (project / "tocsin.toml").write_text(
        f"[smtp]\nport = {port}\nsender = 'tocsin@tocsin.example.com'\n"
        f"[alerts]\nurgent_recipients = ['{ROOM}']\n[receivers.chat]\n{chat.format(project)}\n"
    )
    return load_settings(project)


def told(folder: Path, room: str = ROOM) -> list[Message]:
    return [Message.model_validate_json(file.read_text()) for file in sorted((folder / room).glob("*"))]


def test_a_recipient_names_its_kind() -> None:
    assert [kind_of(one) for one in (ROOM, "ann@example.com", "pager:ann", "chat")] == ["chat", *["smtp"] * 3]


def test_settings_and_owners_name_receivers_of_any_kind(tmp_path: Path, settings: Settings) -> None:
    source = tmp_path / "sources" / "logins.toml"
    declared = read_catalog(tmp_path).sources["logins"].owner
    source.write_text(source.read_text().replace(declared, ROOM))
    assert settings.alerts.urgent_recipients == (ROOM,)
    assert read_catalog(tmp_path).sources["logins"].owner == ROOM
    source.write_text(source.read_text().replace(ROOM, "chat:room 7"))
    assert "must be chat:ROOM, not 'chat:room 7'" in str(read_catalog(tmp_path).broken)


@pytest.mark.parametrize(
    ("chat", "fault"),
    [
        ("folder = '{0}/chat'\n[receivers.chap]\na = 1", "'chap' is no kind of receiver that has settings"),
        ("floder = '{0}/chat'", "floder"),
    ],
)
def test_wrong_settings_of_receivers_are_named(tmp_path: Path, chat: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        installation(tmp_path, 25, chat)


def test_alerts_go_to_the_channel_of_each_recipient(scene: Scene, folder: Path) -> None:
    scene.index(120, rules=WITH_ROOM)
    scene.send()
    (message,) = told(folder)
    assert [to for to, _ in scene.subjects] == [OWNER]
    assert (message.recipient, message.urgent, message.picture[:4]) == (ROOM, True, b"\x89PNG")
    assert "tocsin alerts" in message.text
    assert Chat.closed == 1


@pytest.mark.parametrize("away", ["chat", "smtp"])
def test_a_channel_that_is_away_keeps_no_other_back_and_loses_nothing(scene: Scene, folder: Path, away: str) -> None:
    if away == "smtp":
        scene.server.stop()
    else:
        (folder / "answer").write_text("away")
    for name in ("a", "b", "c"):
        put(Notice(subject=name, paragraphs=("why",)), name, [OWNER, ROOM], scene.settings)
    scene.notifier.take_notices()
    with pytest.raises(ChannelAway, match="SMTP server" if away == "smtp" else "the chat hung up"):
        scene.send_due()
    assert (len(scene.server.mails), len(told(folder))) == ((0, 3) if away == "smtp" else (3, 0))
    assert Chat.tries == (3 if away == "smtp" else 1), "one that is away is not asked again for each message"
    if away == "smtp":
        scene.server.start()
    (folder / "answer").unlink(missing_ok=True)
    scene.send_later()
    assert (len(scene.server.mails), len(told(folder))) == (3, 3)


def test_a_server_that_takes_long_to_refuse_a_connection_is_away(
    scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, send = threading.Semaphore(0), Chat.send

    def hang(chat: Chat, message: Message) -> Delivery:
        ends.acquire()
        return send(chat, message)

    def send_due(patience: float = 10.0) -> None:
        scene.notifier.send_due(threading.Event(), patience=patience)

    monkeypatch.setattr(Chat, "send", hang)
    (folder / "answer").write_text("away")
    scene.index(120, rules=replace(RULES, paged=(ROOM,)))
    send_due(0.0)
    for tries in (1, 2):
        ends.release()
        with pytest.raises(ChannelAway, match="the chat hung up"):
            send_due()
        with pytest.raises(ChannelAway, match="the chat hung up"):
            send_due()
        assert Chat.tries == tries, "not again before its pause is over"
        scene.now += tries * SECOND
        with pytest.raises(ChannelAway, match="the chat hung up"):
            send_due(0.0)  # which is away until this try says otherwise
    (folder / "answer").unlink()
    ends.release()
    send_due()
    assert (len(told(folder)), scene.notifier.away) == (1, "")


def test_a_receiver_that_hangs_delays_no_other(scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed, send = threading.Event(), Chat.send

    def hang(chat: Chat, message: Message) -> Delivery:
        freed.wait()
        return send(chat, message)

    monkeypatch.setattr(Chat, "send", hang)
    scene.index(120, rules=WITH_ROOM)
    for user in ("trent", "eve"):
        scene.notifier.send_due(threading.Event(), patience=0.0)
        await_that(lambda: len(scene.subjects) == len(scene.notifications) / 2)
        scene.index(120, user=user, rules=WITH_ROOM)
        scene.now += WAIT
    assert [to for to, _ in scene.subjects] == [OWNER, OWNER]
    freed.set()
    scene.send()
    assert [to for to, _ in scene.subjects] == [OWNER] * 3
    assert len(told(folder)) == 2, "what gathered meanwhile is one message"
    assert {n.state for n in scene.notifications} == {"sent"}


def test_messages_about_jobs_go_the_same_way(scene: Scene, folder: Path) -> None:
    scene.server.stop()
    put(Notice(subject="held", paragraphs=("why",)), "a", ["ann@example.com", ROOM, "chat:hall"], scene.settings)
    scene.notifier.take_notices()
    with pytest.raises(ChannelAway):
        scene.send()
    assert [message.subject for room in (ROOM, "chat:hall") for message in told(folder, room)] == ["held", "held"]
    scene.server.start()
    scene.send_later()
    assert scene.subjects == [("ann@example.com", "held")]


def test_messages_that_fail_keep_no_other_back_when_they_leave_from_their_files(
    settings: Settings, folder: Path
) -> None:
    """Two failures in a row end a round, whichever they are; no two of them are the first in each."""
    files = NoticeFiles(settings.state)
    for name in ("a", "b", "c"):
        files.put(name, compose_notice(Notice(subject=name, paragraphs=("why",)), name, ROOM, settings))
    for name in ("a", "b"):
        (folder / name).write_text("failed")
    assert not any(send_overdue(settings, patience=0) for _ in range(100))
    assert [message.subject for message in told(folder)] == ["c"]
    assert list(files.waiting()) == ["a", "b"]
