"""A state folder that cannot be written: who supervises tells it at once, goes on, and mails once."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.rig.mail_server import MailServer
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that
from tocsin.alerts.notify.notices import NoticeFiles
from tocsin.declare.setting_blocks import AlertSettings, SmtpSettings
from tocsin.declare.settings import Settings
from tocsin.dev import job_supervision
from tocsin.dev.job_supervision import JobSupervision
from tocsin.dev.servers.server_set import DeclaredTopics
from tocsin.dev.unattended import __main__ as unattended
from tocsin.supervise.supervisor import Supervisor


@pytest.fixture
def server() -> Iterator[MailServer]:
    made = MailServer()
    made.start()
    yield made
    made.stop()


def test_a_full_disk_is_mailed_at_once_and_ends_nothing(
    tmp_path: Path, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_project(tmp_path)
    smtp, alerts = SmtpSettings(port=server.port), AlertSettings(urgent_recipients=("ops@example.com",))
    settings = Settings(project=tmp_path, state=tmp_path / "state", smtp=smtp, alerts=alerts)
    looks: list[float] = []

    def look(*_: object) -> list[object]:
        looks.append(time.monotonic())
        raise OSError(errno.ENOSPC, "No space left on device")

    def put(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Supervisor, "tick", look)
    monkeypatch.setattr(NoticeFiles, "put", put)
    monkeypatch.setattr(DeclaredTopics, "missing", lambda *_: None)
    monkeypatch.setattr(job_supervision, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(unattended, "_TICK_SECONDS", 0.01)
    jobs, rounds, stop = JobSupervision(settings, tmp_path), MagicMock(), threading.Event()
    supervising = threading.Thread(target=unattended._keep, args=(settings, jobs, rounds, stop))
    supervising.start()
    try:
        await_that(lambda: server.mails and len(looks) > 3)
        seen = len(looks)
        await_that(lambda: len(looks) > seen + 3)
        assert supervising.is_alive()
    finally:
        stop.set()
        supervising.join(10)
        jobs._ended.set()
    (mail,) = server.mails
    assert (mail["To"], mail["Subject"]) == ("ops@example.com", "[tocsin] state folder: no room")
    assert not rounds.start.called
