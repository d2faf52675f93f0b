"""A supervisor that looks no more is mailed about by the notifier, once an absence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.mail_server import MailServer
from tocsin.alerts.notify import notifier_job
from tocsin.alerts.notify.channel import Message
from tocsin.alerts.notify.notices import NoticeFiles, send_overdue
from tocsin.alerts.notify.notifier_job import SupervisorWatch
from tocsin.declare.setting_blocks import AlertSettings, SmtpSettings
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import note_look

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
