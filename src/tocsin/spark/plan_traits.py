"""Read off a plan what decides how its query can run: state, shuffles, and what real-time mode refuses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from pyspark.sql import SparkSession

from tocsin.spark.plan_tree import Node, normalise, replace_columns
from tocsin.spark.session import SEMANTICS

_STATEFUL = {
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "TransformWithState",
    "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark", "GlobalLimit",
}  # fmt: skip
_EXCHANGES = {
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Repartition", "RepartitionByExpression",
    "TransformWithState",
}  # fmt: skip
_REFUSED = {
    "Sort": "orderBy",
    "GlobalLimit": "limit",
    "Window": "a window function over rows",
}

_UNREPEATABLE = {
    "Rand": "rand()", "Randn": "randn()", "RandStr": "randstr()", "Uniform": "uniform()", "Uuid": "uuid()",
    "Shuffle": "shuffle()", "MonotonicallyIncreasingID": "monotonically_increasing_id()",
    "SparkPartitionID": "spark_partition_id()", "CurrentTimestamp": "current_timestamp()", "Now": "now()",
    "LocalTimestamp": "localtimestamp()", "CurrentDate": "current_date()", "CurrentTime": "current_time()",
}  # fmt: skip

KEEP_ROWS = {"Project", "SubqueryAlias", "View", "ResolvedHint", "Repartition", "RepartitionByExpression"}
"""Operators that take no row away."""
_COMPARED = {"EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "In"}

_BY_ORDER = "{} chooses among the rows that come first, which no backfill can know"
_BY_BATCH = (
    "{} gets one Arrow batch at a time, so what it makes of several rows depends on where they were cut; make columns "
    "row by row, by F.udf or F.pandas_udf, and F.explode the array of one that makes several rows"
)
_BY_GROUP = (
    "{} gets the rows of one micro-batch, so on the stream a group is cut; aggregate first, "
    "by groupBy('window', ...).agg(...), with F.collect_list for what Python needs, and then group by 'window'"
)
_BY_COGROUP = (
    "{} gets the rows of one micro-batch of each side, so on the stream a group is cut; put both sides together "
    "by unionByName, and aggregate them in one groupBy('window', ...).agg(...)"
)
_BY_ARRIVAL = (
    "{} gets events in the order in which they come, and does not run on history, so a backfill cannot find the same; "
    "a detector writes step, which takes them in the order of their time"
)
_CUTS = {
    "DeduplicateWithinWatermark": (
        "dropDuplicatesWithinWatermark does not run on history; use dropDuplicates with 'window' among its columns"
    ),
    "GlobalLimit": _BY_ORDER.format("limit()"),
    "LocalLimit": _BY_ORDER.format("limit()"),
    "Offset": _BY_ORDER.format("offset()"),
    "Sample": _BY_ORDER.format("sample()"),
    "MapInPandas": _BY_BATCH.format("mapInPandas"),
    "MapInArrow": _BY_BATCH.format("mapInArrow"),
    "PythonMapInArrow": _BY_BATCH.format("mapInArrow"),
    "FlatMapCoGroupsInPandas": _BY_COGROUP.format("cogroup().applyInPandas"),
    "FlatMapCoGroupsInArrow": _BY_COGROUP.format("cogroup().applyInArrow"),
    "FlatMapGroupsInPandasWithState": _BY_ARRIVAL.format("applyInPandasWithState"),
    "TransformWithStateInPySpark": _BY_ARRIVAL.format("transformWithState"),
}
_GROUPED = {
    "FlatMapGroupsInPandas": _BY_GROUP.format("applyInPandas"),
    "FlatMapGroupsInArrow": _BY_GROUP.format("applyInArrow"),
}


def keeps_state(tree: Node) -> bool:
    """Return whether the plan remembers anything of one record when it comes to the next."""
    return any(node.kind in _STATEFUL or (node.kind == "Join" and joins_streams(node)) for node in tree.walk())


def joins_streams(join: Node) -> bool:
    """Return whether both sides of `join` are streams."""
    return all(_streams(side) for side in join.children)


def has_stream_joins(tree: Node) -> bool:
    """Return whether the plan joins two streams."""
    return any(node.kind == "Join" and joins_streams(node) for node in tree.walk())


def find_obstacle(tree: Node) -> str | None:
    """Say why real-time mode would refuse the plan, one sentence; None when nothing is known against it."""
    for node in tree.walk():
        python = next((e for tree_ in node.expressions() for e in tree_.walk() if e.kind.startswith("Python")), None)
        if python is not None or "InPandas" in node.kind or "InArrow" in node.kind or "PythonMap" in node.kind:
            name = f" ({python.name})" if python is not None and python.name else ""
            return f"it runs Python code on rows{name}, which real-time mode does not support"
        if node.kind in _REFUSED:
            return f"it uses {_REFUSED[node.kind]}, which real-time mode does not support"
        if node.kind == "Join" and joins_streams(node):
            return "it joins two streams, which real-time mode does not support"
        if node.kind == "Union" and any(keeps_state(side) for side in node.children):
            return "it puts streams together whose duplicates are dropped, which real-time mode does not support"
    if sum(node.kind == "Aggregate" for node in tree.walk()) > 1:
        return "it aggregates aggregates, which real-time mode does not support"
    return None


def python_functions(tree: Node) -> tuple[str, ...]:
    """Name the Python functions that the plan runs on rows or groups, in alphabetical order."""
    expressions = (e for node in tree.walk() for top in node.expressions() for e in top.walk())
    return tuple(sorted({e.name or "a function" for e in expressions if e.kind.startswith("Python")}))


def find_unrepeatable(tree: Node) -> str | None:
    """Name the first function of the plan that gives another value when the same event is read again; else None."""
    expressions = (e for node in tree.walk() for top in node.expressions() for e in top.walk())
    return next((_UNREPEATABLE[e.kind] for e in expressions if e.kind in _UNREPEATABLE), None)


def find_never_true(tree: Node) -> str | None:
    """Say which comparison with null the plan makes, as Spark reads `== None`: its result is null; else None."""
    for expression in (e for node in tree.walk() for top in node.expressions() for e in top.walk()):
        values = [each.children[0] if each.kind == "Cast" else each for each in expression.children]
        if expression.kind in _COMPARED and any(
            each.kind == "Literal" and each.fields["value"] is None for each in values
        ):
            return "compares with None (or NULL), which is never true in Spark; write isNull() or isNotNull()"
    return None


def find_cut(tree: Node, output: str) -> str | None:
    """Say what in the plan sees only some of the rows that belong together, in output mode `output`; None if nothing.

    On a stream a function of groups gets those of one micro-batch. They are whole only where an aggregate has given all
    rows of a window at once, in mode "append", and the groups are within windows.
    """
    for node in tree.walk():
        if node.kind in _CUTS:
            return _CUTS[node.kind]
        if node.kind in _GROUPED:
            is_whole = output == "append" and _closes_windows(*node.children)
            if not (is_whole and any(key.name == "window" for key in node.expressions("groupingAttributes"))):
                return _GROUPED[node.kind]
        if node.kind == "Aggregate" and any(e.kind == "PythonUDAF" for top in node.expressions() for e in top.walk()):
            return "Spark has no aggregates by pandas functions on a stream; use those of pyspark.sql.functions"
    return None


def _closes_windows(*nodes: Node) -> bool:
    """Return whether all rows of a window come at once from each of `nodes`, in output mode "append".

    An aggregate gives them when the watermark has passed its window, unless it groups by another time, too. What is
    put beside them, or joined from another stream, comes when it likes.
    """
    for node in nodes:
        if node.kind == "Aggregate":
            keys = node.expressions("groupingExpressions")
            by_moment = any(key.fields.get("dataType") == "timestamp" for key in keys)
            is_whole = not by_moment and any(key.name == "window" for key in keys)
        elif node.kind == "Join":
            is_whole = not joins_streams(node) and any(_closes_windows(side) for side in node.children)
        else:
            is_whole = bool(node.children) and _closes_windows(*node.children)
        if not is_whole:
            return False
    return True


def has_sessions(tree: Node) -> bool:
    """Return whether the plan has a session window."""
    return any(
        "sessionWindow" in str(e.fields.get("metadata")) or e.kind == "SessionWindow" or e.name == "session_window"
        for node in tree.walk()
        for top in node.expressions()
        for e in top.walk()
    )


def _streams(node: Node) -> bool:
    return any(inner.kind.startswith("StreamingRelation") for inner in node.walk())


def above_aggregate(plan: Node) -> list[Node] | None:
    """List the operators above the topmost aggregate, from the top; None if the plan has none."""
    if plan.kind == "Aggregate":
        return []
    for child in plan.children:
        below = above_aggregate(child)
        if below is not None:
            return [plan, *below]
    return None


def other_keys(tree: Node, identity: Collection[str]) -> list[str]:
    """Name the columns by which the topmost aggregate groups besides those that the columns `identity` are made of."""
    above = above_aggregate(tree)
    if above is None or any(node.kind not in KEEP_ROWS | {"Filter"} for node in above):
        return []
    top = next(node for node in tree.walk() if node.kind == "Aggregate")
    outputs = [each for node in (*above, top) for each in node.expressions("projectList", "aggregateExpressions")]
    made = {each.identity: each for each in outputs if each.kind == "Alias" and each.identity is not None}
    own = [replace_columns(each, made) for each in outputs if each.name in identity]
    known = {leaf.identity for each in own for leaf in each.walk()}
    keys = [leaf for key in top.expressions("groupingExpressions") for leaf in key.walk() if leaf.identity is not None]
    return [leaf.name for leaf in keys if leaf.identity not in known]


def count_exchanges(tree: Node) -> int:
    """Count the shuffles between the source and the sink."""
    joins = sum(node.kind == "Join" for node in tree.walk())
    return joins + sum(node.kind in _EXCHANGES for node in tree.walk())


def fingerprint_of(tree: Node, output: str, spark: SparkSession) -> str:
    """Hash all that decides what is in the state: the topmost stateful operator, everything below it, and the settings.

    Spark keeps the number of shuffle partitions in a checkpoint and silently ignores another one. The JSON of a plan
    does not say how its expressions evaluate (`evalMode` is null there), so the settings behind it are added.
    """
    top = next((node for node in tree.walk() if node.kind in _STATEFUL or node.kind == "Join"), None)
    if top is None:
        text = "stateless"
    else:
        settings = {key: spark.conf.get(key) for key in ("spark.sql.shuffle.partitions", *SEMANTICS)}
        text = f"{json.dumps(settings, sort_keys=True)}\n{normalise(top)}"
    return hashlib.sha256(f"{spark.version}\n{output}\n{text}".encode()).hexdigest()[:16]
