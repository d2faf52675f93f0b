"""Copy an alerts DB into another, whichever of SQLite and PostgreSQL each of them is."""

from __future__ import annotations

from sqlalchemy import Connection, Table, delete, func, insert, select

from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import metadata

_AT_ONCE = 1000


def copy_all(source: Database, target: Database) -> None:
    """Replace all that `target` holds by what `source` holds at this moment, in one transaction. Both are migrated.

    Raises:
        TransientError: one of them is away, locked or full; `target` is as it was.
    """
    with source.read() as read, target.write() as written:
        for table in reversed(metadata.sorted_tables):
            written.execute(delete(table))
        for table in metadata.sorted_tables:
            rows = read.execute(select(table).execution_options(yield_per=_AT_ONCE))
            for part in rows.mappings().partitions():
                written.execute(insert(table), [dict(row) for row in part])
            if written.dialect.name == "postgresql":
                _count_on(written, table)


def is_empty(database: Database) -> bool:
    """Return whether a migrated `database` holds no row.

    Raises:
        TransientError: it cannot be read now.
    """
    with database.read() as read:
        return not any(read.execute(select(1).select_from(table).limit(1)).first() for table in metadata.sorted_tables)


def _count_on(connection: Connection, table: Table) -> None:
    """Let PostgreSQL give new rows numbers behind those that were copied."""
    column = table.autoincrement_column
    if column is not None:
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        last = select(func.setval(sequence, func.coalesce(func.max(column), 1), func.max(column).is_not(None)))
        connection.execute(last)
