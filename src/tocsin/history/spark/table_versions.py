"""Make the versions of tables from sealed days, each by the table's query over the days before its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError, Fault, TocsinError, TransientError, nearest
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.names import refresh_job
from tocsin.declare.model.source import Source
from tocsin.declare.model.table import FROM, UNTIL, TableSpec
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.detect.model_program import RefusedModel
from tocsin.history.day_status import kept_from, published_days
from tocsin.history.places import Places, begin, end
from tocsin.history.spark.model_training import Training, model_of
from tocsin.history.spark.sealed_days import sealed_events
from tocsin.platform.failures import first_line
from tocsin.platform.lock import try_lead
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.spark.plan_traits import find_unrepeatable
from tocsin.spark.query_plan import analyse
from tocsin.spark.tables.dated_versions import UNREAD_AFTER, DatedVersion, DatedVersions, anchor, days_of, lacking
from tocsin.spark.tables.model_files import ModelFiles
from tocsin.spark.tables.published_table import ROWS, TableFolder, arrow_schema, read_rows_of
from tocsin.spark.tables.spark.joined_tables import DatedRows, JoinedTables, empty_table, open_tables

_EVENTS = "events"
_MOST_IN_MEMORY = 1_000_000  # rows, of a heap of 1 GB that every backfill has
log = structlog.get_logger()


def refresh(
    spark: SparkSession, settings: Settings, spec: TableSpec, source: Source, wanted: Iterable[date] = ()
) -> list[DatedVersion]:
    """Make the versions of `spec` that are due, and those of the days `wanted` by a backfill; returns them.

    A day of history that is not published is left out, and logged. What was made before stays in force if one fails.

    Raises:
        ConfigError: the query is not one that gives the table's columns; a retry does not help.
        TocsinError: it gives no rows, several of one key, or more than `max_rows`.
        TransientError: no day is published that a version could be made of, or history or the disk cannot be used.
        LockHeld: they are being made for somebody else; a retry helps once that has ended.
    """
    with try_lead(settings, settings.checkpoint(refresh_job(spec.name)) / "lock"):
        versions, wanted = DatedVersions(settings, spec), sorted({anchor(spec, day) for day in wanted})
        due = {day: days_of(spec, day) for day in _due(versions, spec, datetime.now(UTC).date(), wanted)}
        made = _make(spark, settings, versions, source, _Order(due, wanted))
        if not wanted and versions.read():
            _tidy(settings, versions, kept_from(settings, source))
        return made


def train_now(
    spark: SparkSession, settings: Settings, spec: TableSpec, source: Source, *, is_accepted: bool
) -> list[DatedVersion]:
    """Train a model on the newest days, which holds from now on, and end a hold; errors as for `refresh`.

    The first time, train those that `refresh` would. With `is_accepted` the gate lets pass what has drifted, and what
    finds far more or less than before.
    """
    with try_lead(settings, settings.checkpoint(refresh_job(spec.name)) / "lock"):
        versions, today = DatedVersions(settings, spec), datetime.now(UTC).date()
        due = {day: days_of(spec, day) for day in lacking(spec, [], today)}
        if versions.read():
            due = {today: days_of(spec.model_copy(update={"every": 1}), today)}
        made = _make(spark, settings, versions, source, _Order(due, (), is_by_hand=True, is_accepted=is_accepted))
        versions.release()
        return made


@dataclass(frozen=True)
class _Order:
    """The versions to make, each with the days that it is made of; those `wanted` by a backfill must not fail."""

    due: Mapping[date, Sequence[date]]
    wanted: Sequence[date]
    is_by_hand: bool = False
    is_accepted: bool = False

    def needs(self, day: date, made: Sequence[DatedVersion]) -> bool:
        """Return whether it is a failure that no day is there to make the version of `day` of."""
        return day in self.wanted or (not made and (self.is_by_hand or day > datetime.now(UTC).date()))


def _make(
    spark: SparkSession, settings: Settings, versions: DatedVersions, source: Source, order: _Order
) -> list[DatedVersion]:
    spec, made, refused, lost = versions.spec, list[DatedVersion](), list[str](), list[date]()
    published = published_days(settings, source) if order.due else {}
    takes_over = order.is_by_hand and bool(versions.read())
    for day, days in order.due.items():
        used = [one for one in days if one in published]
        if not used:
            lost.append(day)
            continue
        if len(used) < len(days):
            log.warning("days left out", table=spec.name, day=str(day), used=len(used), of=len(days))
        events = sealed_events(spark, Places.of(settings, source.name), source, {one: published[one] for one in used})
        try:
            if spec.trains:
                before = versions.read()[-1] if takes_over else versions.before(day)
                joined = _joined_in_training(spark, settings, spec, used)
                training = Training(day, events, used, before, joined, order.is_accepted)
                rows = model_of(spark, settings, spec, training)
            else:
                rows = _rows(run_query(spark, settings, spec, events), spec)
        except RefusedModel as error:
            versions.refuse(day, str(error), datetime.now(UTC))
            log.error("model refused", detector=spec.trains, day=str(day), reason=str(error))
            refused += [f"{day}: {error}"] if not order.wanted or day in order.wanted else []
            continue
        now = datetime.now(UTC)
        # One by hand holds from now on; the day may be another by now, whose own version would go before it.
        held = (now + spec.settle - spec.punctual).date() if takes_over else day
        made.append(versions.add(held, rows, used, now))
        log.info("version made", table=spec.name, day=str(held), rows=rows.num_rows, days=len(used))
    if made:
        versions.publish()
    if refused:
        raise RefusedModel(f"model of {spec.trains} refused, the one before stays in force: {'; '.join(refused)}")
    if needed := [day for day in lost if order.needs(day, made)]:
        what = f"none of the {spec.days} days that table '{spec.name}' of {needed[-1]} is made of is published"
        raise TransientError(f"{what}; seal days first: tocsin history seal --source {source.name}")
    return made


def _due(versions: DatedVersions, spec: TableSpec, today: date, wanted: Sequence[date]) -> list[date]:
    known = versions.read()
    due = lacking(spec, known, today, wanted)
    if not spec.trains:
        return due
    # A backfill does without a model of now that was refused.
    left_out = {refused.day for refused in versions.refused()} if wanted else set()
    is_held = bool(known) and versions.held is not None
    return [day for day in due if day in wanted or not (is_held or day in left_out)]


def _tidy(settings: Settings, versions: DatedVersions, before: date) -> None:
    versions.forget(before)
    if versions.spec.trains:
        named = {digest for rows in versions.all_rows() for digest in rows["hash"].to_pylist()}
        ModelFiles.of(settings, versions.spec.trains).forget(named, datetime.now(UTC) - UNREAD_AFTER)


def _joined_in_training(
    spark: SparkSession, settings: Settings, spec: TableSpec, days: Iterable[date]
) -> JoinedTables | None:
    detector = read_catalog(settings.project).detector(spec.trains)
    others = tuple(name for name in detector.tables if name != spec.name)
    return tables_of_days(spark, settings, replace(detector, tables=others), days)


def tables_of_days(
    spark: SparkSession, settings: Settings, spec: DetectorSpec | FlowSpec | ViewSpec, days: Iterable[date]
) -> JoinedTables | None:
    """Open the tables that `spec` joins on `days`, which follow one another; None if it joins none.

    Of tables that are made of history, the versions that the days lack are made. What looks back, or is made of all
    days that there are, finds no rows on days before the first version that can be made, as its stream did. The rows of
    the other tables come from this machine with the plan. TocsinError as for `refresh`, and for `open_tables`.
    """
    wanted, dated = sorted(days), {}
    catalog = read_catalog(settings.project)
    for table in [catalog.table(name) for name in spec.tables]:
        if table.history is not None:
            source, needed = catalog.source(table.history), wanted
            if not isinstance(spec, DetectorSpec) or spec.looks_back:
                published = published_days(settings, source)
                needed = [day for day in wanted if not published.keys().isdisjoint(days_of(table, day))]
            refresh(spark, settings, table, source, needed)
            dated[table.name] = _of_days(spark, DatedVersions(settings, table), table, wanted)
        elif (in_force := (folder := TableFolder(settings, table)).current()) is not None:
            dated[table.name] = _in_force(spark, table, folder.place(in_force))
    return open_tables(spark, settings, spec.tables, spec.path, dated)


def query_faults(spark: SparkSession, settings: Settings, catalog: Catalog) -> list[Fault]:
    """Have Spark plan the queries of all tables that are made of history, and list what is wrong."""
    faults: list[Fault] = []
    for spec in catalog.history_tables():
        if spec.trains:
            continue
        source = catalog.source(str(spec.history))
        try:
            run_query(spark, settings, spec, sealed_events(spark, Places.of(settings, source.name), source, {}))
        except ConfigError as error:
            faults += error.faults
    return faults


def run_query(spark: SparkSession, settings: Settings, spec: TableSpec, events: DataFrame) -> DataFrame:
    """Apply the query of `spec` to `events`; returns the columns of the table, for rows whose key is not null.

    NaN and infinite numbers become null. ConfigError if Spark refuses it, it depends on more than the events, or it
    lacks a column or gives another type.
    """
    where = settings.project / "tables" / f"{spec.name}.toml"
    events.createOrReplaceTempView(_EVENTS)
    try:
        rows = spark.sql(str(spec.sql))
    except PySparkException as error:
        raise ConfigError.one(where, f"Spark refuses it: {first_line(error)}", key="sql") from error
    if called := find_unrepeatable(analyse(rows)):
        raise ConfigError.one(where, f"calls {called}: each run would give other rows", key="sql")
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    faults = []
    for name, kind in spec.columns.items():
        if name not in types:
            faults.append(Fault(str(where), f"gives no column '{name}'", key="sql", nearest=nearest(name, types)))
        elif types[name] != kind:
            faults.append(Fault(str(where), f"gives '{name}' as {types[name]}, not {kind}: cast it", key="sql"))
    if faults:
        raise ConfigError(faults)
    is_known = reduce(and_, [F.col(name).isNotNull() for name in spec.key])
    return rows.where(is_known).select(*[_finite(name, kind) for name, kind in spec.columns.items()])


def _finite(name: str, kind: str) -> Column:
    column = F.col(name)
    is_number = ~F.isnan(column) & (F.abs(column) != float("inf"))
    return F.when(is_number, column).alias(name) if kind == "double" else column


def _rows(found: DataFrame, spec: TableSpec) -> pa.Table:
    """Compute the rows of a version; TocsinError if there are none, too many, several of one key, or a wrong null."""
    schema = arrow_schema(spec)
    rows = found.limit(spec.max_rows + 1).toArrow().cast(pa.schema([schema.field(name) for name in spec.columns]))
    what = f"the query of table '{spec.name}' gives"
    if rows.num_rows == 0:
        raise TocsinError(f"{what} no rows; those before stay in force")
    if rows.num_rows > spec.max_rows:
        raise TocsinError(f"{what} more than max_rows = {spec.max_rows} rows; those before stay in force")
    keys = rows.group_by(list(spec.key)).aggregate([([], "count_all")])
    twice = keys.filter(pc.greater(keys["count_all"], 1)).slice(0, 1).to_pylist()
    if twice:
        key = ", ".join(f"{name} = {twice[0][name]!r}" for name in spec.key)
        raise TocsinError(f"{what} {twice[0]['count_all']} rows of {key}; those before stay in force")
    null = [name for name in spec.columns if name not in spec.optional and rows[name].null_count]
    if null:
        raise TocsinError(f"{what} no value of {', '.join(null)} in some rows; declare it under [optional]")
    return rows


def _of_days(spark: SparkSession, versions: DatedVersions, spec: TableSpec, days: list[date]) -> DatedRows:
    first, last = begin(days[0]), end(days[-1])
    held = [(one, until) for one, until in versions.spans() if one.holds_from < last and (until or last) > first]
    columns = [*spec.columns]
    frames = [
        spark.read.parquet(str(versions.place(version) / ROWS)).select(
            *columns, F.lit(version.holds_from).alias(FROM), F.lit(until).cast("timestamp").alias(UNTIL)
        )
        for version, until in held
    ]
    rows = sum(version.rows for version, _ in held)
    return DatedRows(reduce(DataFrame.unionByName, frames, empty_table(spark, spec)), is_large=rows > _MOST_IN_MEMORY)


def _in_force(spark: SparkSession, spec: TableSpec, folder: StoredPath) -> DatedRows:
    rows = read_rows_of(folder)
    frame = spark.createDataFrame(rows, empty_table(spark, spec).schema)
    return DatedRows(frame, is_large=rows.num_rows > _MOST_IN_MEMORY)
