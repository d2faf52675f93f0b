"""Read off a plan what decides how its query can run: state, shuffles, and what real-time mode refuses."""

from __future__ import annotations

import hashlib
import json

from pyspark.sql import SparkSession

from tocsin.spark.plan_tree import Node, normalise
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
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Sort": "orderBy",
    "GlobalLimit": "limit",
    "Window": "a window function over rows",
    "TransformWithStateInPySpark": "transformWithState in Python",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
}

_UNREPEATABLE = {
    "Rand": "rand()", "Randn": "randn()", "RandStr": "randstr()", "Uniform": "uniform()", "Uuid": "uuid()",
    "Shuffle": "shuffle()", "MonotonicallyIncreasingID": "monotonically_increasing_id()",
    "SparkPartitionID": "spark_partition_id()", "CurrentTimestamp": "current_timestamp()", "Now": "now()",
    "LocalTimestamp": "localtimestamp()", "CurrentDate": "current_date()", "CurrentTime": "current_time()",
}  # fmt: skip

_CUTS = {"GlobalLimit": "limit()", "LocalLimit": "limit()", "Offset": "offset()", "Sample": "sample()"}
_GROUPED = ("applyInPandas", "applyInArrow")
_CUT_GROUPS = (
    " gets the rows of one micro-batch, so on the stream a group is cut; aggregate first, "
    "by groupBy('window', ...).agg(...), with F.collect_list for what Python needs, and then group by 'window'"
)


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


def find_unrepeatable(tree: Node) -> str | None:
    """Name the first function of the plan that gives another value when the same event is read again; else None."""
    expressions = (e for node in tree.walk() for top in node.expressions() for e in top.walk())
    return next((_UNREPEATABLE[e.kind] for e in expressions if e.kind in _UNREPEATABLE), None)


def find_cut(tree: Node, output: str) -> str | None:
    """Say what in the plan sees only some of the rows that belong together, in output mode `output`; None if nothing.

    On a stream a function of groups gets those of one micro-batch. They are whole only where an aggregate has given all
    rows of a window at once, in mode "append", and the groups are within windows.
    """
    for node in tree.walk():
        if node.kind in _CUTS:
            return f"{_CUTS[node.kind]} chooses among the rows that come first, which no backfill can know"
        if node.kind.startswith(("FlatMapGroupsIn", "FlatMapCoGroupsIn")) and "State" not in node.kind:
            is_whole = output == "append" and any(below.kind == "Aggregate" for below in node.walk())
            by_window = any(expression.name == "window" for expression in node.expressions("groupingAttributes"))
            if not (is_whole and by_window):
                return f"{_GROUPED[node.kind.endswith('InArrow')]}{_CUT_GROUPS}"
        if node.kind == "Aggregate" and any(e.kind == "PythonUDAF" for top in node.expressions() for e in top.walk()):
            return "Spark has no aggregates by pandas functions on a stream; use those of pyspark.sql.functions"
    return None


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
