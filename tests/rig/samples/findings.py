"""Findings of one detector on one day, as a stream and a backfill may have said them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tocsin.declare.model.finding import Finding, Origin, finding_id
from tocsin.history.backfill.parity.comparison import ReportedFinding, Streamed

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
V1, V2 = "aaaaaaaaaaaa", "bbbbbbbbbbbb"


def found(score: float, at: int = 0, *, user: str = "mallory", version: str = V1, at_least: bool = False) -> Finding:
    """A finding of the window that begins `at` seconds after NOON."""
    start = NOON + timedelta(seconds=at)
    end = start + timedelta(seconds=10)
    return Finding(
        finding_id=finding_id("failed_logins", {"user_id": user}, start, end),
        detector="failed_logins",
        version=version,
        entity={"user_id": user},
        window_start=start,
        window_end=end,
        level="urgent" if score > 100 else "email",
        score=score,
        limit=100 if score > 100 else 50,
        at_least=at_least,
        origin=Origin.BACKFILL,
    )


def streamed(
    score: float, at: int = 0, *, user: str = "mallory", version: str = V1, at_least: bool = False
) -> Streamed:
    finding = found(score, at, user=user, version=version, at_least=at_least)
    return Streamed(finding, ReportedFinding.of(finding))
