"""The contract between sealing and the gate: what is known of one day besides its events.

Standard library and pydantic only.
"""

from __future__ import annotations

from datetime import date, datetime

from pydantic import BaseModel


class Hole(BaseModel, frozen=True, extra="forbid"):
    """Offsets of a topic that were never landed, between others that were.

    Attributes:
        from_offset, to_offset: of the first that is missing, and of the first that is there again. They are equal where
            the topic was deleted and created again: nobody knows how many were lost.
        removed: retention had removed them before they were read; otherwise Kafka held none (compacted, aborted).
        after, before: append times (UTC) between which they were written: of the records around them, or None and the
            time at which they were looked for where there is none.
    """

    from_offset: int
    to_offset: int
    removed: bool
    after: datetime | None = None
    before: datetime | None = None

    @property
    def is_of_former_topic(self) -> bool:
        """Return whether it stands for the unread end of a topic that was deleted and created again."""
        return self.from_offset == self.to_offset

    @property
    def sentence(self) -> str:
        """It, for people."""
        if self.is_of_former_topic:
            return f"the topic was deleted and created again behind offset {self.to_offset}; what was unread is lost"
        why = "were removed before they were read" if self.removed else "are not there"
        return f"offsets {self.from_offset} to {self.to_offset} {why}"

    @property
    def offsets(self) -> int:
        """Count the offsets in it, one where the number is not known."""
        return max(1, self.to_offset - self.from_offset)


class PartitionFacts(BaseModel, frozen=True, extra="forbid"):
    """The share of one partition of `events.<source>` in a day.

    Attributes:
        holes: gaps in its offsets that may have cost the day events: those that were written from its begin to its
            end plus the grace.
    """

    rows: int
    holes: tuple[Hole, ...] = ()


class ColumnChange(BaseModel, frozen=True, extra="forbid"):
    """A column that was not declared like now when events of the day landed.

    Attributes:
        was, now: its type then and now; None where it was not declared.
        lost: values in them that are none of the type of now.
    """

    column: str
    was: str | None
    now: str | None
    events: int
    lost: int = 0

    @property
    def sentence(self) -> str:
        """It, for people."""
        if self.was is None:
            return f"{self.column} was declared after {self.events:,} events had landed, and is missing in them"
        if self.now is None:
            return f"{self.column} is no longer declared, and left out of {self.events:,} events"
        what = f"{self.column} was {self.was} in {self.events:,} events and is {self.now} now"
        return f"{what}: {self.lost:,} values do not fit and are missing" if self.lost else f"{what}; no value is lost"


class DayFacts(BaseModel, frozen=True, extra="ignore"):  # days sealed before 2026-11-22 name one figure more
    """The facts about one UTC day of a source when its sealed version is judged.

    Attributes:
        rows: of the sealed version, each event once.
        landed: events that came for this day in all, duplicates and imported ones included.
        late: landed from Kafka, duplicates included, with an append time later than event time plus the source's
            lateness.
        quarantined: records that came in on this day, and rows of it in imported files, that could not be used; None
            for days that were sealed before 2026-11-22.
        removed: records that were removed before ingest (or a flow) had read them and that may have been of the day.
        read_through: every record appended before it, UTC, had been landed or quarantined; None where no tick told.
    """

    source: str
    day: date
    version: str
    rows: int
    landed: int
    duplicates: int
    imported: int
    late: int
    quarantined: int | None = None
    partitions: dict[int, PartitionFacts]
    removed: int = 0
    newest_event: datetime | None
    newest_append: datetime | None
    read_through: datetime | None
    changes: tuple[ColumnChange, ...] = ()
    previous_rows: int | None

    @property
    def records(self) -> int:
        """Count the records that came from Kafka and from files, usable or not."""
        return self.landed + (self.quarantined or 0)

    @property
    def quarantine_ratio(self) -> float | None:
        """Share of `records` that could not be used; None where that is not known, or nothing came in."""
        return self.quarantined / self.records if self.quarantined is not None and self.records else None

    @property
    def holes(self) -> int:
        """Offsets missing in all partitions, and records that never became events."""
        landed = (hole.offsets for partition in self.partitions.values() for hole in partition.holes)
        return self.removed + sum(landed)
