"""Apply the records of a view's topic to its read model and its sink, each row once or again to the same effect.

The sink outside comes first, then the SQLite file. Both remember the offsets with the rows, so after a crash in between
the file is behind, its records are read again, and what the sink has already is left out for it.

Several processes may share the partitions of a view. Each applies a batch in a turn of the file, in which nobody else
writes, and leaves out what the file says is applied: another process has taken the partition over.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import structlog

from tocsin.kafka.reader import Offsets
from tocsin.model.errors import InvalidEvent
from tocsin.model.view import ViewSpec
from tocsin.runtime.state_db import TOPIC_ID
from tocsin.views.rebuild.rebuild_request import FROM_HISTORY
from tocsin.views.row_store import RowStore, mark_final
from tocsin.views.shown_rows import ShownRows
from tocsin.views.sinks.sink import Sink, SinkBatch, SinkLost
from tocsin.views.stored_row import Amends, ReadBatch, StoredRow, parts_of
from tocsin.views.view_row import RowRecord, ViewRow

_log = structlog.get_logger()


class Applier:
    """Applies batches of one view; knows nothing of Kafka, so that a batch can be tried as often as one likes.

    Attributes:
        counts: records `applied`, `unusable` (no rows), `stale` (of a build that is over), `taken` (of a partition that
            another process has taken over), and `refills` of the sink.
        current: the build that readers see, as of the last turn.
        is_set_back: whether another process has let the topic be applied again from an earlier place: what was given to
            `apply` last is not applied, and reading must go on from `positions`.
    """

    def __init__(self, spec: ViewSpec, store: RowStore, sink: Sink | None) -> None:
        """Apply to `store`, and to `sink` if there is one."""
        self.counts: Counter[str] = Counter()
        self._spec, self._store, self._sink = spec.computed, store, sink
        self._shown = ShownRows(spec, store) if spec.is_condensed else None
        self.current: str | None = None
        self.is_set_back = False
        self._retired: set[str] = set()
        self._held: Offsets | None = None
        self._reached = store.offsets()
        self.refresh()

    def refresh(self) -> None:
        """Learn which build is in force, in case another process has switched to it."""
        self.current = self._store.fact("current")
        self._retired = set(self._store.fact("retired") or ())

    def positions(self, partitions: Iterable[int] | None = None) -> Offsets:
        """Return the offset of the next record to apply, by partition: `apply` is given what comes from there on.

        Args:
            partitions: that will be read from there; all if None.
        """
        held = self._store.offsets()
        self._reached = dict(held) if partitions is None else self._reached | {p: held.get(p, 0) for p in partitions}
        return held

    @property
    def topic_id(self) -> str:
        """Return the id of the topic that is applied; "" while nobody has noted it."""
        return self._store.fact(TOPIC_ID) or ""

    def note_topic(self, topic_id: str) -> None:
        """Note the id of the topic that is applied from now on."""
        self._store.note(**{TOPIC_ID: topic_id})

    def check_sink(self) -> None:
        """Fill the sink from the read model if it does not hold what was applied to it.

        Raises:
            TransientError: the server is away; a retry helps.
        """
        if self._sink is not None:
            with self._turn():
                self._held = self._checked(self._sink)

    def apply(self, records: Sequence[RowRecord]) -> list[Amends]:
        """Apply `records`, which are in order per partition; returns what the topic should have instead of some.

        Raises:
            TransientError: sink or file are away or full; a retry with the same records is right.
        """
        read = [(record, self._parsed(record)) for record in records]
        with self._turn():
            held = self._store.offsets()
            self.is_set_back = any(held.get(one.partition, 0) < self._reached.get(one.partition, 0) for one in records)
            if self.is_set_back:
                return []
            mine = [(record, row) for record, row in read if record.offset >= held.get(record.partition, 0)]
            amends = self._apply(mine) if mine else []
        self.counts["taken"] += len(read) - len(mine)
        self._reached |= held | {record.partition: record.offset + 1 for record, _ in mine}
        return amends

    def _apply(self, read: Sequence[tuple[RowRecord, StoredRow | None]]) -> list[Amends]:
        done = ReadBatch(_moment(self._store.fact("final_before")))
        for record, row in read:
            self._sort(record, row, done)
        if self.current is None and done.rows:  # what history gives is whole only when its job says so
            self.current = next((build for build in done.builds if not build.startswith(FROM_HISTORY)), None)
        build = self._kept_as(self.current or "")
        known = {row.identity: row for row in self._store.stored(done.touched) if row.build == build}
        rows, removed, amends = self._settle(done)
        shown = [row for row in rows if row.build == build]
        taken = {one: (known[one], done.removals[one].place) for one in removed if one in known}
        gone = [row for row, _ in taken.values()]
        if self._shown is not None:
            shown, gone = self._shown.of_change(self.current or "", shown, taken)
            rows, removed = [*rows, *shown], [*removed, *(row.identity for row in gone)]
        offsets = {record.partition: record.offset + 1 for record, _ in read}
        self._to_sink(shown, gone, offsets)
        self._store.apply(rows, removed, offsets, current=self.current)
        self.counts["applied"] += len(read)
        return amends

    def finish(self, watermark: datetime) -> None:
        """Mark the rows of windows that end by `watermark` as final; the topic holds their last versions before now.

        Raises:
            TransientError: as for `apply`.
        """
        with self._turn():
            self._finish(watermark)

    def _finish(self, watermark: datetime) -> None:
        before = _moment(self._store.fact("final_before"))
        is_done = before is not None and before >= watermark
        if is_done or self.current is None or self._shown is not None or self._spec.window is None:
            return
        after = before
        while rows := self._store.closed(self.current, after, watermark):
            self._to_sink(mark_final(rows), [], {})
            self._store.apply(mark_final(rows), (), {})
            after = (rows[-1].window_end or watermark) - timedelta(microseconds=1)  # others may end with it
        self._store.note(final_before=watermark.isoformat())

    def ended(self, watermark: datetime) -> list[Amends]:
        """Return removals of rows that are older than the view keeps them; up to 1,000."""
        if self._spec.keep is None or self.current is None:
            return []
        rows = self._store.ended(self._kept_as(self.current), watermark - self._spec.keep)
        return [Amends(None, row.identity, row.partition, row.offset) for row in rows]

    def left_over(self, build: str, coming: Collection[str] = ()) -> Iterator[Amends]:
        """Give what the topic should have in place of rows of builds that end with the switch to `build`.

        Those that `build` does not have are removed; those that lie over an earlier one of `build` give way to it.
        """
        into = self._kept_as(build)
        for other in map(self._kept_as, self._store.others({build, *coming})):
            for row in self._store.rows(other, without=into):
                yield Amends(None, row.identity, row.partition, row.offset)
            yield from (Amends(row, row.identity, row.partition, row.offset) for row in self._store.hidden(into, other))

    def switch(self, build: str, coming: Collection[str] = ()) -> None:
        """Let readers see `build`, which is complete, and forget the others but those that are `coming`.

        Raises: TransientError, as for `apply`; nothing has changed for the readers of the file.
        """
        with self._turn():
            if self._shown is not None:
                self._shown.make_all(build)
            if self._sink is not None:
                gone = self._store.rows(self.current or "", without=build)
                self._sink.replace(self._store.rows(build), gone, self._store.offsets())
                self._held = self._store.offsets()
            ended = self._store.others({build, *coming}) | ({self.current} if self.current else set())
            self._retired = (self._retired | ended) - {build}
            self._store.note(retired=sorted(self._retired), final_before=None)
            self._store.switch(build, coming)
        _log.info("build in force", build=build, before=self.current)
        self.current = build

    def expect(self, build: str) -> bool:
        """Take rows of `build` from now on; False if those that came since it was replaced were left out until now.

        A view that is changed back has the name of its earlier build again.
        """
        if build not in self._retired:
            return True
        with self._turn():
            if build in self._retired:  # no other process was first
                self._store.note(retired=sorted(self._retired - {build}))
                self._store.forget_offsets()
                self._reached = {}
        self.refresh()
        return False

    def restart(self) -> None:
        """Forget everything: the topic is another one."""
        with self._turn():
            self._store.reset()
            self._reached = {}
            self.refresh()
            if self._sink is not None:
                self._sink.replace((), (), {})
                self._held = {}

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with self._store.turn():
            self.refresh()
            yield

    def _parsed(self, record: RowRecord) -> StoredRow | None:
        """Read the row in `record`; None if it is removed there, or there is none."""
        if record.value is None:
            return None
        try:
            row = ViewRow.from_record(record.value, record.topic, record.partition, record.offset)
            return StoredRow.of(row, self._spec.key, record.key, record.place)
        except (InvalidEvent, KeyError) as error:
            self.counts["unusable"] += 1
            what = str(error) if isinstance(error, InvalidEvent) else f"no column {error} of the key"
            _log.warning("record left out", partition=record.partition, offset=record.offset, reason=what[:500])
            return None

    def _sort(self, record: RowRecord, stored: StoredRow | None, done: ReadBatch) -> None:
        if record.value is None:
            done.remove(record)
        if stored is None:
            return
        if stored.build in self._retired and stored.build != self.current:
            self.counts["stale"] += 1
            done.stale[record.key] = record
            return
        done.builds.setdefault(stored.build)
        if self._shown is not None:
            stored = stored._replace(build=parts_of(stored.build))
        elif stored.build == self.current:
            stored = stored.closed_by(done.final_before)
        done.put(stored)

    def _settle(self, done: ReadBatch) -> tuple[list[StoredRow], list[str], list[Amends]]:
        """Decide what removals and stale records mean, given what there is."""
        amends: list[Amends] = []
        removed: list[str] = []
        coming: list[StoredRow] = []
        stored = sorted(self._store.stored(done.touched), key=lambda row: row.offset)
        right = {row.identity: row for row in stored} | {row.identity: row for row in done.rows.values()}
        for identity, record in done.removals.items():
            row = right.get(identity)
            if row is not None and record.removes is not None and row.offset > record.removes:
                amends.append(Amends(row, identity, row.partition, record.offset))
                if self._is_of_another(row, stored):  # a build that is to come has the row, and readers lose theirs
                    removed.append(identity)
                    coming.append(row)
            else:
                removed.append(identity)
                right.pop(identity, None)
        gone = set(removed)
        kept = [*(row for row in done.rows.values() if row.identity not in gone), *coming]
        for identity, record in done.stale.items():
            amends.append(Amends(right.get(identity), identity, record.partition, record.offset))
        return kept, removed, amends

    def _is_of_another(self, row: StoredRow, stored: Sequence[StoredRow]) -> bool:
        """Return whether `row` is of a build that is to come, and `stored` has an older version of the current one."""
        current = self._kept_as(self.current or "")
        return row.build != current and any(one.build == current and one.identity == row.identity for one in stored)

    def _to_sink(self, rows: Sequence[StoredRow], removed: Sequence[StoredRow], offsets: Offsets) -> None:
        if self._sink is None:
            return
        held = self._checked(self._sink) if self._held is None else self._held
        try:
            self._put(self._sink, held, SinkBatch(rows, removed, offsets))
        except SinkLost:
            self._put(self._sink, self._checked(self._sink), SinkBatch(rows, removed, offsets))

    def _put(self, sink: Sink, held: Offsets, batch: SinkBatch) -> None:
        # After a crash between sink and file the sink is ahead: it must not see older versions again.
        # A row that is made of several has no one offset: an older sum is there for a moment, until all is read again.
        is_ahead = self._shown is None and batch.offsets
        new = [row for row in batch.rows if not is_ahead or row.offset >= held.get(row.partition, 0)]
        ahead = held | {partition: max(offset, held.get(partition, 0)) for partition, offset in batch.offsets.items()}
        sink.apply(SinkBatch(new, batch.removed, ahead))
        self._held = ahead

    def _checked(self, sink: Sink) -> Offsets:
        """Return what `sink` holds, after filling it if that is less than what was applied."""
        held, applied = sink.offsets(), self._store.offsets()
        if held is not None and all(held.get(partition, 0) >= offset for partition, offset in applied.items()):
            return held
        if applied:
            _log.warning("filling the sink", sink=self._spec.sink, held=held, applied=applied)
            self.counts["refills"] += 1
        sink.replace(self._store.rows(self.current or ""), (), applied)
        return applied

    def _kept_as(self, build: str) -> str:
        """Name the build under which the store has the rows of the topic."""
        return build if self._shown is None else parts_of(build)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
