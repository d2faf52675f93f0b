"""The contract of a suite: `expectations/<source>.<stage>.json`, in the JSON form of Great Expectations.

`docs/write/quality.md` shows one, and says what is possible at each stage. `suite_catalog` reads it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tocsin.declare.code.python_syntax import parse_expression
from tocsin.declare.model.errors import nearest
from tocsin.quality.suites.expectations import KNOWN, ValueKind
from tocsin.quality.verdict import CheckStage, Severity

FILES = {"rows": CheckStage.ROW, "day": CheckStage.DAY, "findings": CheckStage.FINDING}
"""The part of a file's name between the source and `.json`, and the stage that it means."""


@dataclass(frozen=True)
class Rule:
    """One expectation of a suite.

    Attributes:
        name: unique within its suite: `meta.name`, or made of column and expectation.
        kwargs: its arguments; a value may be `{"$PARAMETER": "usual_rows * 0.5"}`.
    """

    name: str
    expectation: str
    kwargs: Mapping[str, Any]
    severity: Severity
    meaning: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it is about."""
        named = [self.kwargs[key] for key in ("column", "column_A", "column_B") if key in self.kwargs]
        return tuple(named) + tuple(self.kwargs.get("column_list", ()))

    @property
    def limit(self) -> str:
        """Describe what is allowed, for people; a parameter that is not filled in is shown as it was written."""
        kwargs = {key: value["$PARAMETER"] if is_parameter(value) else value for key, value in self.kwargs.items()}
        text = _limit(KNOWN[self.expectation].short, kwargs)
        return text if "mostly" not in kwargs else f"{text}, for {kwargs['mostly']:.6g} of the values at least"

    def filled(self, parameters: Mapping[str, Any]) -> Rule | None:
        """The rule with values in the place of its parameters; None when one of them is not known."""
        try:
            kwargs = {key: self._value(key, value, parameters) for key, value in self.kwargs.items()}
        except (KeyError, ZeroDivisionError):
            return None
        return replace(self, kwargs=kwargs)

    def _value(self, key: str, value: Any, parameters: Mapping[str, Any]) -> Any:
        if not is_parameter(value):
            is_time = isinstance(value, str) and KNOWN[self.expectation].arguments[key] is ValueKind.LIMIT
            return moment(value) if is_time else value  # Great Expectations refuses a text without a zone
        number = evaluate(value["$PARAMETER"], parameters)
        return round(number) if KNOWN[self.expectation].arguments[key] is ValueKind.COUNT_LIMIT else number

    def as_gx(self) -> dict[str, Any]:
        """The configuration of the expectation for Great Expectations, which keeps no order: `meta.name` tells them."""
        return {
            "type": self.expectation,
            "kwargs": dict(self.kwargs),
            "severity": str(self.severity),
            "meta": {"name": self.name},
        }


@dataclass(frozen=True)
class Suite:
    """The rules of one stage of a source, in the order of the file; without a file there is no `path`, and no rule.

    `half` is `meta.drift` of a suite for the day: how bad it is when less than half of the usual events came.
    """

    source: str
    stage: CheckStage
    path: Path | None = None
    rules: tuple[Rule, ...] = ()
    half: Severity = Severity.CRITICAL


def moment(text: str) -> datetime | None:
    """Read `text` in ISO 8601 as a moment, in UTC where it names no zone; None if it is none."""
    try:
        read = datetime.fromisoformat(text)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def is_parameter(value: object) -> bool:
    """Return whether `value` is filled in when the suite runs."""
    return isinstance(value, dict) and set(value) == {"$PARAMETER"}


def shown(value: object) -> str:
    """A limit or an observed figure, for people."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    return "nothing" if value is None else str(value)


def _limit(short: str, kwargs: Mapping[str, Any]) -> str:
    other, pattern = kwargs.get("column_B"), kwargs.get("regex")
    texts = {
        "in_set": f"one of {_listed(kwargs.get('value_set', []))}",
        "not_in_set": f"none of {_listed(kwargs.get('value_set', []))}",
        "matches": f"matches {pattern}",
        "matches_not": f"does not match {pattern}",
        "above": f"{'at least' if kwargs.get('or_equal') else 'more than'} {other}",
        "equals": f"the same as {other}",
        "unique": "each only once",
        "not_null": "a value",
        "null": "no value",
        "length": f"{_band(kwargs)} characters",
        "row_count": f"{_band(kwargs)} rows",
        "distinct": f"{_band(kwargs)} different values",
    }
    return texts.get(short) or _band(kwargs)


def _band(kwargs: Mapping[str, Any]) -> str:
    if "value" in kwargs:
        return f"exactly {shown(kwargs['value'])}"
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    at_least = f"{'more than' if kwargs.get('strict_min') else 'at least'} {shown(low)}"
    at_most = f"{'less than' if kwargs.get('strict_max') else 'at most'} {shown(high)}"
    if low is None or high is None:
        return at_most if low is None else at_least
    if kwargs.get("strict_min") or kwargs.get("strict_max"):
        return f"{at_least} and {at_most}"
    return f"{shown(low)} to {shown(high)}"


def _listed(values: list[Any]) -> str:
    first = ", ".join(shown(value) for value in values[:8])
    return first if len(values) <= 8 else f"{first} and {len(values) - 8} more"


TIMES = {"day_start": "timestamp", "day_end": "timestamp"}
"""Midnight at the begin and at the end of the day, UTC."""

DAY_HOURS = "day_hours"
"""24; unknown as long as the day is under way."""

USUAL = "usual_"
"""Before the name of a metric (with `_` for its dots): its median on the same weekday of the weeks before."""

_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, ast.Constant)
_SUMS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_OPERATORS = (*_SUMS, ast.USub, ast.UAdd)


def usual(metric: str) -> str:
    """The parameter that holds what is usual of `metric`: `usual_message_null_ratio` for `message.null_ratio`."""
    return USUAL + metric.replace(".", "_")


def names_in(expression: str) -> set[str]:
    """Return the names of parameters in `expression`.

    ValueError if it is no sum, difference, product or quotient of names and numbers.
    """
    try:
        tree = parse_expression(expression.strip())
    except SyntaxError:
        tree = None
    nodes = [] if tree is None else list(ast.walk(tree))
    wrong = [node for node in nodes if not isinstance(node, (*_ARITHMETIC, *_OPERATORS))]
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    if tree is None or wrong or not all(type(value) in (int, float) for value in constants):
        raise ValueError(f"'{expression}' is not arithmetic on parameters and numbers, such as usual_rows * 0.5")
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def evaluate(expression: str, values: Mapping[str, Any]) -> Any:
    """Evaluate `expression`, which has passed `check_parameter`.

    KeyError if the value of a name is not known, ZeroDivisionError if it divides by one that is 0.
    """
    return _value(parse_expression(expression.strip()), values)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(name):
            return values[name]
        case ast.Constant(number):
            return number
        case ast.UnaryOp(sign, inner):
            return -_value(inner, values) if isinstance(sign, ast.USub) else _value(inner, values)
        case ast.BinOp(left, sign, right):
            return _SUMS[type(sign)](_value(left, values), _value(right, values))
        case _:
            raise ValueError(f"{ast.unparse(node)} is not arithmetic")


class Wrong(ValueError):
    """A fault in one value of a suite, as a sentence without a full stop, and the nearest valid name."""

    def __init__(self, what: str, near: str | None = None) -> None:
        self.what, self.near = what, near
        super().__init__(what)


def check_parameter(expression: object, parameters: Mapping[str, str], kind: str) -> None:
    """Raise Wrong unless a parameter can be filled in where a value of type `kind` belongs.

    `expression` stands behind `$PARAMETER`; `parameters` have types.
    """
    if not isinstance(expression, str):
        raise Wrong(f"$PARAMETER must be a text, not {expression!r}")
    try:
        names = names_in(expression)
    except ValueError as error:
        raise Wrong(str(error)) from error
    for name in sorted(names - parameters.keys()):
        raise Wrong(
            f"'{name}' is not a parameter; there are {', '.join(list(parameters)[:4])}, ...", nearest(name, parameters)
        )
    if not names:
        raise Wrong(f"'{expression}' names no parameter; write the number itself")
    is_time = "timestamp" in {parameters[name] for name in names}
    if is_time and (kind != "timestamp" or expression.strip() not in names):
        raise Wrong(f"'{expression}' is a time; use it alone, for a column of times")
    if kind == "timestamp" and not is_time:
        raise Wrong(f"'{expression}' is a number, the column holds times")
