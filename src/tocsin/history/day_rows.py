"""Store what is known of sealed days: one table in the database that holds the catalogue of history.

A row is a version of a day, written as the last act of sealing it, or the reason why the last attempt failed. Which
version counts is not in it: the commit of `DayTable` says so, together with the files.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Date,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    exists,
    func,
    insert,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.history.day_versions import BrokenVersion, DayVersion, Unsealed
from tocsin.history.earlier_files import EarlierFiles
from tocsin.history.places import Places

_tables = MetaData()
_DAYS = Table(
    "tocsin_days",
    _tables,
    Column("source", String, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("version", String, primary_key=True),  # empty: why the day could not be sealed
    Column("refused", Boolean, nullable=False),
    Column("contents", Text, nullable=False),  # a DayVersion or an Unsealed, as JSON
)
_SOURCES = Table("tocsin_sources", _tables, Column("source", String, primary_key=True))  # whose files are taken over
_later = _DAYS.alias()
_IS_LATEST = ~exists().where(
    _later.c.source == _DAYS.c.source, _later.c.day == _DAYS.c.day, _later.c.version > _DAYS.c.version
)
_FULL = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
}
_WAIT_SECONDS = 30.0

log = structlog.get_logger()


class DayRows:
    """The rows of one source. Who writes holds its sealing lock.

    Every method raises TransientError if the database does not answer; a retry helps. It raises OSError if the disk is
    full, or cannot be written; nothing was changed.
    """

    def __init__(self, settings: Settings, source: str) -> None:
        """Describe the rows; nothing is opened yet. Whoever only reads needs no `prepare`."""
        self._settings, self._source = settings, source
        url = make_url(settings.history_catalog)
        self._file = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        if self._file is None and find_spec("psycopg") is None:  # Airflow's environment has psycopg2 instead
            url = url.set(drivername="postgresql+psycopg2")
        arguments = {"timeout": _WAIT_SECONDS} if self._file is not None else {}
        self._engine = create_engine(url, poolclass=NullPool, connect_args=arguments)
        self._versions = (_DAYS.c.source == source) & (_DAYS.c.version != "")
        self._failures = (_DAYS.c.source == source) & (_DAYS.c.version == "")

    def prepare(self) -> None:
        """Make the table if it is not there, and take over what earlier releases kept in files.

        BrokenVersion if the database knows nothing of days that are there.
        """
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._transaction() as connection:
            for table in _tables.sorted_tables:
                connection.execute(CreateTable(table, if_not_exists=True))
            if connection.execute(select(_SOURCES).where(_SOURCES.c.source == self._source)).first() is not None:
                return
        places = Places.of(self._settings, self._source)
        files, folders = EarlierFiles(self._settings, places), {name for _, name, _ in places.version_folders()}
        if len(folders) > 1 and not files.versions:
            what = f"the catalogue of history knows no version of the days in {places.days}, where {len(folders)} lie"
            raise BrokenVersion(f"{what}; restore it from a backup, or remove the folder to give these days up")
        rows = [self._row(day, version) for day, version in files.versions]
        rows += [self._row(day, unsealed) for day, unsealed in files.unsealed.items()]
        try:
            with self._transaction() as connection:
                connection.execute(insert(_SOURCES).values(source=self._source))
                if rows:
                    connection.execute(insert(_DAYS), rows)
        except IntegrityError:
            return  # another process has just done it
        files.remove()

    def versions(self) -> dict[date, list[DayVersion]]:
        """All versions that were sealed to their end, by day, the oldest first; one that cannot be read is left out."""
        return self._read_versions(self._versions)

    def version(self, day: date, name: str) -> DayVersion:
        """Read one version; BrokenVersion if it is not there, or cannot be read."""
        found = self._read_versions(self._versions & (_DAYS.c.day == day) & (_DAYS.c.version == name))
        if not found:
            what = f"{self._source} {day}: the catalogue of history does not know what version {name} holds"
            raise BrokenVersion(f"{what}; seal {day} again")
        return found[day][0]

    def newest(self) -> date | None:
        """The last day that was sealed, or tried in vain; None before the first."""
        with self._transaction() as connection:
            if not inspect(connection).has_table(_DAYS.name):
                return None
            return connection.execute(select(func.max(_DAYS.c.day)).where(_DAYS.c.source == self._source)).scalar()

    def refused(self) -> dict[date, DayVersion]:
        """Read the versions that the gate refuses, by day; a later version, or an acceptance, ends that."""
        found = self._read_versions(self._versions & _DAYS.c.refused & _IS_LATEST)
        return {day: version for day, (version,) in found.items()}

    def write(self, day: date, version: DayVersion) -> None:
        """Put `version` in the place of what was known of it: from now on it is whole."""
        self._replace(day, version.version, version)

    def remove(self, day: date, name: str) -> None:
        """Forget a version, before its files go: what is half removed must not be taken for one."""
        self._replace(day, name, None)

    def unsealed(self) -> dict[date, Unsealed]:
        """The days that could not be sealed at the last attempt, the oldest first."""
        return {day: Unsealed.model_validate_json(text) for _, day, text in self._read(self._failures)}

    def note(self, day: date, reason: str | None, run_id: str = "") -> None:
        """Record why the run `run_id` could not seal `day`; None where it could."""
        short = None if reason is None else reason.removeprefix(f"{self._source} {day}: ")
        unsealed = None if short is None else Unsealed(reason=short, at=datetime.now(UTC), run_id=run_id)
        self._replace(day, "", unsealed)

    def forget_unsealed(self, before: date) -> None:
        """Remove the notes on days before `before`."""
        with self._transaction() as connection:
            connection.execute(delete(_DAYS).where(self._failures, _DAYS.c.day < before))

    def unsealed_by_source(self) -> dict[str, dict[date, Unsealed]]:
        """The same as `unsealed`, of all sources."""
        found: dict[str, dict[date, Unsealed]] = {}
        for source, day, text in self._read(_DAYS.c.version == ""):
            found.setdefault(source, {})[day] = Unsealed.model_validate_json(text)
        return found

    def _row(self, day: date, known: DayVersion | Unsealed) -> dict[str, Any]:
        version, refused = (known.version, known.refused) if isinstance(known, DayVersion) else ("", False)
        own = {"source": self._source, "day": day, "version": version, "refused": refused}
        return own | {"contents": known.model_dump_json(exclude_defaults=True)}

    def _replace(self, day: date, version: str, known: DayVersion | Unsealed | None) -> None:
        row = (_DAYS.c.source == self._source) & (_DAYS.c.day == day) & (_DAYS.c.version == version)
        with self._transaction() as connection:
            connection.execute(delete(_DAYS).where(row))
            if known is not None:
                connection.execute(insert(_DAYS).values(self._row(day, known)))

    def _read_versions(self, which: ColumnElement[bool]) -> dict[date, list[DayVersion]]:
        found: dict[date, list[DayVersion]] = {}
        for source, day, text in self._read(which):
            try:
                found.setdefault(day, []).append(DayVersion.model_validate_json(text))
            except ValidationError as error:
                log.error("version unreadable", source=source, day=str(day), error=str(error).splitlines()[0])
        return {day: versions for day, versions in found.items() if versions}

    def _read(self, which: ColumnElement[bool]) -> list[tuple[str, date, str]]:
        """Read source, day and contents; nothing where nobody has made the table yet, and it is not made."""
        if self._file is not None and not self._file.exists():
            return []
        query = (
            select(_DAYS.c.source, _DAYS.c.day, _DAYS.c.contents).where(which).order_by(_DAYS.c.day, _DAYS.c.version)
        )
        with self._transaction() as connection:
            return (
                [tuple(row) for row in connection.execute(query)] if inspect(connection).has_table(_DAYS.name) else []
            )

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError:
            raise
        except DBAPIError as error:
            what = f"the catalogue of history does not answer: {error.orig}"
            code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
            if code in _FULL:
                raise OSError(_FULL[code], what, str(self._file)) from error
            raise TransientError(what) from error
