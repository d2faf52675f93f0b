"""Read off a view's plan, before it starts, mode and reason, output, exchanges, fingerprint; and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.detector import Span
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.sizes import RECORD_OVERHEAD, VIEW_BYTES
from tocsin.declare.model.source import Source
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.sinks import SINKS
from tocsin.ingest.spark.patterns import check_function
from tocsin.platform.environments import without_elsewhere
from tocsin.platform.time_limit import time_limit
from tocsin.spark.columns import JSON_TIMES, any_null, own_column
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.events import planned_events
from tocsin.spark.plan_traits import (
    count_exchanges,
    find_cut,
    find_never_true,
    find_unrepeatable,
    fingerprint_of,
    has_sessions,
    has_stream_joins,
    other_keys,
    python_functions,
)
from tocsin.spark.plan_tree import Node
from tocsin.spark.query.work import MICRO_BATCH
from tocsin.spark.query_plan import QueryPlan, analyse, mode_of, refusal_of, source_faults
from tocsin.spark.tables.spark.joined_tables import no_rows
from tocsin.spark.window_column import has_other_windows, is_whole

FUNCTION = "view"
_OTHER_WINDOW = (
    "is not what view groups by, so a rebuild would cut its windows elsewhere: group by the column 'window' that "
    "events have, and declare another length as window=, or overlapping ones with slide="
)
_KEY_TYPES = (StringType, BooleanType, IntegralType, DateType, TimestampType)


def view_plans(spark: SparkSession, catalog: Catalog) -> tuple[dict[str, QueryPlan], list[Fault]]:
    """Read the plan of each view by name, and the faults: plans and patterns that Spark, Java or Tocsin refuses."""
    found: dict[str, QueryPlan] = {}
    faults: list[Fault] = []
    for name, spec in without_elsewhere(catalog.views).items():
        sources = catalog.sources_of(spec)
        try:
            events = planned_events(spark, sources, spec.computed, spec.path)
            tables = no_rows(spark, catalog, spec.tables, spec.path)
            rows = DeclaredFunction(spec.path, FUNCTION)(events, tables)
            with time_limit(spec.path):
                found[name] = read_plan(rows, spec, sources)
        except ConfigError as error:
            faults += error.faults
    return found, faults


def read_plan(rows: DataFrame, spec: ViewSpec, sources: Sequence[Source]) -> QueryPlan:
    """Read the plan behind `rows`, which `view` of `spec` has returned (streaming or static).

    Its patterns are tried on what can stand in records of `sources`; this can take seconds.

    Raises:
        ConfigError: columns are missing or of a wrong type, nothing is aggregated, or Spark refuses the plan. All
            faults at once; a retry does not help.
    """
    tree, declared, spec = analyse(rows), spec, spec.computed
    wrong, reach = source_faults(rows, tree, (spec.path, FUNCTION), sources)
    faults = [*_column_faults(rows.schema, spec), *wrong, *_tree_faults(tree, declared)]
    if spec.window is not None and has_other_windows(tree, spec, rows.sparkSession):
        faults.append(Fault(str(spec.path), _OTHER_WINDOW, key="window"))
    faults += (
        _sink_faults(rows.schema, declared)
        + _sum_faults(rows.schema, declared)
        + (_latest_faults(tree, declared) if declared.shows_latest else [])
    )
    if faults:
        raise ConfigError(faults)
    check_function(tree, rows.sparkSession, (spec.path, FUNCTION), max(sources, key=lambda source: source.max_bytes))
    closed = _why_closed(tree)
    mode, reason = (
        (MICRO_BATCH, f"it {closed}: each row is written when its window has closed") if closed else mode_of(tree)
    )
    output = "append" if closed else "update"
    refusal = find_cut(tree, output) or find_never_true(tree) or (refusal_of(rows, output) if rows.isStreaming else "")
    if refusal:
        raise ConfigError([_fault(spec, refusal)])
    return QueryPlan(
        mode=mode,
        reason=reason,
        output=output,
        exchanges=count_exchanges(tree),
        fingerprint=fingerprint_of(tree, output, rows.sparkSession),
        reach=reach,
        python=python_functions(tree),
    )


def _why_closed(tree: Node) -> str:
    """Say why each row is written once, when its window has closed; "" where rows are written while they change."""
    if has_stream_joins(tree):
        return "joins two streams"
    return "aggregates aggregates" if sum(node.kind == "Aggregate" for node in tree.walk()) > 1 else ""


def _tree_faults(tree: Node, declared: ViewSpec) -> list[Fault]:
    faults = []
    if not any(node.kind == "Aggregate" for node in tree.walk()):
        what = "aggregates nothing, so the row that is written last would win, and that is another after each crash; "
        faults.append(_fault(declared, what + "for the latest value of a column use F.max_by(column, 'event_time')"))
    if has_sessions(tree):
        faults.append(_fault(declared, "has a session window, whose rows change their identity; use a window='...'"))
    if (closed := _why_closed(tree)) and declared.window is None:
        what = f"{closed}, which Spark takes only with a window: each row is written when it has closed"
        faults.append(Fault(str(declared.path), what, key="window"))
    spec = declared.computed
    for name in other_keys(tree, {*spec.key, *([] if spec.window is None else ["window"])}):
        what = f"groups by '{name}' besides the key, so the row of one takes the place of another's; name it in key=, "
        faults.append(_fault(declared, f"{what}or take it by an aggregate such as F.max('{name}')"))
    if called := find_unrepeatable(tree):
        what = f"calls {called}: an event that is read again after a crash would make another row; use event_time"
        faults.append(_fault(declared, what))
    return faults


def _column_faults(schema: StructType, spec: ViewSpec) -> list[Fault]:
    needed = [*spec.key, *(("window",) if spec.window is not None else ())]
    faults = [
        Fault(str(spec.path), f"view returns no column '{name}'", key=name, nearest=nearest(name, schema.names))
        for name in needed
        if name not in schema.names
    ]
    counts = Counter(map(str.lower, schema.names))
    faults += [Fault(str(spec.path), f"view returns {count} columns '{name}', as Spark ignores case", key=name)
               for name, count in counts.items() if count > 1]  # fmt: skip
    for field in schema.fields:
        if field.name in spec.key and not isinstance(field.dataType, _KEY_TYPES):
            what = f"is {field.dataType.simpleString()}; a column of the key is a text, a whole number, a boolean, "
            faults.append(Fault(str(spec.path), what + "a date or a timestamp: cast it", key=field.name))
    if spec.window is not None and "window" in spec.key:
        faults.append(Fault(str(spec.path), "holds 'window', which is part of each key already", key="key"))
    return faults


def _sink_faults(schema: StructType, spec: ViewSpec) -> list[Fault]:
    kind, has_windows = SINKS.get(spec.sink), spec.window is not None
    refused = {name: kind.why_refused(name, has_windows=has_windows) for name in schema.names if kind}
    return [
        Fault(str(spec.path), f"{why} ({spec.sink}): give that column another name by alias()", key=name)
        for name, why in refused.items()
        if why
    ]


def _sum_faults(schema: StructType, spec: ViewSpec) -> list[Fault]:
    if not spec.total:
        return []
    return [
        Fault(str(spec.path), f"is {field.dataType.simpleString()}; only numbers add up to a total", key=field.name)
        for field in schema.fields
        if field.name not in (*spec.key, "window") and not isinstance(field.dataType, NumericType)
    ]


def _latest_faults(tree: Node, spec: ViewSpec) -> list[Fault]:
    """List the aggregates that are not those of the latest event: what they are made of cannot be forgotten."""
    functions = [
        node.children[0]
        for operator in tree.walk() if operator.kind == "Aggregate"
        for top in operator.expressions()
        for node in top.walk() if node.kind == "AggregateExpression"
    ]  # fmt: skip
    others = sorted({function.kind for function in functions if not _is_of_latest(function)})
    if not others:
        return []
    what = f"removes idle keys, and {', '.join(others)} would begin anew with each period; without a window only "
    return [Fault(str(spec.path), what + "F.max_by(column, 'event_time') and F.max('event_time') fit", key="keep")]


def _is_of_latest(function: Node) -> bool:
    """Return whether an aggregate function is decided by the latest event."""
    if function.kind not in ("MaxBy", "Max"):
        return False
    order = next((node for node in function.children[-1].walk() if node.kind == "AttributeReference"), None)
    return order is not None and order.name == "event_time"


def _fault(spec: ViewSpec, what: str) -> Fault:
    return Fault(str(spec.path), what, key=FUNCTION)


OBSERVATION = "rows"
WRITTEN = "written"


def make_rows(rows: DataFrame, spec: ViewSpec, build: str, publish_from: datetime | None = None,
              incomplete: Sequence[Span] = ()) -> DataFrame:  # fmt: skip
    """Make records of `rows`, which `view` of `spec` returned: `key` (`canonical_key`), `value` (JSON of a `ViewRow`).

    Rows of windows that start before `publish_from` are left out: events before it were not read; and those of windows
    that share time with one of the spans `incomplete`, in which events are missing. Left out as well, and counted by
    the observations `rows` and `written`, are those whose key is null (`null_key`), and those that are longer than the
    topic takes (`too_long`).
    """
    spec = spec.computed
    unnamed = any_null([own_column(name) for name in spec.key])
    published = rows
    if publish_from is not None and spec.window is not None:
        published = rows.where(F.col("window.start") >= F.lit(publish_from))
    if incomplete and spec.window is not None:
        published = published.where(is_whole(incomplete))
    counted = published.observe(OBSERVATION, F.count_if(unnamed).alias("null_key")).where(~unnamed)
    options = JSON_TIMES | {"ignoreNullFields": "false"}
    written = counted.select(
        F.to_json(F.struct(*_identity(spec)), options).alias("key"),
        F.to_json(F.struct(*_document(rows, spec, build)), options).alias("value"),
    )
    fits = F.octet_length("key") + F.octet_length("value") <= VIEW_BYTES - RECORD_OVERHEAD
    return written.observe(WRITTEN, F.count_if(~fits).alias("too_long")).where(fits)


def _identity(spec: ViewSpec) -> list[Column]:
    """Give the columns of which Spark's JSON is the text of `canonical_key`."""
    columns = [own_column(name).alias(name) for name in sorted(spec.key)]
    if spec.window is not None:
        columns.append(F.unix_micros(F.col("window.start")).alias("window"))
    return columns


def _document(rows: DataFrame, spec: ViewSpec, build: str) -> list[Column]:
    used = {*spec.key, "window"} if spec.window is not None else {*spec.key}
    values = [
        _finite(own_column(field.name), field.dataType).alias(field.name)
        for field in rows.schema.fields
        if field.name not in used
    ]
    columns = [F.struct(*[own_column(name).alias(name) for name in spec.key]).alias("key")]
    if spec.window is not None:
        columns += [F.col(f"window.{edge}").alias(f"window_{edge}") for edge in ("start", "end")]
    return [*columns, F.struct(*values).alias("values"), F.lit(build).alias("build")]


def _finite(column: Column, kind: DataType) -> Column:
    """Give null for a number that JSON cannot hold: as a text it would not fit a column of numbers."""
    if not any(name in kind.simpleString() for name in ("double", "float")):
        return column
    match kind:
        case DoubleType() | FloatType():
            return F.when(~F.isnan(column) & (F.abs(column) != float("inf")), column)
        case ArrayType():
            return F.transform(column, lambda item: _finite(item, kind.elementType))
        case MapType():
            return F.transform_values(column, lambda _, item: _finite(item, kind.valueType))
        case StructType():
            inner = [_finite(column[field.name], field.dataType).alias(field.name) for field in kind.fields]
            return F.when(column.isNotNull(), F.struct(*inner))
    return column
