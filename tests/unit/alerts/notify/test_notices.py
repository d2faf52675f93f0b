"""Messages about jobs: from their files to the outbox, and from the files themselves while that is away."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.rig.mail_server import MailServer
from tests.unit.alerts.notifier_scene import Scene
from tests.unit.alerts.scene import SECOND
from tocsin.alerts import alert_lifecycle
from tocsin.alerts.notify.channel import ChannelAway
from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import NoticeFiles, compose_notice, list_overdue, post, put, send_overdue
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import notifications
from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings

ANN, BOB = "ann@example.com", "bob@example.com"
NOTICE = Notice(subject="held", paragraphs=("why",))
MAIL = compose_notice(NOTICE, "one", ANN, Settings())
WEEK = 7 * 86_400


@pytest.fixture
def files(tmp_path: Path) -> NoticeFiles:
    return NoticeFiles(tmp_path)


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def states(scene: Scene) -> list[tuple[str, str, int]]:
    with scene.database.read() as connection:
        rows = connection.execute(notifications.select().order_by(notifications.c.recipient)).all()
    return [(row.recipient, row.state, row.attempts) for row in rows]


def test_a_message_waits_until_it_has_left_and_does_not_wait_again(files: NoticeFiles, tmp_path: Path) -> None:
    assert files.waiting() == {}
    files.put("one", MAIL)
    files.put("one", MAIL)
    assert (list(files.waiting()), files.read("one")) == (["one"], MAIL)
    files.remove("one")
    files.put("one", MAIL)
    assert (files.waiting(), files.read("one")) == ({}, None)
    assert (files.has("on"), files.has("two")) == (True, False)
    age(tmp_path / "supervision" / "mails" / "sent" / "one", WEEK + 1)
    files.remove("two")
    assert (files.has("one"), files.has("two")) == (False, True)


def test_the_notifier_sends_it_from_the_outbox_like_any_other(scene: Scene) -> None:
    put(NOTICE, "n", [ANN, BOB], scene.settings)
    scene.server.answer_recipient = lambda to: "450 later" if to == ANN else "550 no such user"
    scene.notifier.take_notices()
    assert NoticeFiles(scene.settings.state).waiting() == {}
    scene.send()
    assert states(scene) == [(ANN, "leaving", 1), (BOB, "failed", 1)]
    scene.server.answer_recipient = lambda _: "250 OK"
    scene.now += 2 * SECOND
    scene.send()
    assert states(scene) == [(ANN, "sent", 1), (BOB, "failed", 1)]
    assert scene.subjects == [(ANN, "held")]
    scene.notifier.tidy()
    with scene.database.write() as connection:
        assert alert_lifecycle.prune(connection, scene.now + SECOND) == 2


def test_a_notifier_that_dies_between_outbox_and_file_sends_it_once(scene: Scene) -> None:
    put(NOTICE, "n", [ANN], scene.settings)
    files = NoticeFiles(scene.settings.state)
    message = files.read("n-0")
    assert message is not None
    scene.notifier.take_notices()
    (scene.settings.state / "supervision" / "mails" / "sent" / "n-0").unlink()
    files.put("n-0", message)
    scene.notifier.take_notices()
    scene.send()
    assert scene.subjects == [(ANN, "held")]


def test_while_the_mail_server_is_away_it_waits_in_the_outbox(scene: Scene) -> None:
    scene.server.stop()
    put(NOTICE, "n", [ANN], scene.settings)
    scene.notifier.take_notices()
    with pytest.raises(ChannelAway):
        scene.send()
    scene.server.start()
    assert scene.notifier.has_work()
    scene.send_later(SECOND)
    assert states(scene) == [(ANN, "sent", 0)]


def test_while_the_db_is_away_it_stays_and_then_leaves_from_its_file(
    sqlite: Database, server: MailServer, tmp_path: Path
) -> None:
    scene = Scene(sqlite, server, tmp_path)
    put(NOTICE, "n", [ANN], scene.settings)
    with sqlite.write(), pytest.raises(TransientError):
        scene.notifier.take_notices()
    assert send_overdue(scene.settings), "it is the notifier's for a minute"
    assert scene.subjects == []
    age(tmp_path / "supervision" / "mails" / "n-0.json", 61)
    assert list_overdue(scene.settings) == ["n-0"]
    assert send_overdue(scene.settings)
    scene.notifier.take_notices()
    scene.send()
    assert scene.subjects == [(ANN, "held")]


def test_only_one_process_takes_messages_out(scene: Scene) -> None:
    put(NOTICE, "n", [ANN], scene.settings)
    with NoticeFiles(scene.settings.state).lock():
        scene.notifier.take_notices()
        assert not send_overdue(scene.settings, patience=0)
    assert list(NoticeFiles(scene.settings.state).waiting()) == ["n-0"]
    assert (states(scene), scene.subjects) == ([], [])


def test_a_broken_file_holds_up_nothing(scene: Scene) -> None:
    put(NOTICE, "n", [ANN], scene.settings)
    (scene.settings.state / "supervision" / "mails" / "a.json").write_text("{")
    assert send_overdue(scene.settings, patience=0)
    assert scene.subjects == [(ANN, "held")]


def test_where_no_file_can_be_written_it_is_sent_at_once(scene: Scene) -> None:
    scene.settings.state.mkdir(exist_ok=True)
    (scene.settings.state / "supervision").write_text("stands in the way of any folder")
    scene.server.answer_recipient = lambda to: "450 later" if to == BOB else "250 OK"
    assert post(NOTICE, "n", [ANN, BOB], scene.settings) == {ANN}
    assert scene.subjects == [(ANN, "held")]
