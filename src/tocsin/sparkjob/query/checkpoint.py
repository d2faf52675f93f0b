"""The versioned checkpoints of one detector or view: one folder per fingerprint, `<checkpoint>/<fingerprint>/`.

State is upgraded, never guessed: a plan whose fingerprint is new gets a new folder and never reads an old one.
`start.json` says where it began, and is written before its query first runs. When records were removed before it came
to them, or it is told to skip its backlog, it begins anew behind them: with another `start.json` and another folder for
its state, so that nothing of the old state can get into the new one.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tocsin.kafka.reader import Offsets, TopicReader, appended_at, came_in_at, oldest
from tocsin.project.feeding import Feeder
from tocsin.project.settings import Settings
from tocsin.runtime import state_file
from tocsin.runtime.lock import LockHeld, hold
from tocsin.sparkjob.query import gaps
from tocsin.sparkjob.query.gaps import Cause, Gap, RemovedRange

_START = "start.json"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of one fingerprint.

    Attributes:
        folder: `<checkpoint>/<fingerprint>`.
        query: folder of Spark's own checkpoint.
        offsets: where its first batch began.
        publish_from: windows that start earlier were not read whole, and are not published; None when all were.
        gap: what this opening left unread, and wrote down; None when nothing.
    """

    folder: Path
    query: Path
    offsets: Offsets
    publish_from: datetime | None
    gap: Gap | None = None

    @property
    def gap_sentence(self) -> str:
        """Say what this opening left unread, to put before the reason of a job; empty for nothing."""
        return "" if self.gap is None else f"{self.gap.sentence}; "

    def start(self, topic: str, partitions: int) -> str:
        """Give Spark's `startingOffsets`: where the first batch begins in each partition; in added ones, first."""
        return json.dumps({topic: {str(partition): self.offsets.get(partition, -2) for partition in range(partitions)}})

    def position(self, topic: str, partitions: int) -> Offsets:
        """Return the next offset of each partition: as committed, else where it begins (0 for an added one)."""
        committed = read_committed(self.query, topic) or self.offsets
        return {partition: committed.get(partition, 0) for partition in range(partitions)}

    def is_overtaken(self, topic: TopicReader) -> bool:
        """Return whether records were removed that it would read next; then opening it again lets it begin anew.

        Raises:
            TransientError: Kafka cannot be reached, try again.
        """
        first, _ = topic.bounds()
        return _is_overtaken(self.position(topic.name, len(first)), first)


@dataclass(frozen=True)
class _Reached:
    """The place that a checkpoint has reached.

    Attributes:
        offsets: the next of each partition.
        watermark: of the last committed batch, UTC: windows that ended before it are published; None without one.
        open_from: the first record of windows that may be unpublished, where no watermark tells it.
    """

    offsets: Offsets
    watermark: datetime | None = None
    open_from: Offsets | None = None


@dataclass(frozen=True)
class _Beginning:
    """The place at which a checkpoint begins; see `Checkpoint`.

    Attributes:
        count: how often it has begun.
        wanted: windows that start from then on are nobody else's to publish; None when a gap tells it or all are.
    """

    offsets: Offsets
    publish_from: datetime | None
    count: int = 1
    wanted: datetime | None = None

    @property
    def query(self) -> str:
        """The name of the folder of Spark's own checkpoint."""
        return "query" if self.count == 1 else f"query-{self.count}"


def open_checkpoint(
    base: Path, fingerprint: str, topic: TopicReader, memory: timedelta | None, unread: Callable[[], datetime | None]
) -> Checkpoint:
    """Open the checkpoint of `fingerprint` below `base`; a new one begins so that no window is lost.

    Args:
        base: the job's checkpoint folder.
        fingerprint: of the plan.
        topic: what the job reads.
        memory: the longest window and the lateness together; None for all that the topic holds.
        unread: see `unread_upstream`.

    A new one begins `memory` before the place that the last one had reached, or at the beginning of the topic if there
    is none. That place is the earliest of its watermark, the first event that it has not read, and the first raw record
    that the ingest has not read: after an outage there may be no event yet of all that came meanwhile.
    One whose next records are gone begins anew with the earliest that are kept, and one that is asked to skip its
    backlog at the end; what is never read then, or not whole, is written down as a gap first.

    Raises: OSError, the folder cannot be written; TransientError, Kafka cannot be reached, try again.
    """
    folder = base / fingerprint
    is_new, skips = not (folder / _START).exists(), gaps.is_asked_to_skip(base)
    last = _last(base, topic.name) if is_new else _own(folder, topic.name)
    first, _ = topic.bounds()
    gap = None
    if is_new or skips or (last is not None and _is_overtaken(last.offsets, first)):
        now = datetime.now(UTC)
        beginning = _Beginning(topic.bounds()[1], now) if skips else _beginning(topic, last, memory, unread)
        last = last or (_Reached(first) if skips else None)
        gap = None if last is None else _gap(topic, last, beginning, Cause.SKIPPED if skips else Cause.REMOVED)
        if gap is not None:
            gaps.record(base, gap)
        if is_new or gap is not None:
            _begin(folder, beginning)
    if skips:
        gaps.end_skip(base)
    beginning = _read(folder)
    _tidy(query := folder / beginning.query)
    since = beginning.publish_from
    return Checkpoint(folder=folder, query=query, offsets=beginning.offsets, publish_from=since, gap=gap)


def remove_other_checkpoints(base: Path, fingerprints: Collection[str]) -> None:
    """Remove the checkpoints below `base` whose fingerprint is not among these, and that no process writes."""
    for start in base.glob(f"*/{_START}"):
        if start.parent.name not in fingerprints:
            with contextlib.suppress(LockHeld), hold(start.parent / "lock"):
                shutil.rmtree(start.parent, ignore_errors=True)


def whole_since(base: Path, fingerprint: str) -> datetime | None:
    """Return the start of the first window that this checkpoint reads whole; None when all are, or gaps tell of it."""
    folder = base / fingerprint
    beginning = _read(folder) if (folder / _START).exists() else None
    return None if beginning is None or beginning.count > 1 else beginning.publish_from


def read_committed(query: Path, topic: str) -> Offsets | None:
    """Read the next offset of each partition after the last committed batch of Spark's checkpoint; None before one."""
    reached = _reached(query, topic)
    return None if reached is None else reached.offsets


def _reached(query: Path, topic: str) -> _Reached | None:
    batches = _batches(query / "commits") & _batches(query / "offsets")
    if not batches:
        return None
    _, metadata, *sources = (query / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()
    offsets: Offsets = {}
    for source in sources:  # one line for each
        if source.startswith("{"):
            offsets |= {int(p): offset for p, offset in json.loads(source).get(topic, {}).items()}
    millis = json.loads(metadata).get("batchWatermarkMs", 0)
    return _Reached(offsets, _EPOCH + timedelta(milliseconds=millis) if millis > 0 else None)


def _batches(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()}


def _tidy(query: Path) -> None:
    """Remove earlier beginnings, and the state of a first batch that ended before Spark wrote down its offsets.

    Nothing of that counts, and Spark refuses to begin over it (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
    """
    for left in query.parent.glob("query*"):
        if left != query:
            shutil.rmtree(left, ignore_errors=True)
    if not _batches(query / "offsets"):
        for part in ("state", "offsets"):  # a kill while offsets were written leaves a draft of them
            shutil.rmtree(query / part, ignore_errors=True)


def unread_upstream(settings: Settings, feeders: Iterable[Feeder]) -> datetime | None:
    """Read when the oldest record came in that one of `feeders` has not read, UTC; None without one.

    Raises:
        TransientError: Kafka cannot be reached; a retry helps.
    """
    found = []
    for feeder in feeders:
        name = feeder.reads(settings.names)
        with TopicReader(settings, feeder.job, name) as topic:
            committed = read_committed(settings.checkpoint(feeder.job) / "query", name) or {}
            found.append(oldest(topic, committed, appended_at if feeder.is_ingest else came_in_at))
    return min((moment for moment in found if moment is not None), default=None)


def _own(folder: Path, topic: str) -> _Reached:
    """Read what the checkpoint in `folder` has reached: where it begins, before its first batch."""
    beginning = _read(folder)
    reached = _reached(folder / beginning.query, topic)
    if reached is None:
        return _Reached(beginning.offsets, beginning.publish_from)
    if reached.watermark is None and (folder / beginning.query / "state").exists():
        # The first batch closes no window: whatever it has read, those since its beginning are still to be published.
        return _Reached(reached.offsets, beginning.publish_from, open_from=beginning.offsets)
    return reached


def _last(base: Path, topic: str) -> _Reached | None:
    """Read what the most recently used checkpoint below `base` had reached; None when there is none."""
    folder = max((start.parent for start in base.glob(f"*/{_START}")), key=_used_at, default=None)
    return None if folder is None else _own(folder, topic)


def _used_at(folder: Path) -> float:
    """Read when the checkpoint in `folder` began or committed last; Spark makes an empty folder of commits at once."""
    return max(path.stat().st_mtime for path in (folder / _START, *folder.glob("query*/commits")))


def _is_overtaken(position: Offsets, first: Offsets) -> bool:
    """Return whether records from `position` on are gone, when `first` are those still there."""
    return any(position.get(partition, 0) < offset for partition, offset in first.items())


def _beginning(
    topic: TopicReader, last: _Reached | None, memory: timedelta | None, unread: Callable[[], datetime | None]
) -> _Beginning:
    """Begin at the first record; else `memory` before what the last checkpoint had reached.

    Where records were removed, windows that began before the first that is kept are not whole.
    """
    first, ends = topic.bounds()
    if last is None or memory is None:
        cut = [topic.appended_at(p, offset, ends[p]) for p, offset in first.items() if offset > 0]
        return _Beginning(first, max((moment for moment in cut if moment is not None), default=None))
    now = datetime.now(UTC)
    reached = (last.watermark, oldest(topic, last.open_from or last.offsets), unread(), now)
    since = min(moment for moment in reached if moment is not None) - memory
    offsets, whole = topic.since(since), [since]
    for partition, offset in first.items():
        if 0 < offset == offsets[partition]:
            gone = now if _is_overtaken(last.offsets, {partition: offset}) else since
            whole.append(topic.appended_at(partition, offset, ends[partition]) or gone)
    return _Beginning(offsets, max(whole), wanted=since)


def _gap(topic: TopicReader, last: _Reached, beginning: _Beginning, cause: Cause) -> Gap | None:
    """Find what is left out between the place that was reached and the new beginning; None when nothing is."""
    now, (_, ends) = datetime.now(UTC), topic.bounds()
    holes = {}
    for partition, offset in beginning.offsets.items():
        if (reached := last.offsets.get(partition, 0)) < offset:
            moment = topic.appended_at(partition, offset, ends.get(partition, offset)) or now
            holes[partition] = RemovedRange(from_offset=reached, to_offset=offset, appended_before=moment)
    until, wanted = beginning.publish_from or now, beginning.wanted
    if not holes and (wanted is None or until <= wanted):
        return None
    return Gap(topic=topic.name, cause=cause, found_at=now, since=last.watermark, until=until, partitions=holes)


def _begin(folder: Path, beginning: _Beginning) -> None:
    """Begin at `beginning`, with an empty state."""
    count = _read(folder).count + 1 if (folder / _START).exists() else 1
    state_file.write(folder / _START, _Beginning, replace(beginning, count=count, wanted=None))


def _read(folder: Path) -> _Beginning:
    return state_file.load(folder / _START, _Beginning)
