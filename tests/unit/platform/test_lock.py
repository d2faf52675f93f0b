import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rig.waiting import patient
from tocsin.platform.lock import LockHeld, hold

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


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    with hold(tmp_path / "lock"), pytest.raises(LockHeld):
        hold(tmp_path / "lock")
    hold(tmp_path / "lock").release()


def test_releasing_twice_does_no_harm(tmp_path: Path) -> None:
    lock = hold(tmp_path / "lock")
    lock.release()
    lock.release()


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = hold(tmp_path / "lock")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    try:
        lock.release()
        _take_within(5.0, tmp_path / "lock")
    finally:
        child.kill()
        child.wait()


def _take_within(seconds: float, path: Path) -> None:
    """Take the lock and give it back. The kernel closes a child's descriptors a moment after the child has begun."""
    begun = time.monotonic()
    while True:
        try:
            return hold(path).release()
        except LockHeld:
            if time.monotonic() - begun > patient(seconds):
                raise
        time.sleep(0.01)
