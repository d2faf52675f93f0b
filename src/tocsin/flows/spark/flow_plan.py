"""Check what a flow returns, before its job starts: columns, and a plan that keeps no state and repeats itself."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.ingest.spark.patterns import check_function
from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.model.flow import POSITION, FlowSpec
from tocsin.model.source import EVENT_COLUMNS, Source
from tocsin.project.catalog import Catalog
from tocsin.sparkjob.declared_function import DeclaredFunction
from tocsin.sparkjob.events import IDENTITY, no_records, parse_events
from tocsin.sparkjob.plan_traits import find_obstacle, keeps_state
from tocsin.sparkjob.plan_tree import Node, parse_tree
from tocsin.tables.spark.joined_tables import JoinedTables, no_rows

_NEEDED = (*IDENTITY, "event_time", "ingested_at")
_MULTIPLIES = {"Generate", "Expand", "Union"}
_CHANGES = {
    "Rand": "rand()", "Randn": "randn()", "RandStr": "randstr()", "Uniform": "uniform()", "Uuid": "uuid()",
    "Shuffle": "shuffle()", "MonotonicallyIncreasingID": "monotonically_increasing_id()",
    "SparkPartitionID": "spark_partition_id()", "CurrentTimestamp": "current_timestamp()", "Now": "now()",
    "LocalTimestamp": "localtimestamp()", "CurrentDate": "current_date()", "CurrentTime": "current_time()",
}  # fmt: skip


def flow_faults(spark: SparkSession, catalog: Catalog) -> list[Fault]:
    """List what Spark, Java or Tocsin refuses of the plans of all flows."""
    faults: list[Fault] = []
    for spec in catalog.flows.values():
        try:
            plan_flow(spark, spec, catalog)
        except ConfigError as error:
            faults += error.faults
    return faults


def plan_flow(spark: SparkSession, spec: FlowSpec, catalog: Catalog) -> None:
    """Have Spark plan `spec`, and check what it returns.

    Raises:
        ConfigError: with all faults at once; a retry does not help.
    """
    source = catalog.source(spec.source)
    tables = no_rows(spark, catalog, spec.tables, spec.path)
    rows = apply_flow(DeclaredFunction(spec.path, "flow"), no_records(spark), source, tables)
    check_flow(rows, spec, source, catalog.source(spec.to))


def apply_flow(
    flow: DeclaredFunction, records: DataFrame, source: Source, tables: JoinedTables | None = None
) -> DataFrame:
    """Make the rows that `flow` gives for `records` of the events topic of `source`, and for `tables`."""
    events = parse_events(records, source)
    return flow(events.where(F.col("tick").isNull()).drop("tick"), tables)


def check_flow(rows: DataFrame, spec: FlowSpec, source: Source, to: Source) -> None:
    """Check `rows`, which `flow` of `spec` has made of events of `source`, as events of `to`.

    Its patterns are tried on what can stand in records of `source`; this can take seconds.

    Raises:
        ConfigError: with all faults at once; a retry does not help.
    """
    tree = parse_tree(rows._jdf.queryExecution().analyzed().toJSON())
    faults = [Fault(str(spec.path), what, key="flow") for what in _objections(tree, rows.columns)]
    faults += _column_faults(rows, spec, to)
    if faults:
        raise ConfigError(faults)
    check_function(tree, rows.sparkSession, (spec.path, "flow"), source)


def _objections(tree: Node, columns: list[str]) -> list[str]:
    """Say in sentences what a flow may not do and this one does."""
    found = []
    if keeps_state(tree):
        found.append("keeps state, as an aggregate does; a flow makes each event by itself: use a view to count")
    elif obstacle := find_obstacle(tree):
        found.append(f"cannot run: {obstacle}")
    if POSITION not in columns and any(node.kind in _MULTIPLIES for node in tree.walk()):
        what = "makes several rows of one event, and no column 'position' tells them apart; use F.posexplode, as in "
        found.append(what + 'events.select("*", F.posexplode(words).alias("position", "word"))')
    called = [_CHANGES[e.kind] for node in tree.walk() for top in node.expressions() for e in top.walk()
              if e.kind in _CHANGES]  # fmt: skip
    if called:
        found.append(f"calls {called[0]}: an event that is read again after a crash would become another one")
    return found


def _column_faults(rows: DataFrame, spec: FlowSpec, to: Source) -> list[Fault]:
    """List what is wrong with the columns that `flow` returned."""
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
