"""Apply the records of a view's topic to its read model and its sink, each row once or again to the same effect.

The sink outside comes first, then the SQLite file. Both remember the offsets with the rows, so after a crash in between
the file is behind, its records are read again, and what the sink has already is left out for it.

Several processes may share the partitions of a view. Each applies a batch in a turn of the file, in which nobody else
writes, and leaves out what the file says is applied: another process has taken the partition over.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog

from tocsin.declare.model.errors import InvalidEvent
from tocsin.declare.model.view import ViewSpec
from tocsin.platform.kafka.reader import Offsets
from tocsin.platform.state_db import TOPIC_ID
from tocsin.views.rebuild.rebuild_request import FROM_HISTORY
from tocsin.views.row_store import RowStore
from tocsin.views.sinks.sink import Sink, SinkBatch, SinkLost
from tocsin.views.stored_row import (
    ReadBatch,
    RowRecord,
    StoredRow,
    TopicWrite,
    ViewRow,
    canonical_key,
    name_of,
    parts_of,
)

_log = structlog.get_logger()


class Applier:
    """Applies batches of one view; knows nothing of Kafka, so that a batch can be tried as often as one likes.

    Attributes:
        counts: records `applied`, `unusable` (no rows), `stale` (of a build that is over), `taken` (of a partition that
            another process has taken over), and `refills` of the sink.
        is_set_back: whether another process has let the topic be applied again from an earlier place: what was given to
            `apply` last is not applied, and reading must go on from `positions`.

    Raises from every method:
        TransientError: the sink or the file is away or full; a retry of the same call is right.
    """

    def __init__(self, spec: ViewSpec, store: RowStore, sink: Sink | None) -> None:
        self.counts: Counter[str] = Counter()
        self._spec, self._store, self._sink = spec.computed, store, sink
        self._shown = ShownRows(spec, store) if spec.is_condensed else None
        self.current: str | None = None
        self.is_set_back = False
        self._retired: set[str] = set()
        self._sink_offsets: Offsets | None = None
        self._reached = store.offsets()
        self.refresh()

    def refresh(self) -> None:
        """Learn which build is in force, in case another process has switched to it."""
        self.current = self._store.fact("current")
        self._retired = set(self._store.fact("retired") or ())

    def positions(self, partitions: Iterable[int] | None = None) -> Offsets:
        """Return the next offset to apply by partition; `apply` is then given what follows, of `partitions` or all."""
        applied = self._store.offsets()
        if partitions is None:
            self._reached = dict(applied)
        else:
            self._reached |= {partition: applied.get(partition, 0) for partition in partitions}
        return applied

    @property
    def topic_id(self) -> str:
        """Return the id of the topic that is applied; "" while nobody has noted it."""
        return self._store.fact(TOPIC_ID) or ""

    def note_topic(self, topic_id: str) -> None:
        """Note the id of the topic that is applied from now on."""
        self._store.note(**{TOPIC_ID: topic_id})

    def check_sink(self) -> None:
        """Fill the sink from the read model if it does not hold what was applied to it."""
        if self._sink is not None:
            with self._turn():
                self._sink_offsets = self._check(self._sink)

    def apply(self, records: Sequence[RowRecord]) -> list[TopicWrite]:
        """Apply `records`, which are in order per partition; returns what the topic should have instead of some."""
        read = [(record, self._parse(record)) for record in records]
        with self._turn():
            applied = self._store.offsets()
            self.is_set_back = any(
                applied.get(record.partition, 0) < self._reached.get(record.partition, 0) for record in records
            )
            if self.is_set_back:
                return []
            mine = [(record, row) for record, row in read if record.offset >= applied.get(record.partition, 0)]
            writes = self._apply(mine) if mine else []
        self.counts["taken"] += len(read) - len(mine)
        self._reached |= applied | {record.partition: record.offset + 1 for record, _ in mine}
        return writes

    def _apply(self, read: Sequence[tuple[RowRecord, StoredRow | None]]) -> list[TopicWrite]:
        batch = ReadBatch(_parse_time(self._store.fact("final_before")))
        for record, row in read:
            self._add(record, row, batch)
        if self.current is None and batch.rows:  # what history gives is whole only when its job says so
            self.current = next((build for build in batch.builds if not build.startswith(FROM_HISTORY)), None)
        build = self._stored_build(self.current or "")
        known = {row.identity: row for row in self._store.find(batch.touched) if row.build == build}
        rows, removed, writes = self._settle(batch)
        shown = [row for row in rows if row.build == build]
        deleted = {
            identity: (known[identity], batch.removals[identity].place) for identity in removed if identity in known
        }
        gone = [row for row, _ in deleted.values()]
        if self._shown is not None:
            shown, gone = self._shown.of_change(self.current or "", shown, deleted)
            rows, removed = [*rows, *shown], [*removed, *(row.identity for row in gone)]
        offsets = {record.partition: record.offset + 1 for record, _ in read}
        self._to_sink(shown, gone, offsets)
        self._store.apply(rows, removed, offsets, current=self.current)
        self.counts["applied"] += len(read)
        return writes

    def finish(self, watermark: datetime) -> None:
        """Mark the rows of windows that end by `watermark` as final; the topic holds their last versions before now."""
        if self._shown is not None or self._spec.window is None:
            return
        with self._turn():
            after = _parse_time(self._store.fact("final_before"))
            if self.current is None or (after is not None and after >= watermark):
                return
            while closed := self._store.closed_rows(self.current, after, watermark):
                rows = [row._replace(is_final=True) for row in closed]
                self._to_sink(rows, [], {})
                self._store.apply(rows, (), {})
                after = (rows[-1].window_end or watermark) - timedelta(microseconds=1)  # others may end with it
            self._store.note(final_before=watermark.isoformat())

    def find_expired(self, watermark: datetime) -> list[TopicWrite]:
        """Return deletions of rows that are older than the view keeps them; up to 1,000."""
        if self._spec.keep is None or self.current is None:
            return []
        rows = self._store.expired_rows(self._stored_build(self.current), watermark - self._spec.keep)
        return [TopicWrite(None, row.identity, row.partition, row.offset) for row in rows]

    def switch_writes(self, build: str, pending: Collection[str] = ()) -> Iterator[TopicWrite]:
        """Give the writes to the topic that end all builds but `build` and those that are `pending`.

        Rows that `build` does not have are deleted. Those that shadow an earlier one of `build` are overwritten by it.
        """
        into = self._stored_build(build)
        for other in map(self._stored_build, self._store.other_builds({build, *pending})):
            for row in self._store.rows(other, without=into):
                yield TopicWrite(None, row.identity, row.partition, row.offset)
            for row in self._store.shadowed_rows(into, other):
                yield TopicWrite(row, row.identity, row.partition, row.offset)

    def switch(self, build: str, pending: Collection[str] = ()) -> None:
        """Let readers see `build`, which is complete, and forget the others but those that are `pending`.

        After a TransientError nothing has changed for the readers of the file.
        """
        with self._turn():
            if self._shown is not None:
                self._shown.make_all(build)
            if self._sink is not None:
                gone = self._store.rows(self.current or "", without=build)
                self._sink.replace(self._store.rows(build), gone, self._store.offsets())
                self._sink_offsets = self._store.offsets()
            replaced = self._store.other_builds({build, *pending}) | ({self.current} if self.current else set())
            self._retired = (self._retired | replaced) - {build}
            self._store.note(retired=sorted(self._retired), final_before=None)
            self._store.switch(build, pending)
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
                self._sink_offsets = {}

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with self._store.turn():
            self.refresh()
            yield

    def _parse(self, record: RowRecord) -> StoredRow | None:
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

    def _add(self, record: RowRecord, stored: StoredRow | None, batch: ReadBatch) -> None:
        if record.value is None:
            batch.remove(record)
        if stored is None:
            return
        if stored.build in self._retired and stored.build != self.current:
            self.counts["stale"] += 1
            batch.stale[record.key] = record
            return
        batch.builds.setdefault(stored.build)
        if self._shown is not None:
            stored = stored._replace(build=parts_of(stored.build))
        elif stored.build == self.current:
            stored = stored.closed_by(batch.final_before)
        batch.put(stored)

    def _settle(self, batch: ReadBatch) -> tuple[list[StoredRow], list[str], list[TopicWrite]]:
        """Decide what removals and stale records mean, given what there is."""
        writes: list[TopicWrite] = []
        removed: list[str] = []
        pending: list[StoredRow] = []
        stored = sorted(self._store.find(batch.touched), key=lambda row: row.offset)
        right = {row.identity: row for row in stored} | {row.identity: row for row in batch.rows.values()}
        for identity, record in batch.removals.items():
            row = right.get(identity)
            if row is not None and record.removes is not None and row.offset > record.removes:
                writes.append(TopicWrite(row, identity, row.partition, record.offset))
                if self._is_pending(row, stored):  # a later build has the row, and readers lose theirs
                    removed.append(identity)
                    pending.append(row)
            else:
                removed.append(identity)
                right.pop(identity, None)
        gone = set(removed)
        rows = [*(row for row in batch.rows.values() if row.identity not in gone), *pending]
        for identity, record in batch.stale.items():
            writes.append(TopicWrite(right.get(identity), identity, record.partition, record.offset))
        return rows, removed, writes

    def _is_pending(self, row: StoredRow, stored: Sequence[StoredRow]) -> bool:
        """Return whether `row` is of a build that readers do not see yet, and `stored` has one that they see."""
        current = self._stored_build(self.current or "")
        return row.build != current and any(
            (other.build, other.identity) == (current, row.identity) for other in stored
        )

    def _to_sink(self, rows: Sequence[StoredRow], removed: Sequence[StoredRow], offsets: Offsets) -> None:
        if self._sink is None:
            return
        in_sink = self._check(self._sink) if self._sink_offsets is None else self._sink_offsets
        try:
            self._put(self._sink, in_sink, SinkBatch(rows, removed, offsets))
        except SinkLost:
            self._put(self._sink, self._check(self._sink), SinkBatch(rows, removed, offsets))

    def _put(self, sink: Sink, in_sink: Offsets, batch: SinkBatch) -> None:
        # After a crash between sink and file the sink is ahead: it must not see older versions again.
        # A row that is made of several has no one offset: an older sum is there for a moment, until all is read again.
        is_ahead = self._shown is None and batch.offsets
        new = [row for row in batch.rows if not is_ahead or row.offset >= in_sink.get(row.partition, 0)]
        ahead = in_sink | {
            partition: max(offset, in_sink.get(partition, 0)) for partition, offset in batch.offsets.items()
        }
        sink.apply(SinkBatch(new, batch.removed, ahead))
        self._sink_offsets = ahead

    def _check(self, sink: Sink) -> Offsets:
        """Return up to where the sink has applied the topic, after filling it if the file is further.

        It is filled, too, when the view names another table than before: the offsets there say nothing of that one.
        """
        in_sink, applied = sink.offsets(), self._store.offsets()
        table, noted = self._spec.table, self._store.fact("table")
        is_other = noted not in (None, table)
        if in_sink is None or is_other or any(in_sink.get(part, 0) < offset for part, offset in applied.items()):
            if applied:
                _log.warning("filling the sink", sink=self._spec.sink, table=table, in_sink=in_sink, applied=applied)
                self.counts["refills"] += 1
            sink.replace(self._store.rows(self.current or ""), (), applied)
            in_sink = applied
        if noted != table:
            self._store.note(table=table)
        return in_sink

    def _stored_build(self, build: str) -> str:
        """Name the build under which the store has the rows of the topic."""
        return build if self._shown is None else parts_of(build)


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


Place = tuple[int, int, datetime]
"""Partition, offset and append time of a record."""

_CHUNK = 1000


class ShownRows:
    """The shown rows of one view, whose parts are in `store`."""

    def __init__(self, spec: ViewSpec, store: RowStore) -> None:
        self._key, self._store = spec.shown.key, store
        self._is_total = bool(spec.total)

    def of_change(
        self, build: str, parts: Iterable[StoredRow], removed: Mapping[str, tuple[StoredRow, Place]]
    ) -> tuple[list[StoredRow], list[StoredRow]]:
        """Return the shown rows of `build` that change, and those that go.

        The store does not have `parts` yet. `removed` are parts by identity, with the place of the record that says so.
        """
        touched: dict[str, list[tuple[StoredRow, Place]]] = {}
        for part, place in (*((part, _place(part)) for part in parts), *removed.values()):
            touched.setdefault(self._name(part), []).append((part, place))
        shown: list[StoredRow] = []
        gone: list[StoredRow] = []
        for name, changes in touched.items():
            here = {part.identity: part for part in (*self._parts(build, name), *(part for part, _ in changes))}
            left = [part for identity, part in here.items() if identity not in removed]
            row = self._row(build, left or [*here.values()], max((place for _, place in changes), key=_appended_at))
            (shown if left else gone).append(row)
        return shown, gone

    def make_all(self, build: str) -> None:
        """Make all rows of `build` of the parts that the store has."""
        self._store.clear(build)
        names = {self._name(part) for part in self._store.rows(parts_of(build))}
        rows: list[StoredRow] = []
        for name in names:
            parts = self._parts(build, name)
            rows.append(self._row(build, parts, max(map(_place, parts), key=_appended_at)))
            if len(rows) == _CHUNK:
                self._store.apply(rows, (), {})
                rows = []
        self._store.apply(rows, (), {})

    def _name(self, part: StoredRow) -> str:
        return name_of(part.key[column] for column in self._key)

    def _parts(self, build: str, name: str) -> list[StoredRow]:
        return self._store.rows_named(parts_of(build), name, is_prefix=self._is_total)

    def _row(self, build: str, parts: list[StoredRow], place: Place) -> StoredRow:
        latest: dict[str, StoredRow] = {}
        for part in sorted(parts, key=lambda part: (part.window_start is not None, part.window_start)):
            latest[part.name] = part
        last = parts[0] if self._is_total else next(iter(latest.values()))
        key = {column: last.key[column] for column in self._key}
        partition, offset, appended_at = place
        return last._replace(
            identity=canonical_key(key, None),
            name=name_of(key.values()),
            key=key,
            window_start=None,
            window_end=None,
            values=_sum_columns(latest.values()) if self._is_total else last.values,
            build=build,
            partition=partition,
            offset=offset,
            appended_at=appended_at,
        )


def _place(row: StoredRow) -> Place:
    return row.partition, row.offset, row.appended_at


def _appended_at(place: Place) -> datetime:
    return place[2]


def _sum_columns(rows: Iterable[StoredRow]) -> dict[str, Any]:
    """Sum up each value; null counts as nothing, and the sum of nothing is null."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for column, value in row.values.items():
            columns.setdefault(column, []).extend([] if value is None else [value])
    return {column: _sum(numbers) for column, numbers in columns.items()}


def _sum(numbers: list[Any]) -> Any:
    """Add up exactly: the sum does not depend on the order of the numbers."""
    if not numbers:
        return None
    return math.fsum(numbers) if any(isinstance(number, float) for number in numbers) else sum(numbers)
