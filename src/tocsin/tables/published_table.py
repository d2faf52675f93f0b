"""The versions of a table as jobs that join it read them: whole Parquet files, and a note which one is in force.

A file is never changed; one that was replaced stays for ten minutes, since a query may still be reading it.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.model.errors import TransientError
from tocsin.model.table import FROM, UNTIL, TableSpec
from tocsin.project.settings import Settings
from tocsin.runtime import state_file
from tocsin.tables.version_store import RowVersion

if TYPE_CHECKING:
    import pyarrow as pa

_READERS_SECONDS = 600.0


def arrow_schema(spec: TableSpec) -> pa.Schema:
    """Give the columns of the table, then `valid_from` and `valid_to`, as they are written."""
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    types = {"string": pa.string(), "boolean": pa.bool_(), "int": pa.int32(), "bigint": pa.int64()}
    types |= {"double": pa.float64(), "timestamp": moment}
    return pa.schema([*((name, types[kind]) for name, kind in spec.columns.items()), (FROM, moment), (UNTIL, moment)])


@dataclass(frozen=True)
class PublishedRows:
    """The snapshot in force.

    Attributes:
        number: of its folder, counted up.
        rows: versions in it.
        complete_at: it says of every record that was appended by then, UTC.
        declared: hash of the declaration that it was made by.
    """

    number: int
    rows: int
    complete_at: datetime
    declared: str


class TableFolder:
    """The folder of one table, `<state>/tables/<name>`."""

    def __init__(self, settings: Settings, spec: TableSpec) -> None:
        """Name the folder; nothing is read yet."""
        self._root, self._spec = settings.state / "tables" / spec.name, spec
        self._declared = hashlib.sha256(repr([spec.key, spec.columns, spec.settle]).encode()).hexdigest()[:12]

    @property
    def dated(self) -> Path:
        """Where the versions by days are kept, of a table that is made of history."""
        return self._root / "dated"

    @property
    def store(self) -> Path:
        """Where the versions are kept."""
        return self._root / "versions.db"

    def current(self) -> PublishedRows | None:
        """Read which snapshot is in force; None when there is none yet of this declaration.

        Raises:
            TransientError: the folder cannot be read; a retry helps.
        """
        found = self._read()
        return found if found is not None and found.declared == self._declared else None

    def place(self, snapshot: PublishedRows) -> Path:
        """Name the folder of the file of `snapshot`."""
        return self._root / f"{snapshot.number:08d}"

    def publish(self, versions: Iterable[RowVersion], complete_at: datetime) -> PublishedRows:
        """Write `versions`, and put them in force; errors as for `publish_rows`."""
        return self.publish_rows(self._arrow(versions), complete_at)

    def publish_rows(self, table: pa.Table, complete_at: datetime) -> PublishedRows:
        """Write `table`, the columns of the table and since and until when they hold, and put it in force.

        Raises:
            TransientError: no room on the disk, or no right to write; what was in force still is.
        """
        import pyarrow.parquet as pq

        before = self._read()
        snapshot = PublishedRows(1 + (before.number if before else 0), 0, complete_at, self._declared)
        folder = self.place(snapshot)
        try:
            shutil.rmtree(folder, ignore_errors=True)  # what a crash left
            folder.mkdir(parents=True)
            pq.write_table(table, folder / "rows.parquet")
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise TransientError(f"{folder}: {error}") from error
        snapshot = self._put_in_force(replace(snapshot, rows=table.num_rows))
        self._remove_old(snapshot)
        return snapshot

    def confirm(self, snapshot: PublishedRows, complete_at: datetime) -> PublishedRows:
        """Note that nothing has changed since `snapshot` until `complete_at`; errors as for `publish`."""
        return self._put_in_force(replace(snapshot, complete_at=complete_at))

    def _read(self) -> PublishedRows | None:
        try:
            return state_file.read(self._root / "current.json", PublishedRows, None)
        except OSError as error:
            raise TransientError(f"{self._root}: {error}") from error

    def _put_in_force(self, snapshot: PublishedRows) -> PublishedRows:
        try:
            state_file.write(self._root / "current.json", PublishedRows, snapshot)
        except OSError as error:
            raise TransientError(f"{self._root}: {error}") from error
        return snapshot

    def _arrow(self, versions: Iterable[RowVersion]) -> pa.Table:
        import pyarrow as pa

        rows, schema = list(versions), arrow_schema(self._spec)
        values = [[row.values[place] for row in rows] for place in range(len(self._spec.columns))]
        values += [[row.valid_from for row in rows], [row.valid_to for row in rows]]
        return pa.table([pa.array(one, field.type) for one, field in zip(values, schema, strict=True)], schema=schema)

    def _remove_old(self, current: PublishedRows) -> None:
        before = time.time() - _READERS_SECONDS
        for folder in self._root.glob("[0-9]*"):
            if folder != self.place(current) and folder.stat().st_mtime < before:
                shutil.rmtree(folder, ignore_errors=True)
