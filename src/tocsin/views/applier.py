"""Apply the records of a view's topic to its read model and its sink, each row once or again to the same effect.

The sink outside comes first, then the SQLite file. Both remember the offsets with the rows, so after a crash in between
the file is behind, its records are read again, and what the sink has already is left out for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from tocsin.kafka.reader import Offsets
from tocsin.model.errors import InvalidEvent
from tocsin.model.view import ViewSpec
from tocsin.views.row_store import RowStore, mark_final
from tocsin.views.shown_rows import ShownRows
from tocsin.views.sinks.sink import Sink, SinkBatch, SinkLost
from tocsin.views.stored_row import StoredRow, parts_of
from tocsin.views.view_row import ViewRow

_log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class RowRecord:
    """One record of the topic of a view.

    Attributes:
        topic, partition, offset: its place.
        appended_at: when it was appended, UTC.
        key: identity of the row.
        value: the row as JSON; None when it is removed.
        removes: of a removal that an applier wrote: the offset of the version that it was about.
    """

    topic: str
    partition: int
    offset: int
    appended_at: datetime
    key: str
    value: bytes | None
    removes: int | None = None

    @property
    def place(self) -> tuple[int, int, datetime]:
        """Return partition, offset and append time."""
        return self.partition, self.offset, self.appended_at


@dataclass(frozen=True)
class Amends:
    """A record that the topic should have, because a later one took the place of what is right.

    Attributes:
        row: that is right; None if the one that is written should be removed.
        identity, partition: of the row.
        offset: of the record that is wrong.
    """

    row: StoredRow | None
    identity: str
    partition: int
    offset: int


class Applier:
    """Applies batches of one view; knows nothing of Kafka, so that a batch can be tried as often as one likes.

    Attributes:
        counts: records `applied`, `unusable` (no rows), `stale` (of a build that is over), and `refills` of the sink.
    """

    def __init__(self, spec: ViewSpec, store: RowStore, sink: Sink | None) -> None:
        """Apply to `store`, and to `sink` if there is one."""
        self.counts: Counter[str] = Counter()
        self._spec, self._store, self._sink = spec.computed, store, sink
        self._shown = ShownRows(spec, store) if spec.is_condensed else None
        self._held: Offsets | None = None
        self.current: str | None = store.fact("current")
        self._retired: set[str] = set(store.fact("retired") or ())

    def check_sink(self) -> None:
        """Fill the sink from the read model if it does not hold what was applied to it.

        Raises:
            TransientError: the server is away; a retry helps.
        """
        if self._sink is None:
            return
        held, applied = self._sink.offsets(), self._store.offsets()
        if held is None or any(held.get(partition, 0) < offset for partition, offset in applied.items()):
            if applied:
                _log.warning("filling the sink", sink=self._spec.sink.value, held=held, applied=applied)
                self.counts["refills"] += 1
            self._sink.replace(self._rows(), (), applied)
            held = applied
        self._held = held

    def apply(self, records: Sequence[RowRecord]) -> list[Amends]:
        """Apply `records`, which are in order per partition; returns what the topic should have instead of some.

        Raises:
            TransientError: sink or file are away or full; a retry with the same records is right.
        """
        done = _Read(self._store.fact("final_before"))
        for record in records:
            self._read(record, done)
        if self.current is None and done.rows:
            self.current = next(iter(done.builds))
        build = self._kept_as(self.current or "")
        known = {row.identity: row for row in self._store.stored(done.touched) if row.build == build}
        rows, removed, amends = self._settle(done)
        shown = [row for row in rows if row.build == build]
        taken = {one: (known[one], done.removals[one].place) for one in removed if one in known}
        gone = [row for row, _ in taken.values()]
        if self._shown is not None:
            shown, gone = self._shown.of_change(self.current or "", shown, taken)
            rows, removed = [*rows, *shown], [*removed, *(row.identity for row in gone)]
        offsets = {record.partition: record.offset + 1 for record in records}
        self._to_sink(shown, gone, offsets)
        self._store.apply(rows, removed, offsets, current=self.current)
        self.counts["applied"] += len(records)
        return amends

    def finish(self, watermark: datetime) -> None:
        """Mark the rows of windows that end by `watermark` as final; the topic holds their last versions before now.

        Raises:
            TransientError: as for `apply`.
        """
        before = _moment(self._store.fact("final_before"))
        if (
            self.current is None
            or self._shown is not None
            or self._spec.window is None
            or (before is not None and before >= watermark)
        ):
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

    def left_over(self, build: str) -> Iterator[Amends]:
        """Give removals of the rows that the topic still holds of the current build, and `build` does not have."""
        for row in self._store.rows(self._kept_as(self.current or ""), without=self._kept_as(build)):
            yield Amends(None, row.identity, row.partition, row.offset)

    def switch(self, build: str) -> None:
        """Let readers see `build`, which is complete, and forget the others.

        Raises:
            TransientError: as for `apply`; nothing has changed for the readers of the file.
        """
        if self._shown is not None:
            self._shown.make_all(build)
        if self._sink is not None:
            gone = self._store.rows(self.current or "", without=build)
            self._sink.replace(self._store.rows(build), gone, self._store.offsets())
            self._held = self._store.offsets()
        self._retired = (self._retired | ({self.current} if self.current else set())) - {build}
        self._store.note(retired=sorted(self._retired), final_before=None)
        self._store.switch(build)
        _log.info("build in force", build=build, before=self.current)
        self.current = build

    def expect(self, build: str) -> bool:
        """Take rows of `build` from now on; False if those that came since it was replaced were left out until now.

        A view that is changed back has the name of its earlier build again.
        """
        if build not in self._retired:
            return True
        self._retired -= {build}
        self._store.note(retired=sorted(self._retired))
        self._store.forget_offsets()
        return False

    def restart(self) -> None:
        """Forget everything: the topic is another one."""
        self._store.reset()
        self.current, self._retired = None, set()
        if self._sink is not None:
            self._sink.replace((), (), {})
            self._held = {}

    def _read(self, record: RowRecord, done: _Read) -> None:
        if record.value is None:
            done.remove(record)
            return
        try:
            row = ViewRow.from_record(record.value, record.topic, record.partition, record.offset)
            stored = StoredRow.of(row, self._spec.key, record.key, record.place)
        except (InvalidEvent, KeyError) as error:
            self.counts["unusable"] += 1
            what = str(error) if isinstance(error, InvalidEvent) else f"no column {error} of the key"
            _log.warning("record left out", partition=record.partition, offset=record.offset, reason=what[:500])
            return
        if stored.build in self._retired and stored.build != self.current:
            self.counts["stale"] += 1
            done.stale[record.key] = record
            return
        final_before = _moment(done.final_before) if stored.build == self.current and self._shown is None else None
        done.builds.setdefault(stored.build)
        done.put(replace(stored.closed_by(final_before), build=self._kept_as(stored.build)))

    def _settle(self, done: _Read) -> tuple[list[StoredRow], list[str], list[Amends]]:
        """Decide what removals and stale records mean, given what there is."""
        amends: list[Amends] = []
        removed: list[str] = []
        right = {row.identity: row for row in sorted(self._store.stored(done.touched), key=lambda row: row.offset)}
        right |= {row.identity: row for row in done.rows.values()}
        for identity, record in done.removals.items():
            row = right.get(identity)
            if row is not None and record.removes is not None and row.offset > record.removes:
                amends.append(Amends(row, identity, row.partition, record.offset))
            else:
                removed.append(identity)
                right.pop(identity, None)
        gone = set(removed)
        kept = [row for row in done.rows.values() if row.identity not in gone]
        for identity, record in done.stale.items():
            amends.append(Amends(right.get(identity), identity, record.partition, record.offset))
        return kept, removed, amends

    def _to_sink(self, rows: Sequence[StoredRow], removed: Sequence[StoredRow], offsets: Offsets) -> None:
        if self._sink is None:
            return
        held = self._checked() if self._held is None else self._held
        # After a crash between sink and file the sink is ahead: it must not see older versions again.
        # A row that is made of several has no one offset: an older sum is there for a moment, until all is read again.
        is_ahead = self._shown is None and offsets
        new = [row for row in rows if not is_ahead or row.offset >= held.get(row.partition, 0)]
        ahead = held | {partition: max(offset, held.get(partition, 0)) for partition, offset in offsets.items()}
        try:
            self._sink.apply(SinkBatch(new, removed, ahead))
        except SinkLost:
            ahead = self._checked() | offsets
            self._sink.apply(SinkBatch(rows, removed, ahead))
        self._held = ahead

    def _checked(self) -> Offsets:
        self.check_sink()
        return self._held or {}

    def _kept_as(self, build: str) -> str:
        """Name the build under which the store has the rows of the topic."""
        return build if self._shown is None else parts_of(build)

    def _rows(self) -> Iterator[StoredRow]:
        return self._store.rows(self.current or "")


class _Read:
    """What a batch of records says: the last word on each row."""

    def __init__(self, final_before: str | None) -> None:
        self.final_before = final_before
        self.builds: dict[str, None] = {}
        self.rows: dict[tuple[str, str], StoredRow] = {}
        self.removals: dict[str, RowRecord] = {}
        self.stale: dict[str, RowRecord] = {}

    @property
    def touched(self) -> set[str]:
        return {*self.removals, *self.stale}

    def put(self, row: StoredRow) -> None:
        self.rows[row.build, row.identity] = row
        self.removals.pop(row.identity, None)
        self.stale.pop(row.identity, None)

    def remove(self, record: RowRecord) -> None:
        self.removals[record.key] = record
        self.stale.pop(record.key, None)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
