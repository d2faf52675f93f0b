"""The alerts DB: connections, transactions and migrations, the same for SQLite and PostgreSQL.

What may pass (locked, read-only, disk full, server away) comes out as `TransientError` with the reason, what must be
fixed (unknown address, newer schema, no database file) as `ConfigError`.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, func, make_url, select

from tocsin.alerts.store.schema import metadata
from tocsin.declare.model.errors import ConfigError, TransientError

# It tells its dialect at every look at the schema, which readers take several times a second.
logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)

_MIGRATIONS = Path(__file__).parent / "migrations"
_TRY_SECONDS = 0.002
_MIGRATION_LOCK = 0x70C5_1A
# A server whose machine or network is gone says nothing: TCP notices after 25 s, and not after hours, as by default.
_VANISHED = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}


class Database:
    """One alerts DB; threads may share it."""

    def __init__(
        self,
        address: str,
        *,
        read_only: bool = False,
        busy_seconds: float = 5.0,
    ) -> None:
        """Describe the DB at `address`, `sqlite:///<path>` or `postgresql://...`; another scheme is a ConfigError.

        Nothing is opened yet. With `read_only` a file that is not there is not made. A statement waits `busy_seconds`
        for a lock before it is a TransientError.
        """
        self.url = _url(address)
        self.read_only = read_only
        self.engine = (
            _sqlite(self.url, read_only, busy_seconds) if self._is_sqlite else _postgres(self.url, busy_seconds)
        )
        # A transaction of SQLite sees one state in any case; by default PostgreSQL shows each statement the latest one.
        self._isolation = {} if self._is_sqlite else {"isolation_level": "REPEATABLE READ"}

    @property
    def shown(self) -> str:
        """The address without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Begin a transaction: committed at the end, rolled back on an exception. After a TransientError retry it."""
        with (
            self._translated(),
            self.engine.connect().execution_options(writes=True) as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Begin a transaction that only reads, and sees one state of the DB. After a TransientError retry it."""
        with (
            self._translated(),
            self.engine.connect().execution_options(**self._isolation) as connection,
            connection.begin(),
        ):
            yield connection

    def migrate(self) -> None:
        """Bring the schema up to this code's, in one transaction; safe when several processes start together.

        ConfigError if the schema is newer than this code, or older than release 0.1.0; TransientError as of `write`.
        """
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        if self._is_sqlite and self.url.database:
            with self._translated():
                Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        with self.write() as connection:
            if not self._is_sqlite:
                connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            if not self._is_current(connection):
                config.attributes["connection"] = connection
                if MigrationContext.configure(connection).get_current_revision() is None:
                    metadata.create_all(connection)
                    command.stamp(config, "head")
                else:
                    command.upgrade(config, "head")

    def is_ready(self) -> bool:
        """Return whether the DB exists with this code's schema; False until the indexer has made or migrated it.

        Raises:
            ConfigError: the schema is newer than this code.
            TransientError: the DB cannot be read now.
        """
        if self.is_missing:
            return False
        with self.read() as connection:
            return self._is_current(connection)

    @property
    def has_one_writer(self) -> bool:
        """Return whether a transaction that writes keeps all others from writing."""
        return self._is_sqlite

    @property
    def is_missing(self) -> bool:
        """Return whether nobody has made its file yet; a server is never missing."""
        return self._is_sqlite and bool(self.url.database) and not Path(self.url.database or "").exists()

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        self.engine.dispose()

    @property
    def _is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    def _is_current(self, connection: Connection) -> bool:
        current, (head, *older) = MigrationContext.configure(connection).get_current_revision(), _revisions()
        if current is not None and current < min(head, *older):
            what = f"has schema {current}, from before release 0.1.0; start that release on it once, then this one"
            raise ConfigError.one(self.shown, what)
        if current is not None and current not in (head, *older):
            what = f"has schema {current}, which is newer than this Tocsin knows ({head}); upgrade Tocsin"
            raise ConfigError.one(self.shown, what)
        return current == head

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (exc.OperationalError, exc.InternalError, sqlite3.OperationalError, OSError) as error:
            # A file that was opened read-only, or a server that was away, stays so for its open connections.
            self.engine.dispose()
            raise TransientError(f"alerts DB {self.shown}: {_reason(error)}") from error
        except exc.IntegrityError as error:
            # What is written follows from what was read; another one wrote in between, and the next try reads that.
            raise TransientError(f"alerts DB {self.shown}: {_reason(error)}") from error
        except exc.DBAPIError as error:
            if error.connection_invalidated:
                raise TransientError(f"alerts DB {self.shown}: {_reason(error)}") from error
            if type(error.orig) is sqlite3.DatabaseError:  # its children say other things
                raise ConfigError.one(self.shown, f"is no alerts DB: {error.orig}") from error
            raise
        except sqlite3.DatabaseError as error:
            raise ConfigError.one(self.shown, f"is no alerts DB: {error}") from error


def _url(address: str) -> URL:
    try:
        url = make_url(address)
        backend = url.get_backend_name()
    except exc.ArgumentError as error:
        raise ConfigError.one("alerts DB", "has no address that can be read", key="alerts.database_file") from error
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ConfigError.one(
            url.render_as_string(), "must begin with sqlite:// or postgresql://", key="alerts.database_file"
        )
    return url


@cache
def _revisions() -> tuple[str, ...]:
    return tuple(revision.revision for revision in ScriptDirectory(str(_MIGRATIONS)).walk_revisions())


def _sqlite(url: URL, read_only: bool, busy_seconds: float) -> Engine:
    address = url
    if read_only and url.database:
        address = url.set(database=f"file:{Path(url.database).absolute()}").update_query_dict(
            {"mode": "ro", "uri": "true"}
        )
    engine = create_engine(address, connect_args={"timeout": busy_seconds})

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, record: object) -> None:
        # The driver must not open transactions by itself: BEGIN IMMEDIATE below takes the write lock at once, where a
        # transaction that reads first and writes later fails without waiting when another one wrote in between.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys=ON")
        if not read_only:
            # Of programs that open a new file together only one may change its journal, and SQLite refuses the others
            # at once, without the wait that holds for statements.
            _retry_busy(connection, "PRAGMA journal_mode=WAL", busy_seconds)
            # Offsets are committed to Kafka after the transaction, so it must survive a power cut.
            connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("writes", False):
            _lock(connection.connection.dbapi_connection, busy_seconds)  # type: ignore[arg-type]  # it is SQLite's
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


def _lock(connection: sqlite3.Connection, busy_seconds: float) -> None:
    # SQLite's own wait tries ever more seldom, every 0.1 s in the end: it misses the moments that another program
    # leaves between two of its transactions.
    connection.execute("PRAGMA busy_timeout=0")
    try:
        _retry_busy(connection, "BEGIN IMMEDIATE", busy_seconds)
    finally:
        connection.execute(f"PRAGMA busy_timeout={int(busy_seconds * 1000)}")


def _retry_busy(connection: sqlite3.Connection, statement: str, busy_seconds: float) -> None:
    end = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
        time.sleep(_TRY_SECONDS)


def _postgres(url: URL, busy_seconds: float) -> Engine:
    millis = int(busy_seconds * 1000)
    options = f"-c lock_timeout={millis} -c timezone=UTC -c idle_in_transaction_session_timeout=60000"
    arguments: dict[str, Any] = {"connect_timeout": max(2, round(busy_seconds)), "options": options, **_VANISHED}
    return create_engine(url, connect_args=arguments, pool_pre_ping=True)


def _reason(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    text = " ".join(str(cause).split())
    hints = {
        "database is locked": "another process has locked it; close the tool that has it open",
        "readonly database": "make the file and its folder writable for this user",
        "disk is full": "make room on the disk",
        "unable to open database file": "check that the folder exists and this user may write to it",
        "No space left": "make room on the disk",
    }
    hint = next((hint for sign, hint in hints.items() if sign in text), "")
    return f"{text} ({hint})" if hint else text
