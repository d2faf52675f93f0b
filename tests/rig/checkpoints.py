"""Sees from outside where a query stands between reading and committing, by the files of its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.rig.waiting import patient

_EVERY_SECONDS = 0.0002


@dataclass(frozen=True)
class Logs:
    """The two logs of a checkpoint: `offsets/N` says what batch N reads, `commits/N` that it is done."""

    query: Path

    @classmethod
    def of(cls, checkpoint: Path) -> Logs | None:
        """The logs below a job's checkpoint folder that were written last; None when there are none."""
        commits = [path for path in checkpoint.rglob("commits") if path.is_dir()]
        return cls(max(commits, key=lambda path: path.stat().st_mtime_ns).parent) if commits else None

    def planned(self) -> int:
        """The last batch whose offsets are written; -1 before the first."""
        return _last(self.query / "offsets")

    def committed(self) -> int:
        """The last batch that is done; -1 before the first."""
        return _last(self.query / "commits")

    def is_pending(self) -> bool:
        """Whether a batch has its offsets written and is not committed."""
        committed = self.committed()  # first, so that a commit in between is not taken for a batch that waits
        return self.planned() > committed

    def await_flushed(self, seconds: float = 60.0) -> bool:
        """Wait for a moment between flush and commit: all that a batch has written is out; false if none came."""
        await_moment(lambda: not self.is_pending(), 1.0)
        return await_moment(self.is_pending, seconds)


def await_moment(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` came true within `seconds`; looks without rests: it may hold for a millisecond."""
    end = time.monotonic() + patient(seconds)
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_EVERY_SECONDS)
    return True


def _last(folder: Path) -> int:
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=-1)
