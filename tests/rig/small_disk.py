"""A disk of a few megabytes that can be filled, made read-only, and freed again."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.rig.lacking import give_up


class SmallDisk:
    """A file system of its own, mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        with self._filler.open("ab") as file, contextlib.suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(65536))
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"0")

    def make_room(self) -> None:
        self._filler.unlink()

    def allow_writing(self, allowed: bool) -> None:
        subprocess.run(["mount", "-o", f"remount,{'rw' if allowed else 'ro'}", str(self.folder)], check=True)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A disk at `folder`, which is made. Skips the test where nothing may be mounted, but fails it in CI."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        give_up(f"a small disk cannot be mounted here (root may): {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
