"""Decide whether CI runs the tests marked `long`: `python -m tests.rig.long_tests SECONDS_SPENT` prints for how long.

They run if a change touches what they prove, and as long as all of CI may take allows it. What has changed is told by
the history of the clone: since its last tag, else since it left the main branch. If neither is known, everything has.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import PurePath

LIMIT = 90 * 60.0
"""Seconds that all of CI may take."""

LEAST = 15 * 60.0
"""Seconds without which the long tests are not begun; they take an hour and a half."""

SPARE = 8 * 60.0
"""Seconds to stop what runs and to tell."""

PROVEN = {"src", "spark_jobs", "dags", "detectors", "examples", "expectations", "sources", "locks", "tests"}
"""Folders of what they prove; a change of docs alone proves nothing new."""


def seconds_for(changed: Iterable[str] | None, spent: float) -> float:
    """Return for how long the long tests may run, 0 if not at all.

    Args:
        changed: paths of what has changed; None if that is not known.
        spent: seconds that CI has taken so far.
    """
    left = LIMIT - SPARE - spent
    return left if left >= LEAST and (changed is None or any(map(_is_proven, changed))) else 0.0


def _is_proven(path: str) -> bool:
    first, second, *_ = (*PurePath(path).parts, "")
    return first in PROVEN and (first, second) != ("tests", "unit")


def changed_files() -> list[str] | None:
    """List what differs from the last tag, or from where this branch left the main one; None if neither is known."""
    head = _git("rev-parse", "HEAD")
    bases = (
        _git("describe", "--tags", "--abbrev=0", "HEAD^"),
        *(_git("merge-base", "HEAD", main) for main in ("origin/HEAD", "origin/main", "main")),
    )
    base = next((found for found in bases if found and found != head), "")
    names = _git("diff", "--name-only", base, "HEAD") if base and head else None
    return None if names is None else names.splitlines()


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    print(int(seconds_for(changed_files(), float(sys.argv[1]))))
