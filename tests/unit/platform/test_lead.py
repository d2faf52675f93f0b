"""One process leads a job; one that is started beside it waits, and leads as soon as it has ended."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform import private
from tocsin.platform.lock import Lead, LockHeld, try_lead


def test_who_is_started_beside_leads_once_the_other_has_ended(tmp_path: Path) -> None:
    settings, took = Settings(state=tmp_path), threading.Event()
    first = Lead(settings, "detector:x")
    assert first.is_leading
    with pytest.raises(LockHeld):
        Lead(settings, "detector:x")
    with Lead(settings, "detector:x", beside=True) as second:
        second.follow(took.set)
        assert not second.is_leading
        assert not took.wait(0.3)
        first.close()
        assert took.wait(30)
        assert second.is_leading
    Lead(settings, "detector:x").close()


def test_who_no_longer_waits_never_leads(tmp_path: Path) -> None:
    settings, took = Settings(state=tmp_path), threading.Event()
    with Lead(settings, "detector:x"):
        waiting = Lead(settings, "detector:x", beside=True)
        waiting.follow(took.set)
        waiting.close()
    assert not took.wait(0.3)
    Lead(settings, "detector:x").close()


def test_the_first_to_lead_marks_the_folder_and_none_leads_in_one_half_restored(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state")
    path = settings.checkpoint("seal:x") / "lock"
    try_lead(settings, path).release()
    assert (settings.state / private.MARKER).exists()
    (settings.state / private.RESTORING).touch()
    with pytest.raises(ConfigError, match="a restore broke off"):
        try_lead(settings, path)
