"""The column `window` that events get, and whether a query has kept it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.model.detector import Span
from tocsin.declare.model.durations import Windowed, spark_interval
from tocsin.spark.plan_tree import Node, normalise, parse_tree

WINDOW = "window"
DELAY = "spark.watermarkDelayMs"
"""In the metadata of a column that a watermark is about; of a struct, Spark takes its second field for the end."""

_LIST = ("projectList", "aggregateExpressions", "output")


def add_window(rows: DataFrame, spec: Windowed) -> DataFrame:
    """Add `window` by the `event_time` of `rows`: one row for each window that holds it. It has its watermark."""
    assert spec.window is not None
    if not spec.time_zone:
        slide = None if spec.slide is None else spark_interval(spec.slide)
        return rows.withColumn(WINDOW, F.window("event_time", spark_interval(spec.window), slide))
    day = F.date_trunc("DAY", by_clock(F.col("event_time"), spec))
    following = day + F.expr(f"INTERVAL '{spec.window.days}' DAY")
    edges = F.struct(from_clock(day, spec).alias("start"), from_clock(following, spec).alias("end"))
    # A struct made by hand loses the watermark, and its state would be kept for ever.
    delay = {name: value for name, value in rows.schema["event_time"].metadata.items() if name == DELAY}
    return rows.withColumn(WINDOW, edges.alias(WINDOW, metadata=delay))


def is_whole(incomplete: Iterable[Span]) -> Column:
    """Return whether `window` shares no time with a span of `incomplete`."""
    shared = [
        (F.col(f"{WINDOW}.start") < F.lit(until)) & (F.col(f"{WINDOW}.end") > F.lit(since))
        for since, until in incomplete
    ]
    return ~reduce(lambda first, other: first | other, shared, F.lit(False))


def by_clock(moment: Column, spec: Windowed) -> Column:
    """Give what the clock of the time zone of `spec` shows at `moment`, as if it were UTC."""
    return F.from_utc_timestamp(moment, spec.time_zone) if spec.time_zone else moment


def from_clock(shown: Column, spec: Windowed) -> Column:
    """Give when the clock of the time zone of `spec` shows that; the reverse of `by_clock`."""
    return F.to_utc_timestamp(shown, spec.time_zone) if spec.time_zone else shown


def knows_zone(spark: SparkSession, name: str) -> bool:
    """Return whether Spark can count by the clock of this place: Java brings rules of its own."""
    jvm: Any = spark._jvm
    return not name or name[0] in "+-" or bool(jvm.java.time.ZoneId.getAvailableZoneIds().contains(name))


def has_other_windows(tree: Node, spec: Windowed, spark: SparkSession) -> bool:
    """Return whether the query behind `tree` makes a `window` of another start, length or time than `spec` declares.

    A window that comes out of Python code cannot be judged, and passes.
    """
    # `createDataFrame` would import pandas into every job: 0.1 s.
    events = spark.range(0).select(F.lit(None).cast("timestamp").alias("event_time"))
    expected = add_window(events, spec)
    plan = parse_tree(expected._jdf.queryExecution().analyzed().toJSON())
    (declared,) = _made(plan)
    return any(made != declared for made in _made(tree))


def _made(tree: Node) -> Iterator[set[str]]:
    """Yield how each part of a union, or the whole, makes `window`: one expression, or one for each that overlaps."""
    parts = [tree, *(part for node in tree.walk() if node.kind == "Union" for part in node.children)]
    made = _definitions(tree)
    for part in parts:
        column = next((output for output in _outputs(part) if output.name == WINDOW), None)
        defined = None if column is None else _defined(column, made)
        if defined:
            yield {normalise(_without_identity(expression)) for expression in defined}


def _outputs(part: Node) -> list[Node]:
    return next((found for node in part.walk() if (found := node.expressions(*_LIST))), [])


def _definitions(tree: Node) -> dict[int, list[Node]]:
    """Collect what each column is made of, by its number; of an Expand, one expression for each of its rows."""
    made: dict[int, list[Node]] = {}
    for node in tree.walk():
        for alias in node.expressions("projectList", "aggregateExpressions"):
            if alias.kind == "Alias" and alias.identity is not None:
                made.setdefault(alias.identity, [alias.children[0]])
        if node.kind == "Expand":
            rows = node.fields["projections"]
            for number, column in enumerate(node.expressions("output")):
                if column.identity is not None:
                    made.setdefault(column.identity, [row[number] for row in rows])
    return made


def _defined(column: Node, made: dict[int, list[Node]]) -> list[Node]:
    """Find the expressions behind `column`; none where no operator of the plan makes it."""
    found = [column.children[0]] if column.kind == "Alias" else [column]
    for _ in range(50):
        if len(found) != 1 or found[0].kind != "AttributeReference":
            break
        found = made.get(found[0].identity or -1, [])
    return found


def _without_identity(node: Node) -> Node:
    """Reduce columns to their names: what else is told of one differs between two plans."""
    if node.kind == "AttributeReference":
        return Node(node.kind, {"name": node.name})
    return Node(node.kind, node.fields, tuple(_without_identity(child) for child in node.children))
