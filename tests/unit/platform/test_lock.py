"""A lock on a file, and the lead of a job: one process has it, and one beside it waits until that has ended."""

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.rig.waiting import await_that
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform import private
from tocsin.platform.lock import Lead, LockHeld, hold, try_lead

HOLDER = """
import sys, time
from pathlib import Path
from tocsin.platform.lock import hold
lock = hold(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_holder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockHeld) as refused:
            hold(path)
        assert refused.value.pid == holder.pid
    finally:
        holder.kill()
        holder.communicate()
    hold(path).release()


def test_a_released_lock_can_be_taken_again_and_releasing_twice_does_no_harm(tmp_path: Path) -> None:
    with hold(tmp_path / "lock") as lock, pytest.raises(LockHeld):
        hold(tmp_path / "lock")
    again = hold(tmp_path / "lock")
    lock.release()
    with pytest.raises(LockHeld):
        hold(tmp_path / "lock")
    again.release()


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    def is_free() -> bool:
        with contextlib.suppress(LockHeld):
            hold(tmp_path / "lock").release()
            return True
        return False

    lock = hold(tmp_path / "lock")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    try:
        lock.release()
        await_that(is_free, 5)  # the kernel closes a child's descriptors a moment after the child has begun
    finally:
        child.kill()
        child.wait()


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
