"""Messages about jobs: from their files to the outbox, and from the files themselves while that is away."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.rig.mail_server import MailServer
from tests.rig.web_receiver import WebReceiver, web_receiver
from tests.unit.alerts.notifier_scene import Scene
from tests.unit.alerts.scene import SECOND
from tocsin.alerts import alert_lifecycle
from tocsin.alerts.notify import notifier_job
from tocsin.alerts.notify.channel import Message
from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import NoticeFiles, compose_notice, list_overdue, put, send_overdue
from tocsin.alerts.notify.notifier_job import DeadMansSwitch, SupervisorWatch
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import notifications
from tocsin.declare.model.errors import TransientError
from tocsin.declare.setting_blocks import AlertSettings, SmtpSettings
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import note_look

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


# --- a supervisor that looks no more, and signs of life ---------------------------------------------------------------


TO = ("ops@example.com", "night@example.com")


class Watched:
    """An installation whose supervisor looked last so long ago, watched by a new notifier each time."""

    def __init__(self, folder: Path) -> None:
        self.server = MailServer()
        smtp, alerts = SmtpSettings(port=self.server.port), AlertSettings(urgent_recipients=TO)
        self.settings = Settings(project=folder, state=folder / "state", smtp=smtp, alerts=alerts)

    def looks(self, ago: float) -> None:
        note_look(self.settings.state, "jobs")
        beat = self.settings.state / "heartbeats" / "supervisor__jobs.json"
        os.utime(beat, (beat.stat().st_mtime - ago,) * 2)

    def told(self, watch: SupervisorWatch | None = None) -> list[str]:
        before = len(self.server.mails)
        (watch or SupervisorWatch(self.settings)).look()
        send_overdue(self.settings, patience=0)
        return sorted(str(mail["To"]) for mail in self.server.mails[before:])


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(notifier_job, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(notifier_job, "_RETRY_SECONDS", 0.0)
    made = Watched(tmp_path)
    made.server.start()
    yield made
    made.server.stop()


def test_five_minutes_without_a_look_are_one_mail_to_each(watched: Watched) -> None:
    assert watched.told() == [], "where none ever looked nobody is missed"
    watched.looks(ago=290)
    assert watched.told() == []
    watched.looks(ago=310)
    assert watched.told() == sorted(TO)
    assert watched.server.mails[0]["Subject"] == "[tocsin] supervisor: does not look at the jobs"
    assert watched.told() == [], "also by a notifier that was started since"
    watched.looks(ago=310 + 3600)
    assert watched.told() == sorted(TO), "another absence"


def test_on_a_full_disk_it_is_sent_at_once_and_nobody_gets_it_twice(watched: Watched) -> None:
    watched.looks(ago=310)
    (watched.settings.state / "supervision").write_text("stands in the way of any folder")
    watch = SupervisorWatch(watched.settings)
    first, second = sorted(TO)
    watched.server.answer_recipient = lambda to: "250 OK" if to == first else "421 come back"
    assert watched.told(watch) == [first]
    watched.server.answer_recipient = lambda to: "250 OK"
    assert watched.told(watch) == [second]
    assert watched.told(watch) == []


def test_when_the_disk_fills_behind_the_first_message_the_second_is_not_taken_for_it(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, (first, second) = NoticeFiles.put, sorted(TO)

    def put_first(files: NoticeFiles, name: str, message: Message) -> None:
        if message.recipient == second:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(files, name, message)

    watched.looks(ago=310)
    watch = SupervisorWatch(watched.settings)
    watched.server.answer_recipient = lambda to: "250 OK" if to == first else "421 come back"
    with monkeypatch.context() as full:
        full.setattr(NoticeFiles, "put", put_first)
        assert watched.told(watch) == [first]
    watched.server.answer_recipient = lambda to: "250 OK"
    assert watched.told(watch) == [second]


@pytest.fixture
def outside() -> Iterator[WebReceiver]:
    """A service outside that takes the signs of life."""
    with web_receiver() as server:
        yield server


def _switch(watched: Watched, heartbeat: str | None) -> DeadMansSwitch:
    alerts = AlertSettings(urgent_recipients=TO, heartbeat=heartbeat)
    return DeadMansSwitch(watched.settings.model_copy(update={"alerts": alerts}))


def test_a_sign_of_life_goes_outside_at_an_interval_while_the_supervisor_looks(
    watched: Watched, outside: WebReceiver
) -> None:
    switch = _switch(watched, f"{outside.url}/sign")
    watched.looks(ago=310)
    switch.worked()
    assert switch._request is None, "nobody watches the jobs, so somebody outside is to be alarmed"
    watched.looks(ago=1)
    for _ in range(3):
        switch.worked()
        assert switch._request is not None
        switch._request.join()
    assert [taken.path for taken in outside.taken] == ["/sign"]
    _switch(watched, "ops@example.com").worked()
    _switch(watched, "ops@example.com").worked()
    _switch(watched, None).worked()
    send_overdue(watched.settings, patience=0)
    assert [mail["Subject"] for mail in watched.server.mails] == ["[tocsin] heartbeat"], "one an interval"


def test_a_sign_that_is_not_taken_is_logged_without_its_address(watched: Watched, outside: WebReceiver) -> None:
    outside.status = lambda _: 404
    switch = _switch(watched, f"{outside.url}/s3cret")
    with capture_logs() as logs:
        switch.worked()
        assert switch._request is not None
        switch._request.join()
    assert [entry["error"] for entry in logs] == ["it answers 404"]


def test_a_service_outside_that_is_away_stops_nothing(watched: Watched) -> None:
    switch = _switch(watched, "http://127.0.0.1:1/sign")
    switch.worked()
    assert switch._request is not None
    switch._request.join()
    with pytest.raises(ValueError, match="e-mail address"):
        AlertSettings(heartbeat="no address")
