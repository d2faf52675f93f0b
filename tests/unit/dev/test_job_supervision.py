"""The jobs of a stack: the order in which it starts them, and a state folder that cannot be written."""

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest

from tests.rig.mail_server import MailServer
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that
from tocsin.alerts.notify.notices import NoticeFiles
from tocsin.declare.catalog import Catalog
from tocsin.declare.setting_blocks import AlertSettings, SmtpSettings
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev import job_supervision
from tocsin.dev.job_supervision import JobSupervision
from tocsin.dev.servers.server_set import DeclaredTopics
from tocsin.dev.unattended import __main__ as unattended
from tocsin.supervise.installed_jobs import process_reader
from tocsin.supervise.job_status import look
from tocsin.supervise.supervisor import Supervisor


def test_detectors_in_shadow_and_their_engine_wait_until_the_others_have_been_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_project(tmp_path)
    text = (tmp_path / "detectors" / "failed_logins.py").read_text(encoding="utf-8")
    shadow = text.replace('stage="live"', 'stage="shadow"')
    (tmp_path / "detectors" / "quiet.py").write_text(shadow, encoding="utf-8")
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    jobs = JobSupervision(load_settings(tmp_path), tmp_path)

    def detectors() -> list[str]:
        jobs.tick(start=False)
        return sorted(line.name for line in jobs.lines() if line.name.startswith(("detector:", "engine:")))

    live = ["detector:failed_logins", "engine:live-1"]
    assert detectors() == live
    monkeypatch.setattr(jobs, "_settled_at", now)
    assert detectors() == live
    now += 30
    assert detectors() == sorted([*live, "detector:quiet", "engine:shadow-1"])


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

    monkeypatch.setattr(Supervisor, "tick", look)
    monkeypatch.setattr(NoticeFiles, "put", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
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


def test_a_reader_of_a_cluster_asks_no_api_and_goes_by_reports(tmp_path: Path) -> None:
    (tmp_path / "tocsin.toml").write_text('[runner]\nkind = "kubernetes"\nimage = "tocsin:1"\n', encoding="utf-8")
    settings = load_settings(tmp_path)
    snapshot = look(settings, Catalog(), process_reader(settings)())
    assert snapshot.facts("indexer").processes is None
    assert snapshot.status("indexer").health == "missing"
