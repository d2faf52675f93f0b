"""Compare the findings of the stream with those of a backfill. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, computed_field

from tocsin.declare.model.finding import Finding, next_rung

_SAME = 1e-9
"""Sums of fractions come out a little different when they are added in another order."""


class ReportedFinding(BaseModel, frozen=True, extra="ignore"):
    """A finding as one side reported it.

    Attributes:
        version: of the detector that said it.
        level: "email" or "urgent".
        score: higher is more anomalous.
        at_least: the score is a lower bound within one rung of the emission ladder.
        model: day and hash of the model that gave the score; empty without, or where that is not known any more.
    """

    version: str
    level: str
    score: float
    at_least: bool = False
    model: str = ""

    @classmethod
    def of(cls, finding: Finding) -> ReportedFinding:
        """Take what `finding` says."""
        model = str((finding.context or {}).get("model", ""))
        return cls(
            version=finding.version, level=finding.level, score=finding.score, at_least=finding.at_least, model=model
        )


class Side(StrEnum):
    """The sides that have a finding."""

    STREAM = "only in the stream"
    BATCH = "only in the batch"
    BOTH = "differs"
    """It is in both, and level or score differ."""


class DifferenceReason(StrEnum):
    """Why stream and batch differ."""

    VERSION = "another version"
    MODEL = "another model"
    OPEN = "not closed yet"
    MISSING = "data missing"
    LATE = "late"
    QUARANTINED = "quarantined"
    UNEXPLAINED = "unexplained"


class Difference(BaseModel, frozen=True):
    """One finding of which stream and batch do not say the same.

    Attributes:
        finding_id, entity: see `Finding`.
        start, end: of its window, UTC; for a detector of single events both are the time of its event.
        stream, batch: what they say; null where it is not.
        side: where it is.
        reason, why: see `DifferenceReason`, and one sentence for people.
    """

    finding_id: str
    entity: dict[str, str]
    start: datetime
    end: datetime
    stream: ReportedFinding | None
    batch: ReportedFinding | None
    reason: DifferenceReason = DifferenceReason.UNEXPLAINED
    why: str = ""

    @computed_field  # type: ignore[prop-decorator]  # mypy has no decorated properties
    @property
    def side(self) -> Side:
        """See above."""
        if self.stream is None:
            return Side.BATCH
        return Side.STREAM if self.batch is None else Side.BOTH

    def because(self, reason: DifferenceReason, why: str) -> Difference:
        """The same with a reason."""
        return self.model_copy(update={"reason": reason, "why": why})


@dataclass(frozen=True)
class Streamed:
    """A finding and what the stream said of it last, whatever has replaced it since."""

    finding: Finding
    reported: ReportedFinding


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sides: how many findings each has, and how many are the same in both.

    `differences` are all others, the earliest window first.
    """

    stream: int
    batch: int
    same: int
    differences: tuple[Difference, ...]


def compare(stream: Iterable[Streamed], batch: Iterable[Finding]) -> Comparison:
    """Compare what both sides found of one detector and day, finding by finding."""
    streamed = {one.finding.finding_id: one for one in stream}
    batched = {one.finding_id: one for one in batch}
    differences = []
    for key in streamed.keys() | batched.keys():
        ours, theirs = streamed.get(key), batched.get(key)
        streamed_finding, final = ours.reported if ours else None, ReportedFinding.of(theirs) if theirs else None
        if not agree(streamed_finding, final):
            finding = theirs or (ours.finding if ours else None)
            assert finding is not None
            differences.append(_difference(finding, streamed_finding, final))
    total = len(streamed.keys() | batched.keys())
    differences.sort(key=lambda one: (one.start, one.finding_id))
    return Comparison(len(streamed), len(batched), total - len(differences), tuple(differences))


def agree(stream: ReportedFinding | None, final: ReportedFinding | None) -> bool:
    """Return whether the stream's finding equals that of all its events; None is no finding.

    Levels are compared exactly, and scores too, but for sums in another order. Above the highest limit a stream's
    `at_least` is a lower bound within one rung (ADR 0005).
    """
    if stream is None or final is None:
        return stream is final
    if stream.level != final.level:
        return False
    if math.isclose(stream.score, final.score, rel_tol=_SAME, abs_tol=_SAME):
        return True
    return stream.at_least and stream.score <= final.score < next_rung(int(stream.score))


def _difference(finding: Finding, stream: ReportedFinding | None, batch: ReportedFinding | None) -> Difference:
    start = finding.window_start or finding.event_time_max
    if start is None:
        raise ValueError(f"finding {finding.finding_id} has neither a window nor an event time")
    end = finding.window_end or start
    return Difference(
        finding_id=finding.finding_id, entity=finding.entity, start=start, end=end, stream=stream, batch=batch
    )
