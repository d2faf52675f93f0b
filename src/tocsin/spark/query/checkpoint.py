"""The versioned checkpoints of one detector or view: one folder per fingerprint, `<checkpoint>/<fingerprint>/`.

State is upgraded, never guessed: a plan whose fingerprint is new gets a new folder and never reads an old one.
`start.json` says where it began, and is written before its query first runs. When records were removed before it came
to them, or it is told to skip its backlog, it begins anew behind them: with another `start.json` and another folder for
its state, so that nothing of the old state can get into the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import structlog

from tocsin.platform import state_file
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet, as_json, oldest, partition_of
from tocsin.platform.state_file import FORM, load_formed
from tocsin.platform.storage.job_folders import JobFolders
from tocsin.platform.storage.stored_path import StoredPath, modified_at, remove_tree
from tocsin.spark.query import gaps
from tocsin.spark.query.gaps import Cause, Gap
from tocsin.spark.query.progress import batches_in, offsets_of, watermark_of

START = "start.json"
log = structlog.get_logger()


@dataclass(frozen=True)
class Checkpoint:
    """The state of one fingerprint.

    Attributes:
        folder: `<checkpoint>/<fingerprint>`.
        query: folder of Spark's own checkpoint.
        offsets: where its first batch began.
        publish_from: windows that start earlier were not read whole, and are not published; None when all were.
        wanted: see `_Start`.
        gaps: what this opening left unread, and wrote down.
        first: the first offsets that are kept, if it steps over what was removed.
    """

    folder: StoredPath
    query: StoredPath
    offsets: Position
    publish_from: datetime | None
    wanted: datetime | None
    topic_ids: dict[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    first: Position = field(default_factory=dict)

    @property
    def gap_sentence(self) -> str:
        """Say what this opening left unread, to put before the reason of a job; empty for nothing."""
        return "".join(f"{gap.sentence}; " for gap in self.gaps)

    def start(self, places: Iterable[Place]) -> str:
        """Give Spark's `startingOffsets`: where the first batch begins in each of `places`; in added ones, first."""
        return as_json({place: self.offsets.get(place, -2) for place in places}) if self.offsets else "earliest"

    def position(self, places: Iterable[Place]) -> Position:
        """Return the next offset of each of `places`: as committed, else where it begins (0 for an added one)."""
        committed = read_committed(self.query) or self.offsets
        return {place: max(committed.get(place, 0), self.first.get(place, 0)) for place in places}

    def is_overtaken(self, topics: TopicSet) -> bool:
        """Return whether the next records, or their topic, are gone: reopen it then. TransientError without Kafka."""
        first, _ = topics.bounds()
        position = self.position(first)
        return _is_overtaken(position, first) or bool(topics.recreated(self.topic_ids, position))


@dataclass(frozen=True)
class Retention:
    """The records that a new checkpoint needs.

    Attributes:
        memory: how far back from the place that was reached: window and lateness; None for all that the topics hold.
        join_span: how far apart joined events may lie: windows that begin so soon after the first event are not whole.
    """

    memory: timedelta | None
    join_span: timedelta = timedelta(0)


@dataclass(frozen=True)
class _Reached:
    """The place that a checkpoint has reached.

    Attributes:
        offsets: the next of each place.
        watermark: of the last committed batch, UTC: windows that ended before it are published; None without one.
        open_from: the first record of windows that may be unpublished, where no watermark tells it.
        topic_ids: Kafka's ids of the topics, as far as they were noted.
    """

    offsets: Position
    watermark: datetime | None = None
    open_from: Position | None = None
    topic_ids: dict[str, str] = field(default_factory=dict)

    def without(self, topics: Collection[str]) -> _Reached:
        """Leave out the offsets of `topics`."""
        left = [None if of is None else _without(of, topics) for of in (self.offsets, self.open_from)]
        return replace(self, offsets=left[0] or {}, open_from=left[1])


@dataclass(frozen=True)
class _Start:
    """The place at which a checkpoint begins; see `Checkpoint`.

    Attributes:
        count: how often it has begun.
        wanted: windows that start from then on are nobody else's to publish; None when a gap tells it or all are.
        topic_ids: Kafka's id of each topic, as far as it has one; none in files of before 2026-11-27.
    """

    offsets: Position
    publish_from: datetime | None
    count: int = 1
    wanted: datetime | None = None
    topic_ids: dict[str, str] = field(default_factory=dict)
    form: int = FORM

    @property
    def query(self) -> str:
        """The name of the folder of Spark's own checkpoint."""
        return "query" if self.count == 1 else f"query-{self.count}"


def open_checkpoint(
    folders: JobFolders, fingerprint: str, topics: TopicSet, retention: Retention, unread: Callable[[], datetime | None]
) -> Checkpoint:
    """Open the checkpoint of `fingerprint` in `folders`; a new one begins so that no window is lost.

    A new one begins `retention` before the place that the last one had reached, or at the first records if there is
    none. That place is the earliest of its watermark, the first event that it has not read, and the first raw record
    that the ingest has not read (`unread`): after an outage there may be no event yet of all that came meanwhile.

    One whose next records are gone, perhaps with their topic, begins anew with the earliest that are kept, and one that
    is asked to skip its backlog at the end. What is never read then, or not whole, is written down as a gap first.

    Raises an OSError if the folder cannot be written, and a TransientError if Kafka cannot be reached.
    """
    base, folder = folders.stored, folders.stored / fingerprint
    is_new, skips = not _continues(folder, topics.names), gaps.is_asked_to_skip(folders.local)
    last = _read_last_reached(base) if is_new else _read_reached(folder)
    ids = topics.ids()  # before the ends
    recreated = [] if last is None else topics.recreated(last.topic_ids, last.offsets)
    last = None if last is None else last.without(recreated)
    found: list[Gap] = []
    if is_new or skips or recreated or (last is not None and _is_overtaken(last.offsets, topics.bounds()[0])):
        begin = _at_end(topics) if skips else _find_start(topics, last, retention, unread, recreated)
        last = last or (_Reached(topics.bounds()[0]) if skips else None)
        found = [] if last is None else _gaps(topics, last, begin, Cause.SKIPPED if skips else Cause.REMOVED, recreated)
        for gap in found:
            gaps.record(base, gap)
        if is_new or found:
            _write_start(folder, replace(begin, topic_ids=ids), warms_up=is_new and last is not None and not skips)
    if skips:
        gaps.end_skip(folders.local)
    start = _with_ids(folder, ids)
    _tidy(query := folder / start.query)
    return Checkpoint(folder, query, start.offsets, start.publish_from, start.wanted, start.topic_ids, tuple(found))


def begin_at(base: StoredPath, fingerprint: str, offsets: Position, publish_from: datetime) -> None:
    """Let the checkpoint of `fingerprint`, unless there is one, begin at `offsets` and publish what starts later."""
    if not (base / fingerprint / START).exists():
        _write_start(base / fingerprint, _Start(offsets, publish_from))


def whole_since(base: StoredPath, fingerprint: str) -> datetime | None:
    """Return the start of the first window that this checkpoint reads whole; None when all are, or gaps tell of it."""
    folder = base / fingerprint
    start = _read_start(folder) if (folder / START).exists() else None
    return None if start is None or start.count > 1 else start.publish_from


def read_committed(query: StoredPath) -> Position | None:
    """Read the next offset of each place after the last committed batch of Spark's checkpoint; None before one."""
    reached = _read_batch(query)
    return None if reached is None else reached.offsets


def _read_batch(query: StoredPath) -> _Reached | None:
    batches = batches_in(query / "commits") & batches_in(query / "offsets")
    if not batches:
        return None
    return _Reached(offsets_of(query, max(batches)), watermark_of(query, max(batches)))


def _tidy(query: StoredPath) -> None:
    """Remove earlier beginnings, and the state of a first batch that ended before Spark wrote down its offsets.

    Nothing of that counts, and Spark refuses to begin over it (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
    """
    for left in query.parent.glob("query*"):
        if left != query:
            remove_tree(left)
    if not batches_in(query / "offsets"):
        for part in ("state", "offsets", "commits"):  # a kill while one was written leaves a draft of it
            remove_tree(query / part)


def _continues(folder: StoredPath, topics: Collection[str]) -> bool:
    """Return whether the checkpoint in `folder` has begun, in one of `topics`: offsets of others say nothing."""
    reached = read_committed(folder / _read_start(folder).query) if (folder / START).exists() else {}
    return reached is None or any(partition_of(place)[0] in topics for place in reached)


def _read_reached(folder: StoredPath) -> _Reached:
    """Read what the checkpoint in `folder` has reached: where it begins, before its first batch."""
    start = _read_start(folder)
    reached = _read_batch(folder / start.query)
    if reached is None:
        return _Reached(start.offsets, start.publish_from, topic_ids=start.topic_ids)
    if reached.watermark is None and (folder / start.query / "state").exists():
        # The first batch closes no window: whatever it has read, those since its beginning are still to be published.
        reached = replace(reached, watermark=start.publish_from, open_from=start.offsets)
    return replace(reached, topic_ids=start.topic_ids)


def _read_last_reached(base: StoredPath) -> _Reached | None:
    folder = max((start.parent for start in base.glob(f"*/{START}")), key=_used_at, default=None)
    return None if folder is None else _read_reached(folder)


def _used_at(folder: StoredPath) -> float:
    """Read when the checkpoint in `folder` began or committed last; Spark makes an empty folder of commits at once."""
    return max(modified_at(path) for path in (folder / START, *folder.glob("query*/commits")))


def _is_overtaken(position: Position, first: Position) -> bool:
    """Return whether records from `position` on are gone, when `first` are those still there."""
    return any(position.get(place, 0) < offset for place, offset in first.items())


def _at_end(topics: TopicSet) -> _Start:
    return _Start(topics.bounds()[1], datetime.now(UTC))


def _find_start(
    topics: TopicSet,
    last: _Reached | None,
    retention: Retention,
    unread: Callable[[], datetime | None],
    recreated: Collection[str],
) -> _Start:
    """Begin at the first record; else as far as `retention` before what the last checkpoint had reached.

    Where records were removed, or gone with a topic that was `recreated`, windows that began before the first that is
    kept are not whole.
    """
    first, ends = topics.bounds()
    lost = {place for place in first if partition_of(place)[0] in recreated}
    if last is None or retention.memory is None:
        cut = [topics.appended_at(p, offset, ends[p]) for p, offset in first.items() if offset > 0 or p in lost]
        return _Start(first, max((moment + retention.join_span for moment in cut if moment is not None), default=None))
    now = datetime.now(UTC)
    reached = (last.watermark, oldest(topics, last.open_from or last.offsets), unread(), now)
    since = min(moment for moment in reached if moment is not None) - retention.memory
    offsets, whole = topics.since(since - retention.join_span), [since]
    for place, offset in first.items():
        if place in lost:
            offsets[place] = offset
        if place in lost or 0 < offset == offsets[place]:
            gone = now if place in lost or _is_overtaken(last.offsets, {place: offset}) else since
            whole.append((topics.appended_at(place, offset, ends[place]) or gone) + retention.join_span)
    return _Start(offsets, max(whole), wanted=since)


def _gaps(topics: TopicSet, last: _Reached, start: _Start, cause: Cause, recreated: Collection[str]) -> list[Gap]:
    now = datetime.now(UTC)
    until, wanted = start.publish_from or now, start.wanted
    holes = gaps.find_holes(topics, last.offsets, start.offsets)
    if not holes and not recreated and wanted is not None and until > wanted:
        holes[topics.names[0]] = {}
    fields = {"found_at": now, "since": last.watermark, "until": until}
    lost = [Gap(topic=topic, cause=Cause.REMOVED, partitions={}, is_recreated=True, **fields) for topic in recreated]
    return [
        *lost,
        *(Gap(topic=topic, cause=cause, partitions=partitions, **fields) for topic, partitions in holes.items()),
    ]


def _write_start(folder: StoredPath, start: _Start, *, warms_up: bool = False) -> None:
    if warms_up:
        since = start.publish_from
        log.info("no state fits the plan, warming up", checkpoint=str(folder), publishes_windows_from=since)
    count = _read_start(folder).count + 1 if (folder / START).exists() else 1
    state_file.write(folder / START, _Start, replace(start, count=count))


def _with_ids(folder: StoredPath, ids: dict[str, str]) -> _Start:
    """Read the start, and note the ids of topics of which it has none: it is of before, or reads them newly."""
    start = _read_start(folder)
    if not ids.keys() <= start.topic_ids.keys():
        start = replace(start, topic_ids=ids | start.topic_ids)
        state_file.write(folder / START, _Start, start)
    return start


def _without(position: Position, topics: Collection[str]) -> Position:
    return {place: offset for place, offset in position.items() if partition_of(place)[0] not in topics}


def _read_start(folder: StoredPath) -> _Start:
    return load_formed(folder / START, _Start, f"remove {folder}: the job then begins anew")
