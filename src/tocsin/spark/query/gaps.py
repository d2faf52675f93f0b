"""Records that a job does not read: those that were removed before it came to them, and those it was to skip.

Each gap stands in `<checkpoint>/gaps.json` before the job goes on behind it, so none is forgotten whenever the machine
stops. A backfill over `since` to `until` makes up for a gap of a detector. What an ingest did not read is lost.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from confluent_kafka import Message
from pydantic import BaseModel, computed_field

from tocsin.declare.feeding import Feeder
from tocsin.declare.model.job_report import TOPICS_RECREATED
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.kafka.topic_set import Position, TopicSet, partition_of
from tocsin.platform.state_file import write_whole
from tocsin.platform.storage.job_folders import stored_folder
from tocsin.platform.storage.stored_path import StoredPath

_INSTANT = timedelta(microseconds=1)
_GAPS = "gaps.json"
_REQUEST = "skip-backlog"


class Cause(StrEnum):
    """Why records are not read."""

    REMOVED = "removed"
    """Retention, or somebody by hand, has removed them."""
    SKIPPED = "skipped"
    """An operator wanted to start at now."""
    SET_ASIDE = "set_aside"
    """It ended the query each time it was read."""


class RemovedRange(BaseModel, frozen=True):
    """The unread records of a partition, to before `to_offset`; all were appended before `appended_before`, UTC."""

    from_offset: int
    to_offset: int
    appended_before: datetime

    @computed_field  # type: ignore[prop-decorator]  # mypy has no decorated properties
    @property
    def records(self) -> int:
        """Count of records, at most: offsets count ticks, too."""
        return self.to_offset - self.from_offset


class Gap(BaseModel, frozen=True):
    """The records that one start of a job left out.

    Attributes:
        found_at: when, UTC.
        since: windows that ended before it are complete; event time, UTC; None when that is not known.
        until: windows that begin at or after it are complete again; event time, UTC.
        partitions: the holes by partition; none when only what a new plan would have to read again was removed, and of
            a topic that was recreated: nobody knows how many records it had.
        is_recreated: the topic was deleted and created again, and is read from its start.
    """

    topic: str
    cause: Cause
    found_at: datetime
    since: datetime | None
    until: datetime
    partitions: dict[int, RemovedRange]
    is_recreated: bool = False

    @property
    def records(self) -> int:
        """Count of records, at most, in all partitions."""
        return sum(hole.records for hole in self.partitions.values())

    @property
    def offsets(self) -> dict[int, str]:
        """The holes in short, by partition."""
        return {partition: f"{hole.from_offset} to {hole.to_offset}" for partition, hole in self.partitions.items()}

    @property
    def sentence(self) -> str:
        """A sentence for people on what happened."""
        if self.is_recreated:
            lost = f"{self.topic} was deleted and created again, what was unread is lost; reading it from its start"
            return f"{lost}; windows that began before {self.until:%Y-%m-%d %H:%M:%S} UTC are left out"
        if not self.partitions:
            begin = f"{self.until:%Y-%m-%d %H:%M:%S} UTC"
            return f"windows that began before {begin} are left out: their events were removed"
        what = {
            Cause.REMOVED: "records were removed before they were read; continuing after them",
            Cause.SKIPPED: "unread records were skipped on request",
            Cause.SET_ASIDE: "record was set aside, because it failed the query",
        }
        return f"{self.records} {what[self.cause]}"


def read_gaps(checkpoint: StoredPath) -> list[Gap]:
    """Read the gaps of the job with this checkpoint folder, the oldest first. ValueError if the file is broken."""
    try:
        return state_file.load(checkpoint / _GAPS, list[Gap])
    except FileNotFoundError:
        return []


def find_holes(topics: TopicSet, reached: Position, begins: Position) -> dict[str, dict[int, RemovedRange]]:
    """Find what a job at `reached` leaves out if it continues at `begins`. TransientError if Kafka is away."""
    now, (_, ends) = datetime.now(UTC), topics.bounds()
    holes: dict[str, dict[int, RemovedRange]] = {}
    for place, offset in begins.items():
        if (start := reached.get(place, 0)) < offset:
            topic, partition = partition_of(place)
            moment = topics.appended_at(place, offset, ends.get(place, offset)) or now
            hole = RemovedRange(from_offset=start, to_offset=offset, appended_before=moment)
            holes.setdefault(topic, {})[partition] = hole
    return holes


def removed_upstream(settings: Settings, feeders: Iterable[Feeder]) -> list[tuple[str, Gap]]:
    """Read what was removed before one of `feeders` read it, with that job's name. ValueError if its file is broken."""
    jobs = dict.fromkeys(feeder.job for feeder in feeders if feeder.is_query)
    found = ((job, gap) for job in jobs for gap in read_gaps(stored_folder(settings, job)))
    return [(job, gap) for job, gap in found if gap.cause is Cause.REMOVED]


def count_removed(checkpoint: StoredPath) -> int:
    """Count the records that were removed before the job with this checkpoint folder had read them."""
    return sum(gap.records for gap in read_gaps(checkpoint) if gap.cause is Cause.REMOVED)


def counts(checkpoint: StoredPath) -> dict[str, int]:
    """Count what the job with this checkpoint folder has lost, for its report."""
    recreated = sum(gap.is_recreated for gap in read_gaps(checkpoint))
    return {"removed_unread": count_removed(checkpoint), TOPICS_RECREATED: recreated}


def record(checkpoint: StoredPath, gap: Gap) -> None:
    """Write down what is new of `gap`: a start that is broken off finds one again, perhaps larger. Raises OSError."""
    gaps = read_gaps(checkpoint)
    left = {}
    for partition, hole in gap.partitions.items():
        start = _behind(gaps, gap.topic, partition, hole.from_offset)
        if start < hole.to_offset:
            left[partition] = hole.model_copy(update={"from_offset": start})
    windows = {(known.since, known.until) for known in gaps}
    if left or (not gap.partitions and (gap.since, gap.until) not in windows):
        gaps.append(gap.model_copy(update={"partitions": left}))
        state_file.write(checkpoint / _GAPS, list[Gap], gaps)


def make_gap(topic: str, message: Message) -> Gap:
    """Make the gap that leaving out one event leaves: windows that hold its event time are not whole."""
    partition, offset = message.partition() or 0, message.offset() or 0
    appended = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
    since: datetime | None = None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        since = datetime.fromisoformat(json.loads(message.value() or b"")["event_time"])
    hole = RemovedRange(from_offset=offset, to_offset=offset + 1, appended_before=appended + _INSTANT)
    until = (since or appended) + _INSTANT
    now = datetime.now(UTC)
    return Gap(topic=topic, cause=Cause.SET_ASIDE, found_at=now, since=since, until=until, partitions={partition: hole})


def _behind(gaps: list[Gap], topic: str, partition: int, offset: int) -> int:
    """Find the first offset from `offset` on that lies in no known gap of the topic as it is now."""
    recreated = max((number for number, gap in enumerate(gaps) if gap.topic == topic and gap.is_recreated), default=-1)
    gaps = gaps[recreated + 1 :]
    holes = [gap.partitions[partition] for gap in gaps if gap.topic == topic and partition in gap.partitions]
    for hole in sorted(holes, key=lambda hole: hole.from_offset):
        if hole.from_offset <= offset < hole.to_offset:
            offset = hole.to_offset
    return offset


def ask_to_skip(checkpoint: Path) -> None:
    """Let the detector with this checkpoint folder skip its backlog when it next looks. OSError if it cannot write."""
    write_whole(checkpoint / _REQUEST, datetime.now(UTC).isoformat())


def is_asked_to_skip(checkpoint: Path) -> bool:
    """Return whether `ask_to_skip` was called and the job has not acted on it yet."""
    return (checkpoint / _REQUEST).exists()


def end_skip(checkpoint: Path) -> None:
    """Remove the request, which is fulfilled; without one nothing happens."""
    (checkpoint / _REQUEST).unlink(missing_ok=True)
