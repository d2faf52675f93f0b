"""Decide which record of a finding stays, and merge one more into what the alerts DB holds of it. Pure.

The rules are in `choose_record`, and in `has_last_word` for a complete backfill that no longer reproduces a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import BaseModel

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.finding import Finding, Origin

MAX_POINTS = 200
_MAX_AHEAD = timedelta(days=400)
Points = list[tuple[int, float]]
"""The trajectory of a score: time in microseconds since 1970, and score; ordered by time."""


def choose_record(stored: Finding, new: Finding, declared: str | None) -> Finding:
    """Choose the record of a finding that stays: `stored`, or `new`, which was appended later.

    Across code versions the declared one (`declared`, None when unknown) wins, else the later. Within a version a
    backfill is final, and among the others the highest level, then the highest score, wins.
    """
    if new.version != stored.version:
        return stored if stored.version == declared else new
    if new.origin is Origin.BACKFILL or stored.origin is Origin.BACKFILL:
        return new if new.origin is Origin.BACKFILL else stored
    return new if (new.rank, not new.at_least) > (stored.rank, not stored.at_least) else stored


def has_last_word(backfilled: str, version: str, declared: str | None) -> bool:
    """Return whether a complete backfill of a day by `backfilled` decides which findings of `version` that day has.

    Of its own version and of any other, unless that is the one declared now (None when unknown) and this is not.
    """
    return version == backfilled or version != declared


def faults_of(finding: Finding) -> list[str]:
    """Why a well-formed finding cannot be stored all the same; empty for one that can."""
    faults = [] if 0 < len(finding.finding_id) <= 64 else ["finding_id: must have 1 to 64 characters"]
    if not finding.entity:
        faults.append("entity: is empty")
    start, end, latest = finding.window_start, finding.window_end, (finding.detected_at or EPOCH) + _MAX_AHEAD
    times = (("window_start", start), ("window_end", end), ("event_time_max", finding.event_time_max))
    wrong = [(name, time) for name, time in times if time is not None and _is_absurd(time, latest)]
    if wrong:
        return faults + [
            f"{name}: {time.isoformat()} has no time zone, is before 1970 or far ahead" for name, time in wrong
        ]
    if (start is None) != (end is None):
        faults.append("window_start and window_end: go together")
    if start is not None and end is not None and end <= start:
        faults.append("window_end: is not after window_start")
    return faults


def _is_absurd(time: datetime, latest: datetime) -> bool:
    return time.tzinfo is None or not EPOCH <= time <= latest


class StreamWord(BaseModel, frozen=True, extra="ignore"):
    """The last word of the stream on a finding of which a backfill has the last word.

    Attributes:
        version, level, score, limit, at_least: as in `Finding`, of the record that would have stayed without backfill.
        detected_at: when that record was appended, UTC.
    """

    version: str
    level: str
    score: float
    limit: float
    at_least: bool
    detected_at: datetime | None

    @classmethod
    def of(cls, finding: Finding) -> StreamWord:
        """Take what the stream's record `finding` says."""
        return cls(**{name: getattr(finding, name) for name in cls.model_fields})

    def merge(self, new: Finding, declared: str | None) -> StreamWord:
        """The same after one more record of the stream; `declared` as for `choose_record`."""
        stored = new.model_copy(update={name: getattr(self, name) for name in StreamWord.model_fields})
        return self if choose_record(stored, new, declared) is stored else StreamWord.of(new)


@dataclass(frozen=True)
class LastWord:
    """The complete backfill of a finding's day that is in the DB: the version and the run that computed it."""

    version: str
    run_id: str


class StoredFinding(BaseModel, frozen=True):
    """A finding as the alerts DB holds it.

    Attributes:
        first_detected_at: append time of its first record, UTC.
        alert: id of its alert; None when it has none (shadow, signal, old backfill, unknown detector).
        trajectory: how its score rose; time in microseconds since 1970, score.
        superseded_at: since when the backfill of its day no longer reproduces it, UTC; None while it counts.
        stream: what the stream said last, where `finding` is a backfill's; None when the stream has not found it, or
            `finding` is the stream's own.
    """

    finding: Finding
    first_detected_at: datetime
    alert: int | None
    trajectory: Points
    superseded_at: datetime | None = None
    superseded_by: str = ""
    stream: StreamWord | None = None

    @property
    def start(self) -> datetime:
        """Return the start of its window, or the time of its event, UTC."""
        return self.finding.window_start or self.finding.event_time_max or self.first_detected_at

    @property
    def end(self) -> datetime:
        """Return the end of its window, or the time of its event, UTC."""
        return self.finding.window_end or self.start


def first(finding: Finding, declared: str | None, last_word: LastWord | None, now: datetime) -> StoredFinding:
    """Begin a finding with its first record, `finding`; `last_word` is None where its day has no backfill."""
    detected_at = finding.detected_at or now
    points = extend([], finding)
    stored = StoredFinding(finding=finding, first_detected_at=detected_at, alert=None, trajectory=points)
    if finding.origin is Origin.BACKFILL or last_word is None:
        return stored
    if not has_last_word(last_word.version, finding.version, declared):
        return stored
    return stored.model_copy(update={"superseded_at": now, "superseded_by": last_word.run_id})


def after(stored: StoredFinding, finding: Finding, declared: str | None, last_word: LastWord | None) -> StoredFinding:
    """Add one more record of the same finding; equal to `stored` when that is nothing new."""
    best = choose_record(stored.finding, finding, declared)
    points = stored.trajectory if best.version == stored.finding.version else []
    if best.version == finding.version:
        points = extend(points, finding)
    word = _stream_word(stored, best, finding, declared)
    changes: dict[str, object] = {"finding": best, "trajectory": points, "stream": word}
    if _reinstates(finding, declared, last_word):
        changes |= {"superseded_at": None, "superseded_by": ""}
    return stored.model_copy(update=changes)


def _stream_word(stored: StoredFinding, best: Finding, finding: Finding, declared: str | None) -> StreamWord | None:
    if best.origin is not Origin.BACKFILL:
        return None
    word = stored.stream if stored.finding.origin is Origin.BACKFILL else StreamWord.of(stored.finding)
    if finding.origin is Origin.BACKFILL:
        return word
    return StreamWord.of(finding) if word is None else word.merge(finding, declared)


def _reinstates(finding: Finding, declared: str | None, last_word: LastWord | None) -> bool:
    if finding.origin is Origin.BACKFILL or last_word is None:
        return finding.origin is Origin.BACKFILL
    return not has_last_word(last_word.version, finding.version, declared)


def extend(points: Points, finding: Finding) -> Points:
    """Add the score of `finding` to `points`, at its latest event time or else when it was appended.

    A repeated point changes nothing. Above `MAX_POINTS` every second inner point is left out.
    """
    time = finding.event_time_max or finding.detected_at
    if time is None:
        return points
    point = ((time - EPOCH) // timedelta(microseconds=1), finding.score)
    if point in points[-MAX_POINTS:]:
        return points
    more = sorted([*points, point])
    return more if len(more) <= MAX_POINTS else [more[0], *more[1:-1:2], more[-1]]


def time_of(micros: int) -> datetime:
    """Convert the time of a point to UTC."""
    return EPOCH + timedelta(microseconds=micros)
