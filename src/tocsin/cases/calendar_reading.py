"""Find out if a detector looks at dates or times of day: its cases cannot be moved to other dates then. Pure."""

from __future__ import annotations

import ast

from tocsin.model.detector import DetectorSpec
from tocsin.project.code.python_syntax import parse
from tocsin.sparkjob.plan_tree import Node

_TIMES = ("timestamp", "timestamp_ntz", "date")
_COMPARE = {"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Not"}
_NO_TIME = _COMPARE | {"And", "Or", "IsNull", "IsNotNull", "Count", "Size", "SubtractTimestamps"}
_INDIFFERENT = _NO_TIME | {
    "Alias", "AggregateExpression", "ArrayDistinct", "ArrayMax", "ArrayMin", "Coalesce", "CollectList", "CollectSet",
    "CreateArray", "CreateNamedStruct", "First", "GetArrayItem", "GetStructField", "Greatest", "HyperLogLogPlusPlus",
    "KnownNotNull", "KnownNullable", "Last", "Least", "Max", "MaxBy", "Min", "MinBy", "Slice", "SortArray",
}  # fmt: skip
"""What gives the same of times that are moved by some weeks, or is moved with them."""

_OF_DATETIME = {
    "astimezone", "ctime", "date", "datetime", "day", "fold", "fromisoformat", "fromtimestamp", "hour", "isocalendar",
    "isoformat", "isoweekday", "microsecond", "minute", "month", "replace", "second", "strftime", "strptime",
    "timestamp", "timetuple", "timetz", "toordinal", "tzinfo", "utctimetuple", "weekday", "year", "ZoneInfo",
}  # fmt: skip


def reads_calendar(plan: Node, spec: DetectorSpec) -> bool:
    """Return whether what `spec`, with this analysed plan, finds may depend on dates, not on distances alone."""
    if spec.has_step:
        nodes = list(ast.walk(parse(spec.code)))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        return not _OF_DATETIME.isdisjoint(names | called)
    if spec.time_zone:
        return True
    return any(_depends(top) for node in plan.walk() for top in node.expressions())


def _depends(node: Node) -> bool:
    if node.kind == "Literal":
        return _is_time(node)
    if node.kind in ("JsonToStructs", "PreciseTimestampConversion"):  # the record itself, and windows as declared
        return False
    has_time = any(_carries_time(child) for child in node.children)
    return (has_time and node.kind not in _INDIFFERENT) or any(map(_depends, node.children))


def _carries_time(node: Node) -> bool:
    """Return whether the value of an expression is a time, or holds one, as far as it shows."""
    if node.kind in _NO_TIME:
        return False
    return _is_time(node) or (node.kind in _INDIFFERENT and any(map(_carries_time, node.children)))


def _is_time(node: Node) -> bool:
    """Return whether Spark says of `node` that it is a time, or holds one."""
    kind = node.fields.get("dataType")
    return kind in _TIMES if isinstance(kind, str) else any(repr(one) in repr(kind) for one in _TIMES)
