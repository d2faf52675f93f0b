"""The versions of a table as jobs that join it read them: whole Parquet files, and a note which one is in force.

A file is never changed. The one that was replaced last stays, and others for ten minutes, since queries may still read
them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.table import FROM, UNTIL, TableSpec
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.storage.job_folders import TABLES, checkpoint_root
from tocsin.platform.storage.stored_path import StoredPath, find_all, modified_at, open_stored, remove_tree
from tocsin.spark.tables.version_store import RowVersion

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = "rows.parquet"
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
        complete_at: it says of every record that was appended by then, UTC.
        declared: hash of the declaration that it was made by.
        made_by: `VersionStore.id` of the versions that it shows, or `TableSpec.made_by`; "" if it was made of none.
    """

    number: int
    rows: int
    complete_at: datetime
    declared: str
    made_by: str = ""


class TableFolder:
    """The folder of one table: `tables/<name>` where checkpoints are, if `storage.checkpoints` says, or in the state.

    Methods raise a ConfigError if the object store refuses, and a TransientError if the folder cannot be read or
    written.
    """

    def __init__(self, settings: Settings, spec: TableSpec) -> None:
        """Name the folder; nothing is read yet."""
        self._local, self._spec = settings.state / TABLES / spec.name, spec
        is_elsewhere = settings.storage.checkpoints is not None
        self._root: StoredPath = checkpoint_root(settings) / TABLES / spec.name if is_elsewhere else self._local
        # A model of other code gives other scores, or none.
        declared = repr([spec.key, spec.columns, spec.settle, *([spec.made_by] if spec.trains else [])])
        self._declared = hashlib.sha256(declared.encode()).hexdigest()[:12]

    @property
    def store(self) -> Path:
        """Where the versions are kept: on the machine of the table's job."""
        return self._local / "versions.db"

    def current(self) -> PublishedRows | None:
        """Read which snapshot is in force; None when there is none yet of this declaration."""
        found = self._read()
        return found if found is not None and found.declared == self._declared else None

    def place(self, snapshot: PublishedRows) -> StoredPath:
        """Name the folder of the file of `snapshot`."""
        return self._root / f"{snapshot.number:08d}"

    def publish(self, versions: Iterable[RowVersion], complete_at: datetime, made_by: str = "") -> PublishedRows:
        """Write `versions`, and put them in force; see `publish_rows`."""
        return self.publish_rows(self._arrow(versions), complete_at, made_by)

    def publish_rows(self, table: pa.Table, complete_at: datetime, made_by: str = "") -> PublishedRows:
        """Write `table`, the columns of the table and since and until when they hold, and put it in force.

        If that fails, what was in force still is.
        """
        before = self._read()
        number = 1 + (before.number if before else 0)
        snapshot = PublishedRows(number, table.num_rows, complete_at, self._declared, made_by)
        write_rows(self.place(snapshot), table)
        self._put_in_force(snapshot)
        self._remove_old(snapshot, before)
        return snapshot

    def confirm(self, snapshot: PublishedRows, complete_at: datetime) -> PublishedRows:
        """Note that nothing has changed since `snapshot` until `complete_at`."""
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
        return pa.table(
            [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)], schema=schema
        )

    def snapshots(self) -> list[StoredPath]:
        """List the folders of the snapshots that are whole."""
        return folders_with_rows(self._root, "[0-9]*")

    def _remove_old(self, *kept: PublishedRows | None) -> None:
        places, before = {self.place(one) for one in kept if one is not None}, time.time() - _READERS_SECONDS
        for folder in find_all(self._root, "[0-9]*"):
            if folder not in places and modified_at(folder) < before:
                remove_tree(folder)


def write_rows(folder: StoredPath, table: pa.Table) -> None:
    """Write `table` into `folder`, in the place of what a crash has left there; errors as of `TableFolder`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(table, sink := pa.BufferOutputStream())
    try:
        state_file.write_whole(folder / ROWS, sink.getvalue().to_pybytes())
    except OSError as error:
        remove_tree(folder)
        raise TransientError(f"{folder}: {error}") from error


def folders_with_rows(root: StoredPath, pattern: str) -> list[StoredPath]:
    """List the folders below `root` by `pattern` that `write_rows` has written."""
    return [path.parent for path in find_all(root, f"{pattern}/{ROWS}")]


def read_rows_of(folder: StoredPath) -> pa.Table:
    """Read what `write_rows` has written into `folder`; errors as of `TableFolder`."""
    import pyarrow.parquet as pq

    try:
        with open_stored(folder / ROWS) as file:
            return pq.read_table(file)
    except OSError as error:
        raise TransientError(f"{folder}: {error}") from error
