"""Read off a detector's plan or code what its cases need: their own dates, and columns. Pure."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tocsin.declare.code.python_syntax import parse
from tocsin.declare.model.detector import DetectorSpec
from tocsin.spark.plan_tree import STRUCT, Node

_TIMES = ("timestamp", "timestamp_ntz", "date")
_COMPARE = {"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Not"}
_NO_TIME = _COMPARE | {"And", "Or", "IsNull", "IsNotNull", "Count", "Size", "SubtractTimestamps"}
_INDIFFERENT = _NO_TIME | {
    "Alias", "AggregateExpression", "ArrayDistinct", "ArrayMax", "ArrayMin", "Coalesce", "CollectList", "CollectSet",
    "CreateArray", "CreateNamedStruct", "First", "GetArrayItem", "GetStructField", "Greatest", "HyperLogLogPlusPlus",
    "KnownNotNull", "KnownNullable", "Last", "Least", "Max", "MaxBy", "Min", "MinBy", "Slice", "SortArray",
}  # fmt: skip
"""What gives the same of times that are moved by some weeks, or is moved with them."""

_PASSING = ("projectList", "aggregateExpressions", "projections", "output")
"""Fields of operators whose columns go on as they are."""

_OF_DATETIME = {
    "astimezone", "ctime", "date", "datetime", "day", "fold", "fromisoformat", "fromtimestamp", "hour", "isocalendar",
    "isoformat", "isoweekday", "microsecond", "minute", "month", "replace", "second", "strftime", "strptime",
    "timestamp", "timetuple", "timetz", "toordinal", "tzinfo", "utctimetuple", "weekday", "year", "ZoneInfo",
}  # fmt: skip


_OPEN = {"getattr", "vars", "__dict__", "__getattribute__"}
"""What reads attributes that the code does not name."""


class _Names(NamedTuple):
    """The names in the code of a `step`: attributes, functions that it calls, and all its texts."""

    attributes: set[str]
    called: set[str]
    texts: set[str]

    @classmethod
    def of(cls, spec: DetectorSpec) -> _Names:
        names = cls(set(), set(), set())
        for node in ast.walk(parse(spec.code)):
            match node:
                case ast.Attribute(attr=name):
                    names.attributes.add(name)
                case ast.Call(func=ast.Name(id=name)):
                    names.called.add(name)
                case ast.Constant(value=str(text)):
                    names.texts.add(text)
        return names


def reads_calendar(plan: Node, spec: DetectorSpec) -> bool:
    """Return whether what `spec`, with this analysed plan, finds may depend on dates, not on distances alone."""
    if spec.has_step:
        code = _Names.of(spec)
        return not _OF_DATETIME.isdisjoint(code.attributes | code.called)
    if spec.time_zone:
        return True
    return any(_depends(top) for node in plan.walk() for top in node.expressions())


def read_columns(plan: Node, spec: DetectorSpec, columns: Collection[str]) -> set[str]:
    """Name those of `columns` that decide what `spec` finds, not those that only pass into the context of a finding."""
    if spec.has_step:
        code = _Names.of(spec)
        is_open = not (code.called | code.attributes).isdisjoint(_OPEN)
        return set(columns) if is_open else {*spec.entity, *code.attributes, *code.texts} & set(columns)
    made: dict[int, str] = {}  # the columns by the numbers that Spark gives them, renamed or not
    for node in reversed(list(plan.walk())):
        for top in node.expressions("projectList", "aggregateExpressions"):
            if top.identity is not None and (name := _passes(top, made, columns)):
                made[top.identity] = name
    read = {
        made[attribute.identity or -1]
        for node in plan.walk()
        for attribute in _decisive(node)
        if attribute.identity in made
    }
    return read | ({*spec.entity} & set(columns))


def _passes(top: Node, made: dict[int, str], columns: Collection[str]) -> str:
    """Name the column of the source that `top` is, if it is one unchanged."""
    inner = top.children[0] if top.kind == "Alias" else top
    if inner.kind == "GetStructField" and inner.children[0].name.startswith(STRUCT):
        return top.name if top.name in columns else ""
    return made.get(inner.identity or -1, "") if inner.kind == "AttributeReference" else ""


def _decisive(node: Node) -> Iterator[Node]:
    """Yield the columns that the operator `node` does not only pass on."""
    for field in node.fields:
        for top in node.expressions(field):
            inner = top.children[0] if top.kind == "Alias" else top
            passes = field in _PASSING and inner.kind == "AttributeReference"
            if not passes:
                yield from (inner for inner in top.walk() if inner.kind == "AttributeReference")


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
    kind = node.fields.get("dataType")
    return kind in _TIMES if isinstance(kind, str) else any(repr(time) in repr(kind) for time in _TIMES)
