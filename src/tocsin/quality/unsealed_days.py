"""Days that could not be sealed, and days that the gate refuses, and why: files in `<state>/quality/<source>/`.

A day that could not be sealed is in `unsealed.json` until it is. It has no verdict: it has never come before the gate.

A day is in `refused.json` until it is judged again and passes, or somebody accepts it. The versions of the days decide;
this is for whoever has no time to read them, such as status and mails.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from pydantic import BaseModel

from tocsin.platform import state_file
from tocsin.quality.verdict_files import FOLDER

_REFUSED = "refused.json"


class Unsealed(BaseModel, frozen=True, extra="forbid"):
    """Why a day could not be sealed when that was tried last, and when that was (UTC)."""

    reason: str
    at: datetime

    @property
    def text(self) -> str:
        """The same in one sentence, for people."""
        return f"could not be sealed at {self.at:%Y-%m-%d %H:%M} UTC: {self.reason}"


class Refused(BaseModel, frozen=True, extra="forbid"):
    """The version of a day that the gate refuses, since when (UTC), and which rules failed."""

    version: str
    at: datetime
    reason: str


def refused_days(state: Path, source: str) -> dict[date, Refused]:
    """Read the days of `source` that the gate refuses, the oldest first; `state` is the state folder."""
    return state_file.read(state / FOLDER / source / _REFUSED, dict[date, Refused], {})


def note_refused(state: Path, source: str, days: Mapping[date, Refused]) -> bool:
    """Note that the gate refuses `days` of `source` and no others. Only for the holder of its sealing lock.

    Returns whether what is noted has changed.

    Raises:
        OSError: as `note`.
    """
    if refused_days(state, source) == days:
        return False
    path = state / FOLDER / source / _REFUSED
    if days:
        state_file.write(path, dict[date, Refused], dict(sorted(days.items())))
    else:
        path.unlink(missing_ok=True)
    return True


def refusal(source: str, days: Mapping[date, Refused]) -> str:
    """Say in a line which `days` of `source` are refused, at least one, and what to type."""
    newest = max(days)
    which = str(newest) if len(days) == 1 else f"{len(days)} days from {min(days)} to {newest}"
    accept = judge_or_accept(source, newest)[1]
    why = f"Why: tocsin history list --source {source}. To publish a day as it is: {accept}"
    return f"{source}: the quality gate refuses {which}. {why}"


def judge_or_accept(source: str, day: date) -> tuple[str, str]:
    """Name the command that judges a refused day again, and the one that publishes it as it is."""
    seal = f"tocsin history seal --source {source} --day {day}"
    return seal, f"tocsin history accept {source} --day {day} --by NAME --reason TEXT"


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
