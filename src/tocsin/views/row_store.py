"""The read model of a view: one SQLite file that holds its rows, and the offsets up to which its topic is applied.

Rows of several builds lie side by side; readers see those of the current build. `<state>/views/<name>.db`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from tocsin.declare.settings import Settings
from tocsin.platform.kafka.reader import Offsets
from tocsin.platform.state_db import StateDb
from tocsin.views.stored_row import StoredRow, micros, moment_of, parts_of

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (
    build TEXT, identity TEXT, name TEXT, key TEXT, window_start INTEGER, window_end INTEGER, "values" TEXT,
    is_final INTEGER, "partition" INTEGER, "offset" INTEGER, appended_at INTEGER, change INTEGER,
    PRIMARY KEY (build, identity)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_name ON rows (build, name, window_start);
CREATE INDEX IF NOT EXISTS by_window ON rows (build, window_start, name) WHERE window_start IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_end ON rows (build, window_end) WHERE window_end IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_change ON rows (build, change);
"""
COLUMNS = 'build, identity, name, key, window_start, window_end, "values", is_final, "partition", "offset", appended_at'
# Not INSERT OR REPLACE, which writes every index anew: what the identity says, name and window, stays as it is.
_PUT = f"""
INSERT INTO rows ({COLUMNS}, change) VALUES ({", ".join("?" * 12)})
ON CONFLICT DO UPDATE SET
    "values" = excluded."values", is_final = excluded.is_final,
    "partition" = excluded."partition", "offset" = excluded."offset",
    appended_at = excluded.appended_at, change = excluded.change
"""
_CHUNK = 1000
_TAKEN = re.compile("rows|offsets|facts|by_(name|window|end|change)|sqlite_.*", re.IGNORECASE)
CURRENT = "(SELECT json_extract(value, '$') FROM facts WHERE name = 'current')"


def store_path(settings: Settings, view: str) -> Path:
    """Name the file of `view`."""
    return settings.state / "views" / f"{view}.db"


class RowStore(StateDb):
    """The rows of one view; see `StateDb`."""

    def __init__(self, path: Path, table: str = "") -> None:
        """Open `path`; it is made if it is not there. `table` names the SQL view that shows the rows to others."""
        super().__init__(path, _SCHEMA)
        self._builds = self._stored_builds()
        self._table = "" if _TAKEN.fullmatch(table) else table
        self._columns: dict[str, list[str]] = self.fact("columns") or {
            "table": [],
            "key": [],
            "values": [],
            "window": [],
        }

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let no other process write during the block; what the block writes is stored whole, or not at all."""
        with self._transaction():
            self._builds = self._stored_builds()
            yield

    def find(self, identities: Iterable[str]) -> list[StoredRow]:
        """Return the rows with these identities, of all builds."""
        query = f"SELECT {COLUMNS} FROM rows WHERE build = ? AND identity = ?"
        places = [(build, identity) for identity in identities for build in self._builds]
        return [row_of(found) for place in places for found in self._all(query, *place)]

    def apply(self, rows: Iterable[StoredRow], removed: Iterable[str], offsets: Offsets, **facts: Any) -> None:
        """Put `rows` in place, remove those with the identities `removed`, remember `offsets`; all or nothing."""
        put = sorted(rows, key=attrgetter("build", "identity"))  # neighbours lie on the same pages
        with self._change() as change:
            gone = [(build, identity) for identity in removed for build in self._builds]
            self._connection.executemany("DELETE FROM rows WHERE build = ? AND identity = ?", gone)
            self._connection.executemany(_PUT, [(*_values_of(row), change) for row in put])
            self._put_offsets(offsets)
            self._note(facts)
            self._show_columns(put)
        self._builds |= {row.build for row in put}

    def _show_columns(self, rows: Iterable[StoredRow]) -> None:
        """Make the SQL view anew when `rows` have a column that it lacks: plain columns for whoever reads the file."""
        found = {name: dict.fromkeys(known) for name, known in self._columns.items()}
        for row in rows:
            found["key"] |= dict.fromkeys(row.key)
            found["values"] |= dict.fromkeys(row.values)
            found["window"] |= dict.fromkeys(["window_start", "window_end"] if row.window_start is not None else [])
        columns = {name: [*names] for name, names in found.items()} | {"table": [self._table]}
        if not self._table or columns == self._columns:
            return
        # A name that a path of JSON cannot hold stays in `key` and "values" of the table `rows`.
        shown = {
            name: f"json_extract({place}, '$.\"{name.replace(chr(39), chr(39) * 2)}\"')"
            for place, names in (("key", columns["key"]), ('"values"', columns["values"]))
            for name in names
            if '"' not in name
        }
        times = {name: f"strftime('%Y-%m-%d %H:%M:%f', {name} / 1e6, 'unixepoch')" for name in columns["window"]}
        final = {"final": "is_final"} if times and "final" not in shown else {}
        selected = ", ".join(f'{expression} AS "{name}"' for name, expression in (times | shown | final).items())
        for before in self._columns["table"]:
            self._connection.execute(f'DROP VIEW IF EXISTS "{before}"')
        self._connection.execute(f'CREATE VIEW "{self._table}" AS SELECT {selected} FROM rows WHERE build = {CURRENT}')
        self._note({"columns": columns})
        self._columns = columns

    def rows(self, build: str, *, without: str | None = None) -> Iterator[StoredRow]:
        """Give the rows of `build`; only those that the build `without` does not have, if one is given."""
        query = f"SELECT {COLUMNS} FROM rows AS row WHERE build = ? AND identity > ?"
        if without is None:
            yield from self._each(query, build)
        else:
            query += " AND NOT EXISTS (SELECT 1 FROM rows WHERE build = ? AND identity = row.identity)"
            yield from self._each(query, build, without)

    def _each(self, query: str, build: str, *arguments: str) -> Iterator[StoredRow]:
        """Give what `query` finds of `build` behind an identity, in order, a thousand rows at a time."""
        last = ""
        while found := self._all(f"{query} ORDER BY identity LIMIT {_CHUNK}", build, last, *arguments):
            yield from map(row_of, found)
            last = found[-1][1]

    def rows_named(self, build: str, name: str, *, is_prefix: bool) -> list[StoredRow]:
        """Return the rows of `build` called `name`, or of all keys that begin with the values of `name`."""
        low, high = (f"{name}:", f"{name};") if is_prefix else (name, f"{name}\0")
        query = f"SELECT {COLUMNS} FROM rows INDEXED BY by_name WHERE build = ? AND name >= ? AND name < ?"
        return [row_of(found) for found in self._all(query, build, low, high)]

    def clear(self, build: str) -> None:
        """Remove the rows of `build`."""
        with self._change():
            self._connection.execute("DELETE FROM rows WHERE build = ?", (build,))

    def closed_rows(self, build: str, after: datetime | None, until: datetime) -> list[StoredRow]:
        """Return up to 1,000 rows that are not final, with windows that end after `after` and by `until`, in order."""
        low = -(2**62) if after is None else micros(after)
        query = f"SELECT {COLUMNS} FROM rows WHERE build = ? AND window_end > ? AND window_end <= ? AND NOT is_final"
        return [
            row_of(found)
            for found in self._all(f"{query} ORDER BY window_end LIMIT {_CHUNK}", build, low, micros(until))
        ]

    def expired_rows(self, build: str, before: datetime) -> list[StoredRow]:
        """Return up to 1,000 rows with windows that ended before `before`."""
        query = f"SELECT {COLUMNS} FROM rows WHERE build = ? AND window_end < ? LIMIT {_CHUNK}"
        return [row_of(found) for found in self._all(query, build, micros(before))]

    def switch(self, build: str, pending: Iterable[str] = ()) -> None:
        """Let readers see `build`, and remove all others but those that are `pending`: to begin later."""
        keep = {stored for name in (build, *pending) for stored in (name, parts_of(name))}
        with self._change():
            for other in self._builds - keep:
                self._connection.execute("DELETE FROM rows WHERE build = ?", (other,))
            self._note({"current": build})
        self._builds &= keep

    def other_builds(self, builds: Iterable[str]) -> set[str]:
        """List the builds that have rows, without `builds` and what the topic holds of them."""
        return {build.removesuffix(parts_of("")) for build in self._builds} - {*builds}

    def shadowed_rows(self, build: str, by: str) -> Iterator[StoredRow]:
        """Give the rows of `build` of which the topic holds a later version of the build `by`."""
        query = f"""SELECT {COLUMNS} FROM rows AS row WHERE build = ? AND identity > ? AND "offset" < (
            SELECT "offset" FROM rows WHERE build = ? AND identity = row.identity AND "partition" = row."partition")"""
        yield from self._each(query, build, by)

    def forget_offsets(self) -> None:
        """Let the topic be applied again from its start; rows stay."""
        with self._change():
            self._connection.execute("DELETE FROM offsets")

    def reset(self) -> None:
        """Forget everything."""
        with self._change():
            for table in ("rows", "offsets", "facts WHERE name <> 'change'"):
                self._connection.execute(f"DELETE FROM {table}")
        self._builds = set()

    def _stored_builds(self) -> set[str]:
        """List the builds that have rows; one look into the index for each, since a DISTINCT would read it whole."""
        found: set[str] = set()
        while build := self._all("SELECT min(build) FROM rows WHERE build > ?", max(found, default=""))[0][0]:
            found.add(build)
        return found

    @contextlib.contextmanager
    def _change(self) -> Iterator[int]:
        """Make changes, in a turn, that have a number of their own: readers see by it what has changed."""
        with contextlib.nullcontext() if self._connection.in_transaction else self.turn():
            change = 1 + (self.fact("change") or 0)
            self._note({"change": change})
            yield change


def row_of(found: tuple[Any, ...]) -> StoredRow:
    """Make a row of its COLUMNS."""
    build, identity, name, key, start, end, values, is_final, partition, offset, appended_at = found
    return StoredRow(
        identity=identity,
        name=name,
        key=json.loads(key),
        window_start=None if start is None else moment_of(start),
        window_end=None if end is None else moment_of(end),
        values=json.loads(values),
        build=build,
        is_final=bool(is_final),
        partition=partition,
        offset=offset,
        appended_at=moment_of(appended_at * 1000),
    )


def _json(value: dict[str, Any]) -> str:
    return to_json(value).decode()  # a seventh of the time of json.dumps


def _values_of(row: StoredRow) -> tuple[Any, ...]:
    return (
        row.build,
        row.identity,
        row.name,
        _json(row.key),
        None if row.window_start is None else micros(row.window_start),
        None if row.window_end is None else micros(row.window_end),
        _json(row.values),
        row.is_final,
        row.partition,
        row.offset,
        micros(row.appended_at) // 1000,
    )
