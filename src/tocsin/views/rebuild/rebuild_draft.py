"""Remember which days of a view's new build are on its topic: `<state>/views/<name>.draft.json`.

A run that was killed goes on behind the last day that it had noted. What was made of another version of the view, or of
other versions of its days, never gets into the same build.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from tocsin.runtime import state_file


@dataclass(frozen=True)
class Draft:
    """A build that is being computed from history.

    Attributes:
        request: id of the rebuild, which is to be asked for once all days are there.
        build: its name.
        days: that are on the topic, in order, each with the versions that it was made of.
    """

    request: str
    build: str
    days: dict[date, str] = field(default_factory=dict)

    def goes_on_with(self, days: Mapping[date, str]) -> bool:
        """Return whether it has a beginning of `days`; what was dropped before them does not matter."""
        first = min(days, default=date.max)
        done = [one for one in self.days.items() if one[0] >= first]
        return done == list(itertools.islice(days.items(), len(done)))


def read_draft(state: Path, view: str) -> Draft | None:
    """Read the draft of `view`; None if there is none, or it cannot be read."""
    return state_file.read(_path(state, view), Draft, None)


def write_draft(state: Path, view: str, draft: Draft) -> None:
    """Replace the draft of `view`.

    Raises:
        OSError: the state folder cannot be written; it is as before.
    """
    state_file.write(_path(state, view), Draft, draft)


def end_draft(state: Path, view: str) -> None:
    """Remove the draft of `view`: it is asked for, or nobody wants it any more."""
    _path(state, view).unlink(missing_ok=True)


def _path(state: Path, view: str) -> Path:
    return state / "views" / f"{view}.draft.json"
