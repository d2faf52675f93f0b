"""The contract of a finding: one computed match, an immutable fact with a deterministic identity.

Findings travel as JSON on the `findings` topic, keyed by `finding_id`. Later versions of one finding are upserts: the
same `finding_id` with a higher score. No processing time and no code version is part of the identity, so a restart, a
replay or a backfill merges and rings nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.errors import InvalidEvent
from tocsin.declare.model.sizes import shortened

MAX_EVIDENCE = 10

CUT = "cut_for_length"
"""In the context of a finding: what was left out of it because it was too long."""

_RANK = {"email": 1, "urgent": 2}


class Origin(StrEnum):
    """The way in which a finding was computed."""

    STREAM = "stream"
    BACKFILL = "backfill"


class Finding(BaseModel, frozen=True, extra="ignore"):
    """One computed match.

    Attributes:
        entity: who or what it is about; every value as text, never null. One of more than TEXT_BYTES (512) is its
            beginning with a mark, see `tocsin.declare.model.sizes.shortened`; the identity is that of the whole value.
        window_start, window_end: UTC; None for a per-event detector.
        at_least: the score is a lower bound within one rung of the emission ladder.
        evidence: up to 10 sample events, each at most SAMPLE_BYTES (4,096) as JSON; longer ones are left out.
        context: further columns of the detector, each at most SAMPLE_BYTES; texts are shortened as in `entity`, and
            other values left out. `cut_for_length` in it names what was left out: columns, or `evidence`.
        event_time_max: latest event time behind the score, UTC; None when the detector does not give it.
        detected_at: append time of the record on `findings`, UTC; None until it was written.
        discriminator: empty for windows; the identity of the event for per-event detectors.
    """

    finding_id: str
    detector: str
    version: str
    entity: dict[str, str]
    window_start: datetime | None = None
    window_end: datetime | None = None
    level: str = Field(pattern="^(email|urgent)$")
    score: float = Field(allow_inf_nan=False)
    limit: float
    at_least: bool = False
    evidence: list[Any] = Field(default_factory=list, max_length=MAX_EVIDENCE)
    context: dict[str, Any] = Field(default_factory=dict)
    event_time_max: datetime | None = None
    origin: Origin = Origin.STREAM
    run_id: str = ""
    detected_at: datetime | None = None
    discriminator: str = ""

    @field_validator("entity")
    @classmethod
    def _bound_entity(cls, entity: dict[str, str]) -> dict[str, str]:
        return {name: shortened(value) for name, value in entity.items()}

    @property
    def moment(self) -> datetime:
        """Return the start of its window, else its event time, else its append time, UTC; ValueError without any."""
        moment = self.window_start or self.event_time_max or self.detected_at
        if moment is None:
            raise ValueError(f"finding {self.finding_id} of {self.detector} has neither window nor event time")
        return moment

    @property
    def day(self) -> date:
        """The UTC day to which it belongs."""
        return self.moment.astimezone(UTC).date()

    @property
    def rank(self) -> tuple[int, float]:
        """Orders versions of one finding: within a code version the highest level, then the highest score, wins."""
        return (_RANK[self.level], self.score)

    def to_json(self) -> bytes:
        """The value of its record on `findings`."""
        return self.model_dump_json(exclude_none=True).encode()

    @classmethod
    def from_record(cls, value: bytes | None, topic: str, partition: int, offset: int) -> Finding:
        """The finding in a record of `findings`; InvalidEvent, where a retry does not help, when it is none."""
        try:
            return cls.model_validate_json(value or b"")
        except ValidationError as error:
            reasons = [f"{'.'.join(map(str, d['loc'])) or 'value'}: {d['msg']}" for d in error.errors()]
            raise InvalidEvent(reasons, topic, partition, offset) from error


def next_rung(rung: int) -> int:
    """The next count above `rung` that a stream tells of a large burst (ADR 0005): about a tenth more.

    A score that is `at_least` a rung is below the next one in truth.
    """
    return max(rung + 1, rung + rung // 10)


def canonical_entity(entity: dict[str, str]) -> str:
    """`entity` as canonical JSON: keys sorted, no spaces, and control characters escaped as Spark's to_json does.

    Python writes their escapes in lower case and Jackson, below Spark, in upper case; the identity of a finding must
    not depend on who computed it.
    """
    text = json.dumps(entity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return re.sub(r"\\u[0-9a-f]{4}", lambda match: "\\u" + match.group()[2:].upper(), text)


def finding_id(
    detector: str, entity: dict[str, str], start: datetime | None, end: datetime | None, event: str = ""
) -> str:
    """The identity of a finding: 32 hex digits of the SHA-256 of its parts, one a line.

    Values of `entity` are text. `start` and `end` of the window are time-zone aware, None for per-event detectors.
    `event` is empty for windows, else the event's identity "topic/partition/offset".
    """
    micros = ["" if moment is None else str((moment - EPOCH) // timedelta(microseconds=1)) for moment in (start, end)]
    text = "\n".join([detector, canonical_entity(entity), *micros, event])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
