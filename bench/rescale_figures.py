"""Figures of a rescale, counted from what was appended, what readers were given, and what the view shows. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class HandOut:
    """A run of records that Kafka gave to a reader.

    Attributes:
        reader: its name.
        at: when, seconds since 1970.
        partition, first, last: of the records; offsets, both included.
    """

    reader: str
    at: float
    partition: int
    first: int
    last: int


@dataclass(frozen=True)
class ShownRow:
    """A row that the view shows: when its record was appended and when it was seen there first, seconds since 1970."""

    appended_at: float
    seen_at: float


@dataclass(frozen=True)
class ReaderChange:
    """A change of the number of readers: when (seconds since 1970), what was done, and how many there are then."""

    at: float
    action: str
    jobs: int


@dataclass(frozen=True)
class RescaleStep:
    """What happened between one change of the number of readers and the next.

    Attributes:
        action: start, add, remove or kill.
        jobs: readers from then on.
        records: appended in this time.
        partitions_moved: partitions that got another reader.
        first_seconds, last_seconds: from the change until the first, and the last, of them was read by its new
            reader; null if none was.
        p50_seconds, p99_seconds, max_seconds: from when a record was appended until readers of the view saw it; null
            without records.
    """

    action: str
    jobs: int
    records: int
    partitions_moved: int
    first_seconds: float | None
    last_seconds: float | None
    p50_seconds: float | None
    p99_seconds: float | None
    max_seconds: float | None


@dataclass(frozen=True)
class Rescaled:
    """What a rescale did to the records of a view.

    Attributes:
        records: that Kafka has acknowledged.
        lost: of these, that the view does not show.
        processed_twice: records that were given to a reader again.
        shown_twice: records that were applied to the view again.
        steps: in order.
    """

    records: int
    lost: int
    processed_twice: int
    shown_twice: int
    steps: list[RescaleStep]


def count_twice(notes: Iterable[HandOut]) -> int:
    """Count the records that were given to readers more than once, each time after the first."""
    runs = defaultdict[int, list[tuple[int, int]]](list)
    for note in notes:
        runs[note.partition].append((note.first, note.last))
    twice = 0
    for found in runs.values():
        reached = -1
        for first, last in sorted(found):
            twice += max(0, min(reached, last) - first + 1)
            reached = max(reached, last)
    return twice


def steps_of(changes: Sequence[ReaderChange], notes: Sequence[HandOut], rows: Iterable[ShownRow]) -> list[RescaleStep]:
    """Sum up each step: how long its partitions took to be read again, and how late records were shown."""
    begins = [change.at for change in changes]
    delays: list[list[float]] = [[] for _ in changes]
    for row in rows:
        delays[max(0, bisect_right(begins, row.appended_at) - 1)].append(row.seen_at - row.appended_at)
    steps = []
    for number, change in enumerate(changes):
        end = begins[number + 1] if number + 1 < len(begins) else math.inf
        moved = _taken_over(notes, change.at, end)
        late = sorted(delays[number])
        steps.append(
            RescaleStep(
                action=change.action,
                jobs=change.jobs,
                records=len(late),
                partitions_moved=len(moved) if number else 0,
                first_seconds=min(moved) if moved and number else None,
                last_seconds=max(moved) if moved and number else None,
                p50_seconds=share(late, 0.5),
                p99_seconds=share(late, 0.99),
                max_seconds=share(late, 1.0),
            )
        )
    return steps


def share(ordered: Sequence[float], part: float) -> float | None:
    """Return the value below or at which this part of the values lies, to the millisecond; None without values."""
    return round(ordered[max(0, math.ceil(part * len(ordered)) - 1)], 3) if ordered else None


def _taken_over(notes: Sequence[HandOut], begin: float, end: float) -> list[float]:
    """Return for each partition whose reader changed in a step how long that took."""
    by_partition = defaultdict[int, list[HandOut]](list)
    for note in sorted(notes, key=lambda note: note.at):
        by_partition[note.partition].append(note)
    found = []
    for runs in by_partition.values():
        before = bisect_left(runs, begin, key=lambda note: note.at)
        within = [run for run in runs[before:] if run.at < end]
        if before and within and within[-1].reader != runs[before - 1].reader:
            found.append(next(run.at for run in within if run.reader == within[-1].reader) - begin)
    return [round(seconds, 3) for seconds in found]
