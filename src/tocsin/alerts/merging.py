"""Merge one more record of a finding into what the alerts DB holds of it, its trajectory included. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pydantic import BaseModel

from tocsin.alerts import alert_policy
from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.finding import Finding, Origin

MAX_POINTS = 200
Points = list[tuple[int, float]]
"""The trajectory of a score: time in microseconds since 1970, and score; ordered by time."""


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

    def merged(self, new: Finding, declared: str | None) -> StreamWord:
        """The same after one more record of the stream; `declared` as for `policy.merged`."""
        stored = new.model_copy(update={name: getattr(self, name) for name in StreamWord.model_fields})
        return self if alert_policy.merged(stored, new, declared) is stored else StreamWord.of(new)


@dataclass(frozen=True)
class LastWord:
    """The complete backfill of a finding's day that is in the DB: the version and the run that computed it."""

    version: str
    run_id: str


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A finding as the alerts DB keeps it.

    Attributes:
        finding: the record that stays after merging.
        points: how its score rose.
        first_detected_at: when its first record was detected, UTC.
        stream: what the stream said, where `finding` is a backfill's and the stream has found it too.
        superseded_at, superseded_by: since when (UTC) its day's backfill no longer reproduces it, and that run's id;
            None and empty while it counts.
    """

    finding: Finding
    points: Points
    first_detected_at: datetime
    stream: StreamWord | None = None
    superseded_at: datetime | None = None
    superseded_by: str = ""


def first(finding: Finding, declared: str | None, last_word: LastWord | None, now: datetime) -> Kept:
    """Begin a finding with its first record, `finding`; `last_word` is None where its day has no backfill."""
    assert finding.detected_at is not None
    stored = Kept(finding=finding, points=extended([], finding), first_detected_at=finding.detected_at)
    if finding.origin is Origin.BACKFILL or last_word is None:
        return stored
    if not alert_policy.has_last_word(last_word.version, finding.version, declared):
        return stored
    return replace(stored, superseded_at=now, superseded_by=last_word.run_id)


def after(stored: Kept, finding: Finding, declared: str | None, last_word: LastWord | None) -> Kept:
    """Add one more record of the same finding; equal to `stored` when that is nothing new."""
    best = alert_policy.merged(stored.finding, finding, declared)
    points = stored.points if best.version == stored.finding.version else []
    if best.version == finding.version:
        points = extended(points, finding)
    stored = replace(stored, finding=best, points=points, stream=_stream_word(stored, best, finding, declared))
    return (
        replace(stored, superseded_at=None, superseded_by="") if _reinstates(finding, declared, last_word) else stored
    )


def _stream_word(stored: Kept, best: Finding, finding: Finding, declared: str | None) -> StreamWord | None:
    if best.origin is not Origin.BACKFILL:
        return None
    word = stored.stream if stored.finding.origin is Origin.BACKFILL else StreamWord.of(stored.finding)
    if finding.origin is Origin.BACKFILL:
        return word
    return StreamWord.of(finding) if word is None else word.merged(finding, declared)


def _reinstates(finding: Finding, declared: str | None, last_word: LastWord | None) -> bool:
    if finding.origin is Origin.BACKFILL or last_word is None:
        return finding.origin is Origin.BACKFILL
    return not alert_policy.has_last_word(last_word.version, finding.version, declared)


def extended(points: Points, finding: Finding) -> Points:
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
