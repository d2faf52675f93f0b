"""Findings of one detector on one day, as a stream and a backfill may have said them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tocsin.declare.model.finding import Finding, Origin, finding_id
from tocsin.history.backfill.parity.comparison import ReportedFinding, Streamed

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
V1, V2 = "aaaaaaaaaaaa", "bbbbbbbbbbbb"


def finding(score: float = 60, *, user: str = "mallory", at: datetime = NOON, **changes: Any) -> Finding:
    """A finding of one window of ten seconds that begins at `at`."""
    is_urgent = score > 100
    values: dict[str, Any] = {
        "detector": "failed_logins",
        "version": "v1",
        "entity": {"user_id": user},
        "window_start": at,
        "window_end": at + timedelta(seconds=10),
        "level": "urgent" if is_urgent else "email",
        "score": score,
        "limit": 100 if is_urgent else 50,
    } | changes
    identity = finding_id(values["detector"], values["entity"], values["window_start"], values["window_end"])
    return Finding(**({"finding_id": identity} | values))


def found(score: float, at: int = 0, *, user: str = "mallory", version: str = V1, at_least: bool = False) -> Finding:
    """A finding of the window that begins `at` seconds after NOON, of a backfill."""
    start = NOON + timedelta(seconds=at)
    return finding(score, user=user, at=start, version=version, at_least=at_least, origin=Origin.BACKFILL)


def streamed(score: float, at: int = 0, **changes: Any) -> Streamed:
    """The same, as the stream may have said it."""
    one = found(score, at, **changes)
    return Streamed(one, ReportedFinding.of(one))
