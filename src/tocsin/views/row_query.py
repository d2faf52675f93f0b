"""Read a view from its read model: one key, a page of keys, what has changed, and how fresh it is."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
import sqlite3
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tocsin.declare.model.errors import TransientError, nearest
from tocsin.declare.model.job_report import OVERDUE_SECONDS
from tocsin.views.row_store import COLUMNS, CURRENT, row_of
from tocsin.views.stored_row import StoredRow, micros, moment_of, name_of

_NEAR = 500


class Freshness(BaseModel, frozen=True):
    """The freshness of the rows of a view.

    Attributes:
        watermark: of the job that computes it, UTC: windows that ended by then are final; None until it is known.
        lag_records: records, of the source and of the topic of the view, that are not in the rows yet; None while
            that is unknown, because a job of the view has not reported for 7 seconds, or starts or waits.
        lag_seconds: how long ago the oldest of these was appended; while `lag_records` is unknown at least the time
            since the last report.
        version: changes with every change of the rows, and only goes up.
    """

    build: str
    watermark: datetime | None
    lag_records: int | None
    lag_seconds: float
    version: int
    rebuilding: bool


class RowShape(BaseModel, frozen=True):
    """One row of a view.

    Attributes:
        name: its key as one text, by which it is asked for; several columns are joined by colons.
    """

    name: str
    key: dict[str, Any]
    window_start: datetime | None
    window_end: datetime | None
    values: dict[str, Any]
    final: bool
    changed_at: datetime
    version: str

    @classmethod
    def of(cls, row: StoredRow) -> RowShape:
        """Show `row`."""
        return cls(
            name=row.name,
            key=row.key,
            window_start=row.window_start,
            window_end=row.window_end,
            values=row.values,
            final=row.is_final,
            changed_at=row.appended_at,
            version=f"{row.partition}-{row.offset}{'-final' if row.is_final else ''}",
        )


@dataclass(frozen=True)
class Page:
    """A page of rows, by name and window, and the cursor of the next one; None when this is the last."""

    rows: list[StoredRow]
    cursor: str | None


class ViewReader:
    """Reads the file of one view. For one thread; each method sees one state of the view.

    Raises from every method:
        TransientError: the file cannot be read now; a retry helps.
    """

    def __init__(self, path: Path) -> None:
        """Open the file `path`; FileNotFoundError if the job of the view has not made it yet."""
        if not path.exists():
            raise FileNotFoundError(path)
        self._path = path
        with self._translate_errors():
            address = f"{path.absolute().as_uri()}?mode=ro"
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
            made = self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone()
        if made is None:  # the last table of a new file
            self._connection.close()
            raise FileNotFoundError(path)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def freshness(self) -> Freshness | None:
        """Return how fresh the rows are; None while there are none to show."""
        with self._translate_errors():
            facts = {name: json.loads(value) for name, value in self._connection.execute("SELECT * FROM facts")}
        build, noted = facts.get("current"), facts.get("freshness") or {}
        if build is None:
            return None
        age = (datetime.now(UTC) - datetime.fromisoformat(noted["at"])).total_seconds() if noted else math.inf
        return Freshness(
            build=build,
            watermark=noted.get("watermark"),
            lag_records=noted["lag_records"] if age <= OVERDUE_SECONDS else None,
            lag_seconds=noted.get("lag_seconds", 0.0) + (age if OVERDUE_SECONDS < age < math.inf else 0.0),
            version=facts["change"],
            rebuilding=noted.get("rebuilding", False),
        )

    def build(self) -> str:
        """Name the build that readers see; "" while there is none."""
        with self._translate_errors():
            return str(self._connection.execute(f"SELECT ifnull({CURRENT}, '')").fetchone()[0])

    def get(self, name: str, window: datetime | None = None) -> StoredRow | None:
        """Return the row called `name`, of the window that starts at `window`, else of the last one; None without.

        The value of a key of one column finds its row, too, such as `::1`, whose name is `%3A%3A1`.
        """
        where, more = ("", []) if window is None else (" AND window_start = ?", [micros(window)])
        for own in dict.fromkeys((name, name_of([name]))):
            if found := self._rows("by_name", f"name = ?{where} ORDER BY window_start DESC LIMIT 1", own, *more):
                return found[0]
        return None

    def page(self, prefix: str = "", window: datetime | None = None, limit: int = 100, cursor: str = "") -> Page:
        """Return rows by name and window: names with `prefix`, of the windows that start at `window` (None: of all).

        They begin behind `cursor`; rows that come meanwhile disturb no page. ValueError for a foreign cursor.
        """
        after = _place(cursor) if cursor else None
        wanted: list[str] = ["name >= ?", "name < ?"]
        arguments: list[Any] = [max(prefix, after[0] if after else ""), prefix + chr(sys.maxunicode)]
        if window is not None:
            wanted, arguments = [*wanted, "window_start = ?"], [*arguments, micros(window)]
        if after:
            wanted, arguments = [*wanted, "(name, ifnull(window_start, 0)) > (?, ?)"], [*arguments, *after]
        order = "ORDER BY name, window_start LIMIT ?"
        index = "by_name" if window is None else "by_window"
        rows = self._rows(index, f"{' AND '.join(wanted)} {order}", *arguments, limit + 1)
        return Page(rows[:limit], _cursor(rows[limit - 1]) if len(rows) > limit else None)

    def changes(self, since: int, name: str | None = None, limit: int = 1000) -> tuple[list[StoredRow], int]:
        """Return rows that changed after the version `since`, in order, and the version up to which that is all."""
        index, where, more = ("by_change", "", []) if name is None else ("by_name", " AND name = ?", [name])
        with self._translate_errors():
            query = (
                f"SELECT {COLUMNS}, change FROM rows INDEXED BY {index} WHERE build = {CURRENT} AND change > ?{where}"
            )
            found = self._connection.execute(f"{query} ORDER BY change LIMIT ?", [since, *more, limit]).fetchall()
            if len(found) < limit:
                reached = max([since, *(row[-1] for row in found)])
            else:  # the last change may be here in part
                reached = found[-1][-1] - 1
                found = [row for row in found if row[-1] <= reached] or found
                reached = max(reached, found[-1][-1])
        return [row_of(row[:-1]) for row in found], reached

    def nearest(self, name: str) -> str | None:
        """Return a name of a row that is close to `name`; None when none is close."""
        with self._translate_errors():
            query = f"SELECT DISTINCT name FROM rows WHERE build = {CURRENT} AND name"
            after = self._connection.execute(f"{query} >= ? ORDER BY name LIMIT ?", [name[:1], _NEAR]).fetchall()
            before = self._connection.execute(f"{query} < ? ORDER BY name DESC LIMIT ?", [name, _NEAR]).fetchall()
        return nearest(name, [found for (found,) in (*after, *before)])

    def _rows(self, index: str, where: str, *arguments: Any) -> list[StoredRow]:
        with self._translate_errors():
            # Left to itself SQLite takes the first column of the primary key, and reads the whole build.
            query = f"SELECT {COLUMNS} FROM rows INDEXED BY {index} WHERE build = {CURRENT} AND {where}"
            return [row_of(found) for found in self._connection.execute(query, arguments)]

    @contextlib.contextmanager
    def _translate_errors(self) -> Any:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise TransientError(f"{self._path}: {error}") from error


def _cursor(row: StoredRow) -> str:
    start = 0 if row.window_start is None else micros(row.window_start)
    return base64.urlsafe_b64encode(json.dumps([row.name, start]).encode()).decode().rstrip("=")


def _place(cursor: str) -> tuple[str, int]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        name, start = json.loads(base64.urlsafe_b64decode(padded.encode()))
        moment_of(start)
        return str(name), int(start)
    except (binascii.Error, ValueError, TypeError, OverflowError) as error:
        raise ValueError("the cursor is none that a page gave") from error
