"""Of several processes that would write a checkpoint one does."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tocsin.declare.settings import Settings
from tocsin.platform.lock import LockHeld
from tocsin.spark.query import leadership
from tocsin.spark.query.leadership import own

SETTINGS = Settings()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the JVM of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as one:
        yield one
        one.kill()


def test_a_checkpoint_has_one_writer(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    lock = own(SETTINGS, tmp_path / "f1", process.pid)
    with pytest.raises(LockHeld):
        own(SETTINGS, tmp_path / "f1", process.pid)
    own(SETTINGS, tmp_path / "f2", process.pid).release()
    lock.release()


@pytest.mark.parametrize("seconds", [0, 3600])
def test_the_jvm_of_a_killed_writer_is_ended_before_another_one_writes_also_after_the_clock_was_set(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setattr(leadership, "_OUTLIVES_SECONDS", 0.3)
    own(SETTINGS, tmp_path, process.pid).release()
    created, boot = psutil.Process.create_time, psutil.boot_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + seconds)
    monkeypatch.setattr(psutil, "boot_time", lambda: boot() + seconds)
    own(SETTINGS, tmp_path, psutil.Process().pid).release()
    assert process.pid not in psutil.pids()


def test_a_stranger_with_the_same_number_is_left_alone(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    own(SETTINGS, tmp_path, process.pid).release()
    pid, started, boot = (tmp_path / "jvm").read_text().split()
    (tmp_path / "jvm").write_text(f"{pid} {float(started) - 100} {boot}")
    own(SETTINGS, tmp_path, psutil.Process().pid).release()
    (tmp_path / "jvm").write_text(f"{pid} {started} of-another-boot")
    own(SETTINGS, tmp_path, psutil.Process().pid).release()
    assert process.poll() is None


@pytest.mark.parametrize("note", ["", "nonsense", "1 2 3"])
def test_a_broken_note_is_no_hindrance(tmp_path: Path, note: str) -> None:
    (tmp_path / "jvm").write_text(note)
    own(SETTINGS, tmp_path, psutil.Process().pid).release()
    assert (tmp_path / "jvm").read_text().startswith(f"{psutil.Process().pid} ")
