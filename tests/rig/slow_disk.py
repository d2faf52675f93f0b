"""A disk that takes so many writes a second, and on which each write waits: a file as a block device, throttled."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.lacking import give_up

# The kernel's own limit of a device; blkio of cgroups v1 has it for all processes at once, as a slow disk is slow.
_LIMIT = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device")
_PROBES = 5


class SlowDisk:
    """A file system of its own on the block device `device`."""

    def __init__(self, folder: Path, device: str) -> None:
        number = os.stat(device).st_rdev
        self._folder, self._device = folder, f"{os.major(number)}:{os.minor(number)}"

    def allow(self, writes: int) -> None:
        """Let it take so many writes a second, and see that this is so; 0 for as many as come."""
        _LIMIT.write_text(f"{self._device} {writes}\n")
        if writes:
            began = time.monotonic()
            for _ in range(2 * _PROBES):
                (self._folder / "probe").write_text(str(began))
            assert time.monotonic() - began > _PROBES / writes, "the disk is not slow"


@contextlib.contextmanager
def slow_disk(folder: Path, megabytes: int) -> Iterator[SlowDisk]:
    """A disk at `folder`, which is made; fast at first.

    Skips the test where the kernel has no such limit. Where none can be had otherwise, too, but fails it in CI.
    """
    if not _LIMIT.exists():
        pytest.skip(f"there is no {_LIMIT}: it takes blkio of cgroups v1")
    folder.mkdir(parents=True)
    image = folder.with_suffix(".image")
    with contextlib.ExitStack() as stack:
        try:
            with image.open("wb") as file:
                file.truncate(megabytes << 20)
            stack.callback(image.unlink)
            # Without a journal, which would turn small writes into few large ones.
            _run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(image))
            device = _run("losetup", "--find", "--show", str(image))
            stack.callback(_run, "losetup", "--detach", device)
            _run("mount", "-o", "sync", device, str(folder))
            stack.callback(_run, "umount", "--lazy", str(folder))
            (folder / "lost+found").rmdir()
        except (OSError, subprocess.CalledProcessError) as error:
            give_up(f"a slow disk cannot be had here: it takes root and losetup: {error}")
        disk = SlowDisk(folder, device)
        stack.callback(disk.allow, 0)
        yield disk


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
