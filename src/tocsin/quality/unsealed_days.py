"""Days that could not be sealed, and why: `<state>/quality/<source>/unsealed.json`, until they are.

Such a day has no verdict: it has never come before the gate.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

from pydantic import BaseModel

from tocsin.quality.verdict_files import FOLDER
from tocsin.runtime import state_file


class Unsealed(BaseModel, frozen=True, extra="forbid"):
    """Why a day could not be sealed when that was tried last, and when that was (UTC)."""

    reason: str
    at: datetime

    @property
    def text(self) -> str:
        """The same in one sentence, for people."""
        return f"could not be sealed at {self.at:%Y-%m-%d %H:%M} UTC: {self.reason}"


def unsealed_days(state: Path, source: str) -> dict[date, Unsealed]:
    """The days of `source` that could not be sealed and have not been since; `state` is the state folder."""
    return state_file.read(_file(state, source), dict[date, Unsealed], {})


def note(state: Path, source: str, day: date, reason: str | None) -> bool:
    """Note why `day` could not be sealed, None where it could. Only for the holder of the sealing lock of `source`.

    Returns whether what is noted has changed.

    Raises:
        OSError: the disk is full or not writable; what was noted before is still there.
    """
    unsealed = unsealed_days(state, source)
    if reason is None and day not in unsealed:
        return False
    others = {other: one for other, one in unsealed.items() if other != day}
    if reason is not None:
        others[day] = Unsealed(reason=reason.removeprefix(f"{source} {day}: "), at=datetime.now(UTC))
    _write(state, source, others)
    return True


def forget(state: Path, source: str, before: date) -> None:
    """Remove the notes on days before `before`. Only for the holder of the sealing lock of `source`.

    Raises:
        OSError: as `note`.
    """
    unsealed = unsealed_days(state, source)
    left = {day: one for day, one in unsealed.items() if day >= before}
    if left != unsealed:
        _write(state, source, left)


def _file(state: Path, source: str) -> Path:
    return state / FOLDER / source / "unsealed.json"


def _write(state: Path, source: str, days: dict[date, Unsealed]) -> None:
    if days:
        state_file.write(_file(state, source), dict[date, Unsealed], dict(sorted(days.items())))
    else:
        _file(state, source).unlink(missing_ok=True)
