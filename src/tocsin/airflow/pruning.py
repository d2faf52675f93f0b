"""Old log files go: each minute's run leaves one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def prune(folder: Path, before: float) -> int:
    """Remove the files in `folder` that were last written before the epoch second `before`, and what is empty then.

    Links are not followed. Returns how many files went; one that cannot be removed stays until the next time.
    """
    count = 0
    for parent, _, names in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in names):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < before:
                    path.unlink()
                    count += 1
        if Path(parent) != folder:
            with contextlib.suppress(OSError):  # it holds something
                os.rmdir(parent)
    return count
