"""The tables that a function joins, in one Spark session; each batch of a stream reads the snapshot then in force.

Behind each stands a table of Spark's catalog with one partition. To put another snapshot in force is to give the
partition another place: that is one step, and a batch that is planned already reads the files of the one before.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import ConfigError, Fault, TransientError, nearest
from tocsin.declare.model.names import table_job
from tocsin.declare.model.table import FROM, UNTIL, TableSpec
from tocsin.declare.settings import Settings
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.spark.tables.model_files import model_root
from tocsin.spark.tables.published_table import PublishedRows, TableFolder

_NUMBERS = itertools.count(1)
_PARTITION = "tocsin_snapshot"
_HIDDEN = "tocsin_joined_"
MODEL_DAY, MODEL_HASH = f"{_HIDDEN}day", f"{_HIDDEN}hash"


@dataclass(frozen=True)
class DatedRows:
    """The rows of a table that hold on days of history: its columns, `valid_from` and `valid_to`.

    A table `is_large` if it has too many for the memory of each task.
    """

    frame: DataFrame
    is_large: bool


class JoinedTables:
    """Implements `tocsin.declare.model.flow.Tables`. For one thread. Models lie in folders of `model_root`."""

    model_root = ""

    def __init__(
        self, where: Path, rows: Mapping[str, tuple[TableSpec, DataFrame]], large: Collection[str] = ()
    ) -> None:
        """Join `rows`, with `valid_from` and `valid_to`; those of `large` stay out of memory, `where` is for errors."""
        self._where, self._rows, self._large = where, rows, large

    def join(
        self,
        events: DataFrame,
        table: str,
        how: Literal["left", "inner"] = "left",
        on: dict[str, str] | None = None,
    ) -> DataFrame:
        """Add to each event the row that holds at its `event_time`; see `Tables.join`."""
        if table not in self._rows:
            what = f"joins table '{table}', which it does not declare; write tables=[\"{table}\"]"
            raise self._fault(what, near=nearest(table, self._rows))
        if how not in ("left", "inner"):
            raise self._fault(f'joins table \'{table}\' by how={how!r}; it may be "left" or "inner"')
        spec, rows = self._rows[table]
        keys = {name: (on or {}).get(name, name) for name in spec.key}
        self._check(events, spec, keys, on or {})
        side = rows.select(
            *[F.col(name).alias(f"{_HIDDEN}{name}") for name in spec.key],
            F.col(FROM).alias(spec.since),
            F.col(UNTIL).alias(_HIDDEN),
            *spec.values,
        )
        time = events["event_time"]
        matches = [events[column] == side[f"{_HIDDEN}{name}"] for name, column in keys.items()]
        holds = (time >= side[spec.since]) & (side[_HIDDEN].isNull() | (time < side[_HIDDEN]))
        joined = events.join(side if table in self._large else F.broadcast(side), [*matches, holds], how)
        return joined.drop(_HIDDEN, *[f"{_HIDDEN}{name}" for name in spec.key])

    def added_columns(self, table: str) -> dict[str, str]:
        """Return the columns, with their types, that `join` adds to an event."""
        spec, _ = self._rows[table]
        return {**{name: spec.columns[name] for name in spec.values}, spec.since: "timestamp"}

    def is_empty(self, table: str) -> bool:
        """Return whether no row of `table` is in force any more."""
        return self._rows[table][1].where(F.col(UNTIL).isNull()).isEmpty()

    def holding(self, table: str, windows: DataFrame) -> DataFrame:
        """Give each of `windows` (column `window`) the keys of `table`, as texts, that hold when it begins and ends."""
        spec, rows = self._rows[table]
        known = rows.select(*[F.col(name).cast("string").alias(name) for name in spec.key], FROM, UNTIL)

        def at(moment: Column) -> DataFrame:
            holds = (moment >= F.col(FROM)) & (F.col(UNTIL).isNull() | (moment < F.col(UNTIL)))
            return windows.join(F.broadcast(known), holds).select("window", *spec.key).distinct()

        last = F.col("window.end") - F.expr("INTERVAL 1 MICROSECOND")
        return at(F.col("window.start")).join(at(last), ["window", *spec.key], "left_semi")

    def holding_models(self, rows: DataFrame, table: str) -> DataFrame:
        """Add to each of `rows` which model holds when its window begins: its day and hash, null where none does.

        `table` is that of a detector's models.
        """
        known = self._rows[table][1].select(
            F.col("day").alias(MODEL_DAY), F.col("hash").alias(MODEL_HASH), F.col(FROM).alias(f"{_HIDDEN}{FROM}"),
            F.col(UNTIL).alias(_HIDDEN),
        )  # fmt: skip
        start, until = rows["window"]["start"], known[_HIDDEN]
        holds = (start >= known[f"{_HIDDEN}{FROM}"]) & (until.isNull() | (start < until))
        return rows.join(F.broadcast(known), holds, "left").drop(f"{_HIDDEN}{FROM}", _HIDDEN)

    def _check(self, events: DataFrame, spec: TableSpec, keys: dict[str, str], on: dict[str, str]) -> None:
        types = {field.name: field.dataType.simpleString() for field in events.schema.fields}
        faults = [f"'{name}' in on= is no column of its key" for name in on if name not in spec.key]
        for name, column in {**keys, "event_time": "event_time"}.items():
            kind = spec.columns.get(name, "timestamp")
            if column not in types:
                near = nearest(column, types)
                faults.append(f"the events have no column '{column}'" + (f" (did you mean '{near}'?)" if near else ""))
            elif types[column] != kind:
                faults.append(f"'{column}' of the events is {types[column]}, '{name}' of the table is {kind}: cast it")
        taken = sorted({*spec.values, spec.since} & types.keys())
        faults += [f"the events have a column '{name}' already; rename or drop it before" for name in taken]
        if faults:
            raise ConfigError([Fault(str(self._where), f"joins table '{spec.name}': {fault}") for fault in faults])

    def _fault(self, what: str, near: str | None = None) -> ConfigError:
        return ConfigError([Fault(str(self._where), what, key="tables", nearest=near)])


class FollowedTables(JoinedTables):
    """Tables of an installation, of which `refresh` puts the newest snapshots in force."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        tables: Iterable[TableSpec],
        where: Path,
        dated: Mapping[str, DatedRows] | None = None,
    ) -> None:
        """Open `tables`, those in `dated` with these fixed rows. TransientError while there are no rows of one."""
        self._spark, self._opened, self.model_root = spark, {}, model_root(settings)
        rows: dict[str, tuple[TableSpec, DataFrame]] = {}
        for spec in tables:
            name, folder = spec.name, TableFolder(settings, spec)
            if dated and name in dated:
                rows[name] = spec, dated[name].frame
                continue
            published = folder.current()
            if published is None:
                come = f"from job {table_job(name)}"
                if spec.history is not None:
                    command = f"model train {spec.trains}" if spec.trains else f"table --refresh {name}"
                    come = f"when days of {spec.history} have been sealed, by `tocsin {command}`"
                raise TransientError(f"table '{name}' has no rows yet; they come {come}")
            frame = f"tocsin_table_{os.getpid()}_{next(_NUMBERS)}"  # the jobs of an engine share a catalog
            self._opened[name] = _Opened(spec, folder, frame, published)
            rows[name] = spec, _frame(spark, spec, folder, published, frame)
        super().__init__(where, rows, [name for name, table in (dated or {}).items() if table.is_large])

    def refresh(self) -> str:
        """Let the next batch read the newest snapshots; say if one is behind, else "". TransientError if it fails."""
        behind: list[str] = []
        for name, opened in self._opened.items():
            published = opened.folder.current()
            if published is None:
                continue  # its declaration has changed; this job is about to be replaced
            if published.number != opened.published.number:
                place = _text(opened.folder.place(published))
                self._spark.sql(f"ALTER TABLE {opened.frame} PARTITION ({_PARTITION}=1) SET LOCATION {place}")
            opened.published = published
            age = datetime.now(UTC) - published.complete_at
            if age > opened.spec.settle:
                behind.append(f"table '{name}' is {age.total_seconds():.0f} s behind")
        return "; ".join(behind)


class _Opened:
    def __init__(self, spec: TableSpec, folder: TableFolder, frame: str, published: PublishedRows) -> None:
        self.spec, self.folder, self.frame, self.published = spec, folder, frame, published


def open_tables(
    spark: SparkSession,
    settings: Settings,
    names: tuple[str, ...],
    where: Path,
    dated: Mapping[str, DatedRows] | None = None,
) -> FollowedTables | None:
    """Open the tables `names` of the project for the function in `where`; None without any.

    Raises a TransientError while one has no rows, and a ConfigError if one is not declared, or its file is broken.
    """
    catalog = read_catalog(settings.project) if names else Catalog()
    tables = [catalog.table(name) for name in names]
    return FollowedTables(spark, settings, tables, where, dated) if names else None


def no_rows(spark: SparkSession, catalog: Catalog, names: tuple[str, ...], where: Path) -> JoinedTables | None:
    """Make tables without rows, to plan a query with; None if `names` is empty."""
    if not names:
        return None
    specs = [catalog.table(name) for name in names]
    return JoinedTables(where, {spec.name: (spec, empty_table(spark, spec)) for spec in specs})


def empty_table(spark: SparkSession, spec: TableSpec) -> DataFrame:
    """Make the versions of a table that has none."""
    return spark.createDataFrame([], _ddl(spec))


def _frame(spark: SparkSession, spec: TableSpec, folder: TableFolder, published: PublishedRows, name: str) -> DataFrame:
    # With a location of its own the table is external: dropping it would else delete the files of its partition.
    place = folder.place(published)
    spark.sql(
        f"CREATE TABLE {name} ({_ddl(spec)}, {_PARTITION} int) USING parquet PARTITIONED BY ({_PARTITION}) "
        f"LOCATION {_text(place.parent / 'none')}"
    )
    spark.sql(f"ALTER TABLE {name} ADD PARTITION ({_PARTITION}=1) LOCATION {_text(place)}")
    return spark.table(name).drop(_PARTITION)


def _ddl(spec: TableSpec) -> str:
    columns = spec.columns | {FROM: "timestamp", UNTIL: "timestamp"}
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def _text(path: StoredPath) -> str:
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"
