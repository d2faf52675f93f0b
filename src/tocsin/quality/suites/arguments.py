"""Check an expectation's arguments against its stage and columns."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeGuard

from tocsin.declare.model.errors import nearest
from tocsin.quality.suites.expectations import NUMBERS, KnownExpectation, ValueKind
from tocsin.quality.suites.suite import FILES, Wrong, check_parameter, is_parameter, moment
from tocsin.quality.verdict import CheckStage

_IGNORED = {
    ValueKind.IGNORED: ("both_values_are_missing", "either_value_is_missing", "neither"),
    ValueKind.IGNORED_ROWS: ("all_values_are_missing", "any_value_is_missing", "never"),
}
_VALUES: dict[str, tuple[type, ...]] = {"string": (str,), "boolean": (bool,), "int": (int,), "bigint": (int,)}
_PYTHON_ONLY = re.compile(r"\(\?P|\(\?\(")
"""Named groups of Python and conditionals, which Java does not take."""
_SHARE = re.compile("_ratio$|^completeness$")
"""Figures of a day that are shares."""


@dataclass(frozen=True)
class Scope:
    """The columns and parameters that the rules of a suite may name, with their types."""

    source: str
    stage: CheckStage
    columns: Mapping[str, str]
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def suite(self) -> str:
        """Name of the suite, which is that of its file without `.json`."""
        return f"{self.source}.{next(name for name, stage in FILES.items() if stage is self.stage)}"


@dataclass(frozen=True)
class Place:
    """The place of an argument: what may be named there, and the expectation around it."""

    scope: Scope
    known: KnownExpectation
    kwargs: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Type of the column that the expectation is about; empty when there is no such column."""
        column = self.kwargs.get("column")
        return self.scope.columns.get(column, "") if isinstance(column, str) else ""


def check_argument(place: Place, key: str, value: object) -> None:
    """Raise Wrong unless `value` can be the argument `key`; what depends on an unknown column passes."""
    kind = place.known.arguments[key]
    if "column" in place.known.needed and not place.kind and kind in (ValueKind.LIMIT, ValueKind.VALUES):
        return
    if is_parameter(value):
        _check_parameter(place, kind, value)
        return
    checks = {
        ValueKind.COLUMN: lambda: _check_column(place, key, value),
        ValueKind.COLUMNS: lambda: _check_columns(place, value),
        ValueKind.LIMIT: lambda: _check_limit(place, value),
        ValueKind.VALUES: lambda: _check_values(place, value),
        ValueKind.PATTERN: lambda: _check_pattern(value),
    }
    checks.get(kind, lambda: _check_plain(kind, value))()
    if key == "max_value":  # told once
        _check_order(place.kwargs, value)


def _check_parameter(place: Place, kind: ValueKind, value: Any) -> None:
    if not place.scope.parameters:
        raise Wrong("rules for rows cannot use $PARAMETER: the stream sees one row at a time")
    if kind not in (ValueKind.LIMIT, ValueKind.COUNT_LIMIT):
        raise Wrong(f"must be {kind}; $PARAMETER cannot be used here")
    column = place.kind if kind is ValueKind.LIMIT and place.known.types else "double"
    check_parameter(value["$PARAMETER"], place.scope.parameters, column)


def _check_column(place: Place, key: str, value: object) -> None:
    if not isinstance(value, str) or value not in place.scope.columns:
        raise _no_column(place, value)
    kind, first = place.scope.columns[value], place.kwargs.get("column_A")
    if place.known.types and kind not in place.known.types:
        raise Wrong(f"'{value}' is a {kind}; this expectation is about {' or '.join(place.known.types)}")
    if key == "column_B" and isinstance(first, str) and not _comparable(place.scope.columns.get(first, kind), kind):
        raise Wrong(f"'{value}' is a {kind}, '{first}' a {place.scope.columns[first]}; they cannot be compared")


def _check_columns(place: Place, value: object) -> None:
    if not isinstance(value, list) or len(value) < 2:
        raise Wrong(f"must be {ValueKind.COLUMNS}, two at least, not {value!r}")
    for one in value:
        if not isinstance(one, str) or one not in place.scope.columns:
            raise _no_column(place, one)


def _no_column(place: Place, value: object) -> Wrong:
    what = {
        CheckStage.ROW: "a column of the source",
        CheckStage.DAY: "a figure of the profile",
        CheckStage.FINDING: "a column",
    }
    own = (name for name in place.scope.columns if name.startswith(f"{value}."))  # figures of a column of the source
    near = next(own, None) or (nearest(value, place.scope.columns) if isinstance(value, str) else None)
    return Wrong(f"{value!r} is not {what.get(place.scope.stage, 'a column')}", near)


def _check_limit(place: Place, value: object) -> None:
    if place.known.types and place.kind == "timestamp":
        if not isinstance(value, str) or moment(value) is None:
            raise Wrong(f"the column holds times; write one such as 2026-01-31T00:00:00Z, not {value!r}")
    elif not _is_number(value):
        raise Wrong(f"must be a number, not {value!r}")
    elif place.scope.stage is CheckStage.DAY and _SHARE.search(place.kwargs["column"]) and not 0 <= value <= 1:
        raise Wrong(f"is about a share, from 0 to 1, not {value!r}; write 5 % as 0.05")


def _check_order(kwargs: Mapping[str, Any], high: object) -> None:
    low = kwargs.get("min_value")
    if isinstance(low, str) and isinstance(high, str):
        low, high = moment(low), moment(high)
    times = isinstance(low, datetime) and isinstance(high, datetime)
    if (times or (_is_number(low) and _is_number(high))) and low > high:  # type: ignore[operator]  # both are of one kind
        raise Wrong(f"is below min_value: {high} < {low}")
    if low == high and (kwargs.get("strict_min") or kwargs.get("strict_max")):
        raise Wrong(f"leaves no value between {low} and {high}, for one of them is strict")


def _check_values(place: Place, value: object) -> None:
    if not isinstance(value, list) or not value:
        raise Wrong(f"must be {ValueKind.VALUES}, one at least, not {value!r}")
    if place.kind == "timestamp":
        raise Wrong("cannot be a set of times; use expect_column_values_to_be_between")
    types = _VALUES.get(place.kind, (int, float))
    for one in value:
        if type(one) not in types:
            raise Wrong(f"holds {one!r}, which is no {place.kind or 'value'}")


def _check_pattern(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise Wrong(f"must be {ValueKind.PATTERN}, not {value!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # `[[`, `--`, `&&`, `||` and `~~` in a set mean something else in Java
            re.compile(value)
    except (re.error, FutureWarning) as error:
        raise Wrong(f"is not a regular expression: {error}") from error
    if _PYTHON_ONLY.search(value):
        raise Wrong("is used by Java on the stream, which supports neither (?P<name>...) nor (?(1)...)")


def _check_plain(kind: ValueKind, value: object) -> None:
    if kind in _IGNORED:
        good, near = value in _IGNORED[kind], nearest(str(value), _IGNORED[kind])
    elif kind is ValueKind.FLAG:
        good, near = isinstance(value, bool), None
    elif kind is ValueKind.SHARE:
        good, near = _is_number(value) and 0 < value <= 1, None
    else:
        good, near = type(value) is int and value >= 0, None
    if not good:
        raise Wrong(f"must be {kind}, not {value!r}", near)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _comparable(first: str, second: str) -> bool:
    return first == second or (first in NUMBERS and second in NUMBERS)
