"""What people are to be told about jobs, once for each time that a job comes into a condition that needs them.

Level-triggered: what is to be told follows from how the jobs stand and what was told, so nothing is lost with a process
that ends between the two. The name of a piece of news is the same at each attempt. Whoever has told it notes that, and
until then it is told again: a mail server that is away keeps nobody from hearing of it later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

from tocsin import kept
from tocsin.names import file_name
from tocsin.supervision.model import Condition, History

_AGAIN_SECONDS = 60.0
_CALM_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class News:
    """One job has come into a condition that needs people.

    Attributes:
        job, condition, reason: which, how it fares and why, in words.
        at: epoch seconds at which this was found.
        last_at: epoch seconds at which it was found last, of what comes and goes within minutes; 0 of all else.
        told: whether it has reached those whose business it is.
        tried_at: epoch seconds of the last attempt to tell it; 0 before the first.
    """

    job: str
    condition: Condition
    reason: str
    at: float
    last_at: float = 0.0
    told: bool = False
    tried_at: float = 0.0

    @property
    def name(self) -> str:
        """Tells it from all other news, also of another job that came into the same condition at the same moment."""
        when = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds")
        return f"{self.condition.replace(' ', '-')}__{self.job}__{when}"

    def is_due(self, now: float) -> bool:
        """Whether to try to tell it now."""
        return not self.told and now - self.tried_at >= _AGAIN_SECONDS


def news(
    history: History, before: Mapping[str, News], now: float, quarantining: Mapping[str, str] | None = None
) -> dict[str, News]:
    """The news that stand, by job: those of `before` whose condition lasts, and new ones.

    A restart is no recovery: news stand until the job is fine again, comes into another failing condition, or is no
    longer kept running. That much goes to quarantine stands until an hour has passed without it.

    Args:
        history: how jobs fare in the eyes of the policy.
        before: what stood at the last call.
        now: epoch seconds.
        quarantining: jobs of whose records much goes to quarantine now, with the reason in words.
    """
    standing: dict[str, News] = {}
    for job, past in history.jobs.items():
        old = before.get(job)
        if past.condition is Condition.FINE:
            standing |= _of_quarantine(job, old, now, (quarantining or {}).get(job))
            continue
        if old is not None and past.condition in (Condition.RESTARTING, old.condition):
            standing[job] = old
        elif past.condition is not Condition.RESTARTING:
            standing[job] = News(job=job, condition=past.condition, reason=past.reason, at=now)
    return standing


def _of_quarantine(job: str, old: News | None, now: float, reason: str | None) -> dict[str, News]:
    """The news of a job that runs well, by its name; a source that sends both kinds in turn is told of once."""
    known = old if old is not None and old.condition is Condition.QUARANTINING else None
    if reason is None:
        return {job: known} if known is not None and now - known.last_at < _CALM_SECONDS else {}
    made = News(job=job, condition=Condition.QUARANTINING, reason=reason, at=now) if known is None else known
    return {job: replace(made, last_at=now)}


_NEWS = TypeAdapter(dict[str, News])


def read_news(state: Path) -> dict[str, News]:
    """What the state folder keeps, by job; nothing when there is no such file, or a broken one."""
    return kept.read(state / "supervision" / "news.json", _NEWS, {})


def write_news(state: Path, standing: dict[str, News]) -> None:
    """Keep `standing`.

    Raises:
        OSError: the state folder cannot be written.
    """
    kept.write(state / "supervision" / "news.json", _NEWS, standing)


def note_told(state: Path, name: str) -> None:
    """Note that the news with this name have reached those whose business they are.

    Raises:
        OSError: the state folder cannot be written; then they are told again.
    """
    _notes(state).mkdir(parents=True, exist_ok=True)
    (_notes(state) / file_name(name)).touch()


def was_told(state: Path, one: News) -> bool:
    """Whether that was noted."""
    return (_notes(state) / file_name(one.name)).exists()


def forget_told(state: Path, standing: Mapping[str, News]) -> None:
    """Remove the notes on all other news than those that stand.

    Raises:
        OSError: the state folder cannot be written.
    """
    kept_notes = {file_name(one.name) for one in standing.values()}
    for note in _notes(state).glob("*"):
        if note.name not in kept_notes:
            note.unlink(missing_ok=True)


def _notes(state: Path) -> Path:
    return state / "supervision" / "told"
