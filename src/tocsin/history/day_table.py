"""Keep which version of each day counts: an Iceberg table for each source, committed by pyiceberg.

A version is staged on its own branch, to be looked at, and published in one commit, which takes the files of the day's
earlier version away and writes the version's name into the property `tocsin.day.<day>`: that is what readers follow,
and it also knows days without events, which have no file.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import date, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from pyiceberg import types
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
    ValidationException,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.transforms import DayTransform
from sqlalchemy.exc import DBAPIError

from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.model.source import Source, columns_of
from tocsin.declare.settings import Settings
from tocsin.history.day_rows import DayRows
from tocsin.history.places import Places, begin, end
from tocsin.platform.storage.s3_store import file_io_of
from tocsin.platform.storage.stored_path import StoredPath

NAMESPACE = "tocsin"
KEPT = timedelta(days=7)
"""How long a version that counts no more stays, so that a day can be rolled back and a running batch can end."""

_POINTER = "tocsin.day."
_EPOCH_DAY = date(1970, 1, 1)
_ATTEMPTS = 12
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.retry.num-retries": "0",  # each attempt here begins with the table as it is then
    "format-version": "2",
}

_KINDS: dict[str, types.PrimitiveType] = {
    "string": types.StringType(),
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "double": types.DoubleType(),
    "timestamp": types.TimestamptzType(),
}

_Result = TypeVar("_Result")


class BrokenTable(TocsinError):
    """The metadata of a table cannot be read; a retry does not help."""


class DayTable:
    """The published days of one source. Use it in a `with` statement.

    Its `rows` tell what is known of all versions, in the same database.

    Raises from every method:
        TransientError: the catalogue cannot be reached, or others publish at the same time again and again; a retry
            helps.
        BrokenTable: what it has committed cannot be read.
    """

    def __init__(self, settings: Settings, source: Source) -> None:
        self.places = Places.of(settings, source.name)
        self._name, self._source = f"{NAMESPACE}.{source.name}", source
        root = self.places.root
        if isinstance(root, Path):
            root.mkdir(parents=True, exist_ok=True)
        own = file_io_of(settings.storage) if settings.storage.has_remote_history else {}
        address = settings.history_catalog
        self._catalog = self._reached(lambda: SqlCatalog(NAMESPACE, uri=address, warehouse=str(root), **own))
        self.rows = DayRows(settings, source.name)
        self.rows.prepare()

    def __enter__(self) -> DayTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._catalog.close()

    # --- reading ------------------------------------------------------------------------------------------------------

    def published(self) -> dict[date, str]:
        """The version of each published day, in their order."""
        table = self._table()
        pointers = {} if table is None else table.properties
        days = {key.removeprefix(_POINTER): name for key, name in pointers.items() if key.startswith(_POINTER)}
        return {date.fromisoformat(day): days[day] for day in sorted(days)}

    def files(self, branch: str = "main") -> dict[str, int]:
        """Files that the table holds on a branch, by path or URI, and their rows."""
        table = self._table()
        if table is None or branch not in table.refs():
            return {}
        tasks = self._reached(lambda: table.scan().use_ref(branch).plan_files())
        return {task.file.file_path: task.file.record_count for task in tasks}

    def audits(self) -> set[str]:
        """Branches of versions that were staged and neither published nor dropped."""
        table = self._table()
        return set() if table is None else {name for name in table.refs() if name != "main"}

    # --- writing ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise ConfigError if a column has changed its type: new sealed days could not lie beside earlier ones."""
        table = self._table()
        if table is None:
            return
        faults = []
        for name, kind in columns_of(self._source).items():
            columns = {field.name: str(field.field_type) for field in table.schema().fields}.get(name)
            if columns is not None and columns != str(_KINDS[kind]) and (columns, kind) != ("int", "bigint"):
                faults.append(f"{name} is {kind}, but its history holds it as {_declared(columns)}")
        if faults:
            what = "; ".join(faults)
            raise ConfigError.one(f"sources/{self._source.name}.toml", f"{what}: give the new column another name")

    def stage(self, day: date, version: str, files: Iterable[StoredPath], properties: dict[str, str]) -> str:
        """Put a version on a branch of its own, where nothing that counts is; returns the branch."""
        branch, paths = audit_branch(day, version), [str(path) for path in files]
        if paths and branch not in self._existing().refs():
            self._commit(lambda _, tx: tx.add_files(paths, properties, branch=branch, check_duplicate_files=False))
        return branch

    def publish(self, day: date, version: str, files: Iterable[StoredPath], properties: dict[str, str]) -> None:
        """Let `version` count for `day`, in one commit; its audit branch is dropped with it."""
        self.publish_all({day: (version, files)}, properties)

    def publish_all(self, days: Mapping[date, tuple[str, Iterable[StoredPath]]], properties: dict[str, str]) -> None:
        """Let a version count for each of `days`, given with its files, all in one commit."""
        versions = {day: version for day, (version, _) in days.items()}
        paths = [str(path) for _, files in days.values() for path in files]

        def change(table: Table, transaction: Transaction) -> None:
            _clear(table, transaction, versions, properties)
            if paths:  # none of them is there: what a day had is taken away
                transaction.add_files(paths, properties, check_duplicate_files=False)
            transaction.set_properties({f"{_POINTER}{day}": version for day, version in versions.items()})
            for day, version in versions.items():
                _drop(transaction, audit_branch(day, version))

        self._commit(change)

    def drop_audit(self, branch: str) -> None:
        """Forget a staged version."""
        self._commit(lambda _, transaction: _drop(transaction, branch))

    def withdraw(self, days: Iterable[date], properties: dict[str, str]) -> None:
        """Let no version of `days` count, in one commit."""
        gone = list(days)

        def change(table: Table, transaction: Transaction) -> None:
            _clear(table, transaction, gone, properties)
            transaction.remove_properties(*[f"{_POINTER}{day}" for day in gone])

        if gone:
            self._commit(change)

    def expire(self, before: datetime) -> None:
        """Forget what the table was before that moment. Its files stay; `metadata_in_use` names those still needed."""
        table = self._table()
        if table is not None:
            self._retried(lambda: table.refresh().maintenance.expire_snapshots().older_than(before).commit())

    def metadata_in_use(self) -> set[str]:
        """Files of metadata that the table needs as it is now, by path or URI."""
        table = self._table()
        return set() if table is None else self._reached(lambda: _metadata_of(table))

    # --- how ----------------------------------------------------------------------------------------------------------

    def _commit(self, change: Callable[[Table, Transaction], object]) -> None:
        def attempt() -> None:
            table = self._existing()
            with table.transaction() as transaction:
                change(table, transaction)

        self._retried(attempt)

    def _table(self) -> Table | None:
        def load() -> Table | None:
            try:
                return self._catalog.load_table(self._name)
            except NoSuchTableError:
                return None

        return self._reached(load)

    def _existing(self) -> Table:
        """The table, with all columns that the source declares; made if there is none yet."""
        table = self._table()
        table = self._made() if table is None else self._with_columns(table)
        if table.current_snapshot() is None:  # without one on main, pyiceberg allows no branch
            with table.transaction() as transaction:
                transaction.update_snapshot().fast_append().commit()
        return table

    def _made(self) -> Table:
        schema = _schema(columns_of(self._source))
        time_id = schema.find_field("event_time").field_id
        spec = PartitionSpec(PartitionField(time_id, 1000, DayTransform(), "day"))
        place, mapping = str(self.places.table), {"schema.name-mapping.default": schema.name_mapping.model_dump_json()}
        try:
            self._catalog.create_namespace_if_not_exists(NAMESPACE)
            return self._catalog.create_table(self._name, schema, place, spec, properties=_PROPERTIES | mapping)
        except TableAlreadyExistsError:
            return self._catalog.load_table(self._name)

    def _with_columns(self, table: Table) -> Table:
        columns = {field.name: str(field.field_type) for field in table.schema().fields}
        wanted = {name: str(_KINDS[kind]) for name, kind in columns_of(self._source).items()}
        if all(columns.get(name) == kind for name, kind in wanted.items()):
            return table
        with table.update_schema() as update:
            for field in _schema(columns_of(self._source)).fields:
                if field.name not in columns:
                    update.add_column(field.name, field.field_type)
                elif (columns[field.name], wanted[field.name]) == ("int", "long"):
                    update.update_column(field.name, field.field_type)
        return table

    def _retried(self, attempt: Callable[[], _Result]) -> _Result:
        """Run `attempt`, again whenever somebody else has committed in between."""
        for number in range(_ATTEMPTS):
            try:
                return self._reached(attempt)
            except (CommitFailedException, ValidationException):
                pass
            except ValueError as error:  # what pyiceberg says when another branch has moved on meanwhile
                if "sequence number" not in str(error):
                    raise
            time.sleep(random.uniform(0.5, 1.0) * min(1.0, 0.02 * 2**number))
        raise TransientError("other programs keep publishing at the same time")

    def _reached(self, question: Callable[[], _Result]) -> _Result:
        place = self.places.table
        try:
            with nullcontext() if isinstance(place, Path) else place.store.answering(place.key):
                return question()
        except DBAPIError as error:
            raise TransientError(f"the catalogue of history does not answer: {error.orig}") from error
        except (ValidationError, EOFError, UnicodeDecodeError) as error:
            # pyiceberg's decoder may read beyond the end of a cut file, into whatever lies in memory there.
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise BrokenTable(f"{place / 'metadata'} cannot be read ({why}); restore it from a backup") from error


def audit_branch(day: date, version: str) -> str:
    """The branch on which a version waits for its verdict."""
    return f"audit-{day}-{version}"


def _clear(table: Table, transaction: Transaction, days: Iterable[date], properties: dict[str, str]) -> None:
    wanted = sorted(days)
    first, last = begin(wanted[0]).isoformat(), end(wanted[-1]).isoformat()
    tasks = table.scan(f"event_time >= '{first}' and event_time < '{last}'").plan_files()
    there = {_EPOCH_DAY + timedelta(days=task.file.partition[0]) for task in tasks}
    its_own = [
        f"(event_time >= '{begin(day).isoformat()}' and event_time < '{end(day).isoformat()}')"
        for day in wanted
        if day in there
    ]
    if its_own:
        transaction.delete(" or ".join(its_own), properties)


def _drop(transaction: Transaction, branch: str) -> None:
    if branch in transaction.table_metadata.refs:
        ManageSnapshots(transaction).remove_branch(branch).commit()


def _metadata_of(table: Table) -> set[str]:
    used = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        used.add(snapshot.manifest_list)
        used |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    return used


def _declared(kind: str) -> str:
    return next(declared for declared, iceberg in _KINDS.items() if str(iceberg) == kind)


def _schema(columns: dict[str, str]) -> Schema:
    fields = [types.NestedField(n, name, _KINDS[kind]) for n, (name, kind) in enumerate(columns.items(), start=1)]
    return Schema(*fields)
