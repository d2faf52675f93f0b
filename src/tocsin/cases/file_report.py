"""What is asked of a run of a detector on a file, and what it finds there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from pydantic import BaseModel

from tocsin.declare.model.finding import Finding


@dataclass(frozen=True)
class FileRequest:
    """A detector, in any stage, to run on a file.

    Attributes:
        most: so many findings at most are returned.
        is_events: the lines are records of the events topic, not of the raw one.
        records: the source whose records its lines are, where flows make events of several.
    """

    detector: str
    file: Path
    most: int
    is_events: bool = False
    records: str = ""


class LeftOutRows(BaseModel):
    """Rows of a file that are no events for one reason.

    Attributes:
        reason: as in quarantine, or `ignored`.
        count: how many there are.
        rows: the numbers of the first of them, from 1 on; of lines, their line numbers.
    """

    reason: str
    count: int
    rows: list[int] = []


class FileReport(BaseModel):
    """What a detector finds in a file.

    Attributes:
        detector, version: its name, and the version of its code and limits.
        source: whose format the rows have.
        rows: of the file: lines, rows of CSV or of Parquet.
        events: made of them.
        left_out: the others, the most frequent reason first; a row may have several reasons.
        days_left_out: days whose events were left out, since a table that is joined has no rows for them, and why.
        first, last: the earliest and latest event time; None without events.
        total: findings in all.
        urgent: those of level urgent.
        findings: the first of them by their time.
        failed_in_step: events that a `step` raised on, which left them out.
        seconds: that it took.
    """

    detector: str
    version: str
    source: str
    rows: int = 0
    events: int = 0
    left_out: list[LeftOutRows] = []
    days_left_out: dict[date, str] = {}
    first: datetime | None = None
    last: datetime | None = None
    total: int = 0
    urgent: int = 0
    findings: list[Finding] = []
    failed_in_step: int = 0
    seconds: float = 0.0
