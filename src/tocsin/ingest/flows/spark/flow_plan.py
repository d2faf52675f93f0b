"""Check what a flow returns, before its job starts: columns, and a plan that keeps no state and repeats itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.durations import spark_interval
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.flow import POSITION, FlowSpec
from tocsin.declare.model.names import Names
from tocsin.declare.model.source import EVENT_COLUMNS, Source
from tocsin.ingest.parsing_rules import EARLIEST
from tocsin.ingest.spark.envelope import event_json, fits, key_of
from tocsin.ingest.spark.patterns import check_function
from tocsin.platform.environments import without_elsewhere
from tocsin.platform.time_limit import time_limit
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.events import IDENTITY, by_source, no_records, parse_events, read_sources, unread_sources
from tocsin.spark.plan_traits import find_obstacle, find_unrepeatable, has_stream_joins, keeps_state
from tocsin.spark.plan_tree import Node
from tocsin.spark.query_plan import analyse
from tocsin.spark.tables.spark.joined_tables import JoinedTables, no_rows

_NEEDED = (*IDENTITY, "event_time", "ingested_at")
_MULTIPLIES = {"Generate", "Expand"}


def flow_faults(spark: SparkSession, catalog: Catalog) -> list[Fault]:
    """List what Spark, Java or Tocsin refuses of the plans of all flows."""
    faults: list[Fault] = []
    for spec in without_elsewhere(catalog.flows).values():
        try:
            plan_flow(spark, spec, catalog)
        except ConfigError as error:
            faults += error.faults
    return faults


class PlannedFlow(NamedTuple):
    """The function of a flow, and its sources in the order in which its plan reads them."""

    function: DeclaredFunction
    order: list[str]


def plan_flow(spark: SparkSession, spec: FlowSpec, catalog: Catalog, text: bytes | None = None) -> PlannedFlow:
    """Have Spark plan `spec`, from its file's `text`, and check what it returns; errors as `check_flow`."""
    sources = catalog.sources_of(spec)
    tables = no_rows(spark, catalog, spec.tables, spec.path)
    flow = DeclaredFunction(spec.path, "flow", text)
    with time_limit(spec.path):
        rows = apply_flow(flow, spec, sources, lambda _: no_records(spark), tables)
        order = check_flow(rows, spec, sources, catalog.source(spec.to))
    return PlannedFlow(flow, order)


def apply_flow(
    flow: DeclaredFunction,
    spec: FlowSpec,
    sources: Sequence[Source],
    records_of: Callable[[Source], DataFrame],
    tables: JoinedTables | None = None,
) -> DataFrame:
    """Make the rows that `flow` of `spec` gives for records of the events topics of `sources`, and for `tables`."""

    def events_of(source: Source) -> DataFrame:
        events = parse_events(records_of(source), source, is_only=len(sources) == 1)
        return events.where(F.col("tick").isNull()).drop("tick")

    return flow(by_source(sources, spec.path, None, events_of), tables)


def check_flow(rows: DataFrame, spec: FlowSpec, sources: Sequence[Source], to: Source) -> list[str]:
    """Check `rows`, which `flow` of `spec` has made of events of `sources`, as events of `to`; returns their order.

    Its patterns are tried on what can stand in records of `sources`; this can take seconds. ConfigError, where a retry
    does not help, with all faults at once.
    """
    tree = analyse(rows)
    faults = [Fault(str(spec.path), what, key="flow") for what in _objections(tree, rows.columns, sources)]
    faults += _column_faults(rows, spec, to)
    if faults:
        raise ConfigError(faults)
    check_function(tree, rows.sparkSession, (spec.path, "flow"), max(sources, key=lambda source: source.max_bytes))
    return read_sources(tree, sources) or [source.name for source in sources]


def _objections(tree: Node, columns: list[str], sources: Sequence[Source]) -> list[str]:
    unread = unread_sources(tree, sources)
    found = [f"does not read source '{name}', which it declares; leave it out there" for name in unread]
    if has_stream_joins(tree):
        found.append("joins two streams, which takes state; join them in a detector or a view, or join a table")
    elif keeps_state(tree):
        found.append("keeps state, as an aggregate does; a flow makes each event by itself: use a view to count")
    elif obstacle := find_obstacle(tree):
        found.append(f"cannot run: {obstacle}")
    if POSITION not in columns and any(node.kind in _MULTIPLIES for node in tree.walk()):
        what = "makes several rows of one event, and no column 'position' tells them apart; use F.posexplode, as in "
        found.append(what + 'events.select("*", F.posexplode(words).alias("position", "word"))')
    elif column := _find_unnumbered(tree):
        what = f"makes several rows of one event by the column '{column}', of which 'position' is not made, so that "
        what += "only the first would count; number them by F.posexplode, and make position of the numbers of all, as "
        found.append(what + 'in F.col("first") * 1000 + F.col("second")')
    if any(node.kind == "Union" and _reads_twice(node, sources) for node in tree.walk()):
        what = "puts events of one source together with themselves, which real-time mode refuses; F.posexplode over an "
        found.append(what + "array makes several rows of one event")
    if called := find_unrepeatable(tree):
        found.append(f"calls {called}: an event that is read again after a crash would become another one")
    return found


def _find_unnumbered(tree: Node) -> str | None:
    """Name a column of several rows of one event that `position` is not made of, not even in part; else None."""
    nodes = [each for node in tree.walk() for top in node.expressions() for each in top.walk()]
    made_of = {node.identity: {each.identity for each in node.walk()} for node in nodes if node.kind == "Alias"}
    numbers = {node.identity for node in nodes if node.name == POSITION}
    while more := set().union(*(made_of.get(number, ()) for number in numbers)) - numbers:
        numbers |= more
    for node in (node for node in tree.walk() if node.kind in _MULTIPLIES):
        given = {e.identity for below in node.children[0].walk() for top in below.expressions() for e in top.walk()}
        made = [each for each in node.expressions("generatorOutput", "output") if each.identity not in given]
        if not numbers & {each.identity for each in made}:
            return made[-1].name
    return None


def _reads_twice(union: Node, sources: Sequence[Source]) -> bool:
    """Return whether a union puts events of one source together with themselves."""
    read = [name for child in union.children for name in read_sources(child, sources)]
    return len(sources) == 1 or len(read) > len({*read})


def _column_faults(rows: DataFrame, spec: FlowSpec, to: Source) -> list[Fault]:
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    wanted = {name: EVENT_COLUMNS[name] for name in _NEEDED} | to.columns
    faults = []
    for name, kind in wanted.items():
        if name not in types:
            what = f"flow returns no column '{name}', which source '{to.name}' needs"
            faults.append(Fault(str(spec.path), what, key=name, nearest=nearest(name, types)))
        elif types[name] != kind:
            faults.append(Fault(str(spec.path), f"must be {kind}, not {types[name]}", key=name))
    for name in sorted({*wanted, POSITION} & {name for name in types if rows.columns.count(name) > 1}):
        faults.append(Fault(str(spec.path), "occurs twice among the columns that flow returns", key=name))
    if types.get(POSITION, "int") not in ("int", "bigint"):
        faults.append(Fault(str(spec.path), f"must be a whole number, not {types[POSITION]}", key=POSITION))
    return faults


OBSERVATION = "flow"


class LeftOut(StrEnum):
    """Why a row of a flow is no event."""

    NO_IDENTITY = "no_identity"
    """It does not say which event it was made of."""
    NULL_KEY = "null_key"
    MISSING = "missing"
    """A column that is not optional is null; NaN and infinite numbers count as null."""
    NO_TIME = "no_time"
    TIME_AHEAD = "time_ahead"
    """Its event time is more than `max_ahead` of its source after the time at which the raw record came in."""
    TIME_TOO_OLD = "time_too_old"
    TOO_LONG = "too_long"
    """As a record it would be longer than the events topic takes."""


def make_events(rows: DataFrame, spec: FlowSpec, to: Source, names: Names, observation: str = OBSERVATION) -> DataFrame:
    """Make rows for Spark's Kafka sink, `topic`, `key` and `value`, of `rows` that `flow` of `spec` has returned.

    What cannot be an event of `to` is left out, and counted under `observation` by its reason.
    """
    columns = F.struct(*[_value(name, kind).alias(name) for name, kind in to.columns.items()]).alias("columns")
    placed = rows.select(_raw_topic(rows, spec), *IDENTITY[1:], "event_time", "ingested_at", columns)
    origin = [F.col(name) for name in IDENTITY]
    fields = [F.col("columns").getField(name).alias(name) for name in to.columns]
    written = placed.withColumn("value", event_json(origin, to, fields)).withColumn("key", key_of(to))
    judged = written.withColumn("reason", _reason(to))
    counts = [F.count_if(F.col("reason") == reason).alias(reason) for reason in LeftOut]
    good = judged.observe(observation, *counts).where(F.col("reason").isNull())
    return good.select(F.lit(names.events(to.name)).alias("topic"), "key", "value")


def _raw_topic(rows: DataFrame, spec: FlowSpec) -> Column:
    """Begin the identity of a row: the flow, the position among the rows of one event, and the identity of that event.

    A name holds neither colon nor slash, and a position digits alone, so no two identities are written the same way.
    """
    position = F.coalesce(F.col(POSITION).cast("string"), F.lit("")) if POSITION in rows.columns else F.lit("")
    return F.concat(F.lit(f"flow:{spec.name}/"), position, F.lit(":"), "raw_topic").alias("raw_topic")


def _value(name: str, kind: str) -> Column:
    value = F.col(f"`{name}`")
    return F.when(~F.isnan(value) & (F.abs(value) < float("inf")), value) if kind == "double" else value


def _reason(to: Source) -> Column:
    needed = [name for name in to.columns if name not in to.optional]
    is_missing = F.lit(False)
    for name in needed:
        is_missing |= F.col("columns").getField(name).isNull()
    has_identity = F.lit(True)
    for name in (*IDENTITY, "ingested_at"):
        has_identity &= F.col(name).isNotNull()
    latest = F.col("ingested_at") + F.expr(f"INTERVAL {spark_interval(to.max_ahead)}")
    return (
        F.when(~has_identity, LeftOut.NO_IDENTITY)
        .when(F.col("key").isNull(), LeftOut.NULL_KEY)
        .when(is_missing, LeftOut.MISSING)
        .when(F.col("event_time").isNull(), LeftOut.NO_TIME)
        .when(F.col("event_time") > latest, LeftOut.TIME_AHEAD)
        .when(F.col("event_time") < F.lit(EARLIEST), LeftOut.TIME_TOO_OLD)
        .when(~fits(F.col("value"), F.col("key")), LeftOut.TOO_LONG)
    )
