"""The versions of the rows of a table: since when each holds, and until when. `<state>/tables/<name>/versions.db`.

Versions of one key never overlap. What a published snapshot says of the past stays: what is published late begins to
hold where no job has looked yet.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.table import TableSpec
from tocsin.platform.state_db import TOPIC_ID, StateDb
from tocsin.spark.tables.table_row import TableRow

_SCHEMA = """
CREATE TABLE IF NOT EXISTS versions (
    key TEXT, valid_from INTEGER, valid_to INTEGER, "values" TEXT, record TEXT, reading INTEGER,
    begun_in INTEGER, ended_in INTEGER, PRIMARY KEY (key, valid_from)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_record ON versions (record) WHERE valid_to IS NULL;
CREATE INDEX IF NOT EXISTS by_end ON versions (valid_to) WHERE valid_to IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_beginning ON versions (begun_in);
CREATE INDEX IF NOT EXISTS by_ending ON versions (ended_in) WHERE ended_in IS NOT NULL;
"""
_OPEN = "key = ? AND valid_to IS NULL"


@dataclass(frozen=True)
class RowChange:
    """A record: what `row` was appended under the Kafka key `record`; None ends the rows under it."""

    record: str
    row: TableRow | None
    appended_at: datetime


@dataclass(frozen=True)
class RowVersion:
    """Values of one row, and when they hold, in microseconds since 1970; `valid_to` is None while they still do."""

    values: list[Any]
    valid_from: int
    valid_to: int | None


class VersionStore(StateDb):
    """See the module, and `StateDb`.

    Attributes:
        counts: versions that hold `later` than their records say, and changes `over_max_rows`, which were not taken.
        id: of this file; one that is made anew, as on another machine, has another.
    """

    def __init__(self, path: Path, spec: TableSpec) -> None:
        """Open `path`, which is made if it is not there; what it holds of other columns is forgotten."""
        super().__init__(path, _SCHEMA)
        self._spec = spec
        self.counts: Counter[str] = Counter()
        declared = [spec.source, spec.view, spec.topic or spec.file, [*map(list, spec.columns.items())], list(spec.key)]
        self.id: str = self.fact("id") or uuid.uuid4().hex
        if self.fact("declared") != declared:
            self._begin(declared)
        self.note(id=self.id)
        self.size: int = self._all("SELECT count(*) FROM versions")[0][0]

    @property
    def is_complete(self) -> bool:
        """Return whether all that its topic holds was read once."""
        return bool(self.fact("complete"))

    def forget_all(self) -> None:
        """Forget all versions, and what was read."""
        self._begin(self.fact("declared"))
        self.size = 0

    def begin_again(self) -> None:
        """Read from the start: another topic, or another build. What is not there ends when `end_reading` comes."""
        with self._transaction():
            self._connection.execute("DELETE FROM offsets")
            self._note({"reading": self.fact("reading") + 1, TOPIC_ID: ""})

    def apply(self, changes: Sequence[RowChange], offsets: dict[int, int], now: datetime, number: int) -> bool:
        """Take `changes` of one topic in order, and remember `offsets`: all or nothing. True if a version changed.

        `offsets` are of the next records, and `number` is of the snapshot that will be published next. No record was
        appended after `now`, whatever its producer says.
        """
        changed, reading = False, self.fact("reading")
        before, counts = self.size, self.counts.copy()
        try:
            with self._transaction():
                for change in changes:
                    moment = _micros(min(change.appended_at, now) + self._spec.settle)
                    changed |= self._take(change, moment, reading, number)
                self._put_offsets(offsets)
        except BaseException:
            self.size, self.counts = before, counts
            raise
        return changed

    def end_reading(self, now: datetime, number: int) -> bool:
        """Note that all that the topic holds was read; rows that were not in it end. Returns whether that is news."""
        reading = self.fact("reading")
        if self.fact("complete") == reading:
            return False
        gone = self._all("SELECT key FROM versions WHERE valid_to IS NULL AND reading < ?", reading)
        with self._transaction():
            for (key,) in gone:
                self._end(key, _micros(now + self._spec.settle), number)
            self._note({"complete": reading})
        return True

    def postpone(self, published: int, now: datetime) -> None:
        """Let what no snapshot up to the number `published` has told begin, or end, where no job has looked yet."""
        earliest = _micros(now + self._spec.settle - self._spec.punctual)
        query = "SELECT key FROM versions WHERE begun_in > ? AND valid_from < ? UNION "
        query += "SELECT key FROM versions WHERE ended_in > ? AND valid_to < ?"
        keys = self._all(query, published, earliest, published, earliest)
        with self._transaction():
            for (key,) in keys:
                self.counts["later"] += 1
                self._connection.execute(
                    "UPDATE versions SET valid_to = max(valid_to, ?) WHERE key = ? AND ended_in > ?",
                    (earliest, key, published),
                )
                self._postpone_beginnings(key, published, earliest)

    def forget(self, now: datetime) -> int:
        """Remove the versions that ended longer ago than the table keeps them; returns how many."""
        with self._transaction():
            before = _micros(now - self._spec.keep)
            gone = self._connection.execute("DELETE FROM versions WHERE valid_to <= ?", (before,)).rowcount
        self.size -= gone
        return gone

    def versions(self) -> Iterator[RowVersion]:
        """Give all versions."""
        query = 'SELECT "values", valid_from, valid_to FROM versions ORDER BY key, valid_from'
        with self._translated():
            for values, valid_from, valid_to in self._connection.execute(query):
                yield RowVersion(json.loads(values), valid_from, valid_to)

    def _begin(self, declared: Any) -> None:
        with self._transaction():
            for table in ("versions", "offsets", "facts"):
                self._connection.execute(f"DELETE FROM {table}")
            self._note({"declared": declared, "reading": 1, "id": self.id})

    def _take(self, change: RowChange, moment: int, reading: int, number: int) -> bool:
        row = change.row
        others = self._open_of(change.record) - ({row.key} if row is not None else set())
        for key in others:
            self._end(key, moment, number)
        if row is None:
            return bool(others)
        values = json.dumps(row.values, separators=(",", ":"), ensure_ascii=False)
        current = self._all(f'SELECT "values" FROM versions WHERE {_OPEN}', row.key)
        if current and current[0][0] == values:
            update = f"UPDATE versions SET reading = ?, record = ? WHERE {_OPEN}"
            self._connection.execute(update, (reading, change.record, row.key))
            return bool(others)
        if self.size >= self._spec.max_rows:
            self.counts["over_max_rows"] += 1
            return bool(others)
        last = self._all("SELECT max(valid_to) FROM versions WHERE key = ?", row.key)[0][0]
        begins = max(moment, last or moment, self._end(row.key, moment, number))
        self._connection.execute(
            "INSERT INTO versions VALUES (?, ?, NULL, ?, ?, ?, ?, NULL)",
            (row.key, begins, values, change.record, reading, number),
        )
        self.size += 1
        return True

    def _open_of(self, record: str) -> set[str]:
        if not record or self._spec.source is not None:  # events share the key of their source, and replace no others
            return set()
        found = self._all("SELECT key FROM versions WHERE record = ? AND valid_to IS NULL", record)
        return {key for (key,) in found}

    def _end(self, key: str, moment: int, number: int) -> int:
        """End the open version of `key`, if there is one, at `moment`, but not before it has begun; returns when."""
        ended = self._connection.execute(
            f"UPDATE versions SET valid_to = max(?, valid_from + 1), ended_in = ? WHERE {_OPEN} RETURNING valid_to",
            (moment, number, key),
        ).fetchall()
        return int(ended[0][0]) if ended else moment

    def _postpone_beginnings(self, key: str, published: int, earliest: int) -> None:
        """Of several versions that would begin by then, the last one does."""
        early = self._all(
            "SELECT valid_from FROM versions WHERE key = ? AND begun_in > ? AND valid_from < ? ORDER BY valid_from",
            *(key, published, earliest),
        )
        for (valid_from,) in early[:-1]:
            self._connection.execute("DELETE FROM versions WHERE key = ? AND valid_from = ?", (key, valid_from))
            self.size -= 1
        for (valid_from,) in early[-1:]:
            place = (earliest, key, valid_from)
            self._connection.execute("UPDATE versions SET valid_from = ? WHERE key = ? AND valid_from = ?", place)
        empty = "DELETE FROM versions WHERE key = ? AND valid_to <= valid_from"
        self.size -= self._connection.execute(empty, (key,)).rowcount


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)
