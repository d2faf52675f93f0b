"""Values that a suite leaves open until it runs: `{"$PARAMETER": "usual_rows * 0.5"}`.

They are filled in before Great Expectations sees them: it puts numbers into sums as text, and then reads `E` as 2.718.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import Any

from tocsin.declare.code.python_syntax import parse_expression
from tocsin.declare.model.errors import nearest

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
