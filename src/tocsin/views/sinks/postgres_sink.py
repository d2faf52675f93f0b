"""Keep a view in a table of PostgreSQL, which rows and offsets reach in one transaction.

Columns: `time_window` (tstzrange) if the view has windows, the key, the values, and `final` if it has windows. Window
and key are unique. A column comes to be with the first value that is not null, and becomes `numeric` when a
`bigint` meets a greater number, or `double precision` when it meets a fraction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import structlog
from psycopg import sql
from pydantic_core import to_json

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.view import ViewSpec
from tocsin.platform.kafka.reader import Offsets
from tocsin.views.sinks.sink import IN_A_PASSWORD, SinkBatch, SinkLost, chunks
from tocsin.views.stored_row import StoredRow

_OFFSETS = "tocsin_view_offsets"
_CHUNK = 5_000
_OPTIONS = "-c lock_timeout=10000 -c timezone=UTC"
# A server whose machine or network is gone says nothing: TCP notices after 25 s, and not after hours, as by default.
_VANISHED = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}
_BIGINT = 2**63
_WIDER = {"bigint": ("numeric", "double precision"), "numeric": ("double precision",)}
_NUL, _ESCAPES = "\\u0000", re.compile(r"\\(?:u0000|.)")
_log = structlog.get_logger()


class PostgresSink:
    """One view in one table; see `tocsin.views.sinks.sink.Sink`."""

    def __init__(self, address: str, consumer: str, spec: ViewSpec) -> None:
        """Write to an address such as postgresql://user@host/database; see `Sink`."""
        try:
            psycopg.conninfo.conninfo_to_dict(address)
        except psycopg.Error:
            what = "is no address of a PostgreSQL, such as postgresql://user:password@host/database"
            raise ConfigError.one("views.postgres", f"{what}; {IN_A_PASSWORD}") from None
        self.refused = 0
        self._address, self._consumer, self._spec = address, consumer, spec
        self._unique = [*(["time_window"] if spec.window else []), *spec.key]
        self._open: psycopg.Connection | None = None
        self._types: dict[str, str] = {}
        self._known: set[str] = set()
        self._expected: Offsets | None = None

    def offsets(self) -> Offsets | None:
        """See `Sink`. A table that is gone, or has lost a column, is a view that is not there."""
        with self._transaction() as connection:
            self._expected = self._read_offsets(connection) if self._is_whole(connection) else None
        self._known |= self._types.keys()
        return self._expected

    def apply(self, batch: SinkBatch) -> None:
        """See `Sink`."""
        with self._transaction() as connection:
            if not self._is_whole(connection) or self._read_offsets(connection) != self._expected:
                raise SinkLost("PostgreSQL does not have the offsets of the last batch")
            self._remove(connection, batch.removed)
            self._put(connection, batch.rows)
            self._remember(connection, batch.offsets)
        self._expected, self._known = dict(batch.offsets), {*self._types}

    def replace(self, rows: Iterable[StoredRow], gone: Iterable[StoredRow], offsets: Offsets) -> None:
        """See `Sink`. In one transaction: readers see the old rows or the new ones."""
        del gone
        with self._transaction() as connection:
            self._empty(connection)
            for chunk in chunks(rows, _CHUNK):
                self._put(connection, chunk)
            self._remember(connection, offsets)
        self._expected, self._known = dict(offsets), {*self._types}

    def close(self) -> None:
        """See `Sink`."""
        if self._open is not None:
            self._open.close()
            self._open = None

    @property
    def _table(self) -> sql.Identifier:
        return sql.Identifier(self._spec.table)

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection]:
        try:
            if self._open is None or self._open.closed:
                how: dict[str, Any] = {"connect_timeout": 5, "options": _OPTIONS, **_VANISHED}
                self._open = psycopg.connect(self._address, **how)
                with self._open.transaction():
                    self._prepare(self._open)
            with self._open.transaction():
                yield self._open
        except psycopg.Error as error:
            self.close()  # the next use asks anew how the table looks
            text = " ".join(str(error).split())
            raise TransientError(f"PostgreSQL, table {self._spec.table}: {text}") from error

    def _prepare(self, connection: psycopg.Connection) -> None:
        statement = "CREATE TABLE IF NOT EXISTS {} (view text PRIMARY KEY, offsets jsonb NOT NULL)"
        connection.execute(sql.SQL(statement).format(sql.Identifier(_OFFSETS)))

    def _read_offsets(self, connection: psycopg.Connection) -> Offsets | None:
        query = sql.SQL("SELECT offsets FROM {} WHERE view = %s FOR UPDATE").format(sql.Identifier(_OFFSETS))
        found = connection.execute(query, [self._consumer]).fetchone()
        return None if found is None else {int(partition): offset for partition, offset in found[0].items()}

    def _remember(self, connection: psycopg.Connection, offsets: Offsets) -> None:
        statement = "INSERT INTO {} VALUES (%s, %s) ON CONFLICT (view) DO UPDATE SET offsets = EXCLUDED.offsets"
        query = sql.SQL(statement).format(sql.Identifier(_OFFSETS))
        connection.execute(query, [self._consumer, json.dumps(offsets)])

    def _is_whole(self, connection: psycopg.Connection) -> bool:
        """Tell whether the table is there, with all columns that it was seen with."""
        return bool(self._columns(connection)) and self._known <= self._types.keys()

    def _columns(self, connection: psycopg.Connection) -> dict[str, str]:
        """Read the columns of the table and their types; none if there is no table."""
        query = (
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        )
        self._types = dict(connection.execute(query, [self._table.as_string(connection)]).fetchall())
        return self._types

    def _empty(self, connection: psycopg.Connection) -> None:
        """Make the table, or empty the one that the view has; if its key has changed, that is made anew."""
        there = self._columns(connection)
        mark = f"Kept by Tocsin: view {self._consumer}, by {', '.join(self._unique)}"
        if there:
            query = "SELECT obj_description(to_regclass(%s))"
            ((comment,),) = connection.execute(query, [self._table.as_string(connection)]).fetchall()
            if comment == mark:
                connection.execute(sql.SQL("DELETE FROM {}").format(self._table))
                return
            if not str(comment or "").startswith(f"Kept by Tocsin: view {self._consumer},"):
                raise TransientError(f"PostgreSQL has a table {self._spec.table} that is not of this view; rename one")
            connection.execute(sql.SQL("DROP TABLE {}").format(self._table))
        window = [("time_window", "tstzrange NOT NULL"), ("final", "boolean NOT NULL")] if self._spec.window else []
        columns = [sql.SQL("{} " + kind).format(sql.Identifier(name)) for name, kind in window]
        connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self._table, sql.SQL(", ").join(columns)))
        connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(self._table, sql.Literal(mark)))
        self._columns(connection)

    def _put(self, connection: psycopg.Connection, rows: Sequence[StoredRow]) -> None:
        """Put `rows` in place together; if the server refuses one, each for itself, without those that it refuses."""
        if not rows:
            return
        self._fit(connection, rows)
        try:
            with connection.transaction():
                self._upsert(connection, rows)
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded) as error:
            if len(rows) > 1:
                for row in rows:
                    self._put(connection, [row])
                return
            self.refused += 1
            _log.warning("row left out of PostgreSQL", row=rows[0].name[:100], reason=str(error)[:300])

    def _upsert(self, connection: psycopg.Connection, rows: Sequence[StoredRow]) -> None:
        cells = [_cells(row) for row in rows]
        columns = [name for name in self._types if name in {*self._unique}.union(*cells)]
        others = [_in_query(column) for column in columns if column not in self._unique]
        sets = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(column) for column in others)
        query = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM json_populate_recordset(NULL::{table}, %s) "
            "ON CONFLICT ({unique}) DO {action}"
        ).format(
            table=self._table,
            columns=sql.SQL(", ").join(map(_in_query, columns)),
            unique=sql.SQL(", ").join(map(_in_query, self._unique)),
            action=sql.SQL("UPDATE SET {}").format(sets) if others else sql.SQL("NOTHING"),
        )
        connection.execute(query, [_json(cells)])

    def _remove(self, connection: psycopg.Connection, rows: Sequence[StoredRow]) -> None:
        if not rows or any(column not in self._types for column in self._spec.key):
            return  # without a column of the key no row was ever put in place
        same = [sql.SQL("there.{0} = gone.{0}").format(_in_query(column)) for column in self._unique]
        query = sql.SQL(
            "DELETE FROM {table} AS there USING json_populate_recordset(NULL::{table}, %s) AS gone WHERE {same}"
        ).format(table=self._table, same=sql.SQL(" AND ").join(same))
        connection.execute(query, [_json([_cells(row) for row in rows])])

    def _fit(self, connection: psycopg.Connection, rows: Sequence[StoredRow]) -> None:
        """Add the columns that `rows` need, and the unique key once its columns are there."""
        needed: dict[str, str] = {}
        for row in rows:
            for column, value in _cells(row).items():
                kind = _type(value)
                if kind is not None and needed.get(column) not in _WIDER.get(kind, ()):
                    needed[column] = kind
        for column, kind in needed.items():
            there = self._types.get(column)
            if there is None:
                statement = "ALTER TABLE {} ADD COLUMN {} " + kind
            elif kind in _WIDER.get(there, ()):
                statement = "ALTER TABLE {} ALTER COLUMN {} TYPE " + kind
            else:
                continue
            connection.execute(sql.SQL(statement).format(self._table, sql.Identifier(column)))
        is_new = any(column not in self._types for column in self._spec.key)
        self._columns(connection)
        if is_new:
            names = sql.SQL(", ").join(map(sql.Identifier, self._unique))
            connection.execute(sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(self._table, names))


def _in_query(column: str) -> sql.Identifier:
    """Name a column in a query with parameters, in which psycopg reads a percent sign as the beginning of one."""
    return sql.Identifier(column.replace("%", "%%"))


def _cells(row: StoredRow) -> dict[str, Any]:
    if row.window_start is None or row.window_end is None:
        return {**row.key, **row.values}
    window = f"[{row.window_start.isoformat()},{row.window_end.isoformat()})"
    return {"time_window": window, **row.key, **row.values, "final": row.is_final}


def _json(cells: Sequence[dict[str, Any]]) -> str:
    """Write rows as JSON. Its texts hold no NUL: the sign for it stands in its place."""
    text = to_json(cells).decode()
    return _ESCAPES.sub(lambda found: "\u2400" if found[0] == _NUL else found[0], text) if _NUL in text else text


def _type(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -_BIGINT <= value < _BIGINT else "numeric"
    if isinstance(value, float):
        return "double precision"
    return "text" if isinstance(value, str) else "jsonb"
