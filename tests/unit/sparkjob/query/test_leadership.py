"""Of several processes of one job one leads, and of several that would write a checkpoint one does."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.rig.waiting import patient
from tocsin.runtime.lock import LockHeld, hold
from tocsin.sparkjob.query import leadership
from tocsin.sparkjob.query.leadership import Lead, own


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the JVM of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as one:
        yield one
        one.kill()


def test_a_second_process_is_refused_unless_it_is_to_run_beside(tmp_path: Path) -> None:
    with Lead(tmp_path / "lock", beside=False) as first:
        assert first.held
        with pytest.raises(LockHeld):
            Lead(tmp_path / "lock", beside=False)
        with Lead(tmp_path / "lock", beside=True) as second:
            assert not second.held


def test_the_one_beside_leads_as_soon_as_the_other_has_ended(tmp_path: Path) -> None:
    took = threading.Event()
    first = Lead(tmp_path / "lock", beside=False)
    with Lead(tmp_path / "lock", beside=True) as second:
        second.follow(took.set)
        assert not took.wait(0.3)
        first.close()
        assert took.wait(patient(5))
        assert second.held


def test_one_that_leads_from_the_start_is_told_nothing(tmp_path: Path) -> None:
    took = threading.Event()
    with Lead(tmp_path / "lock", beside=True) as only:
        assert only.held
        only.follow(took.set)
        assert not took.wait(0.3)


def test_one_that_no_longer_waits_gets_nothing(tmp_path: Path) -> None:
    took = threading.Event()
    first = Lead(tmp_path / "lock", beside=False)
    second = Lead(tmp_path / "lock", beside=True)
    second.follow(took.set)
    second.close()
    first.close()
    assert not took.wait(0.3)
    hold(tmp_path / "lock").release()


def test_a_checkpoint_has_one_writer(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    lock = own(tmp_path / "f1", process.pid)
    with pytest.raises(LockHeld):
        own(tmp_path / "f1", process.pid)
    own(tmp_path / "f2", process.pid).release()
    lock.release()


def test_the_jvm_of_a_killed_writer_is_ended_before_another_one_writes(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "_OUTLIVES_SECONDS", 0.3)
    own(tmp_path, process.pid).release()
    own(tmp_path, psutil.Process().pid).release()
    assert not psutil.pid_exists(process.pid)


def test_a_stranger_with_the_same_number_is_left_alone(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    (tmp_path / "jvm").write_text(f"{process.pid} {psutil.Process(process.pid).create_time() - 100}")
    own(tmp_path, psutil.Process().pid).release()
    assert process.poll() is None


@pytest.mark.parametrize("note", ["", "nonsense", "1 2 3"])
def test_a_broken_note_is_no_hindrance(tmp_path: Path, note: str) -> None:
    (tmp_path / "jvm").write_text(note)
    own(tmp_path, psutil.Process().pid).release()
    assert (tmp_path / "jvm").read_text().startswith(f"{psutil.Process().pid} ")
