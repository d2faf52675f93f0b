"""Read a record of which a table is made: its key, and its values in the order of the columns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import from_json

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.source import is_tick
from tocsin.declare.model.table import TableSpec

_INTEGERS = {"int": 2**31, "bigint": 2**63}
LONGEST = 65_536
"""Bytes of a record; each job that joins the table holds all its rows."""


class UnusableRow(Exception):
    """The record is no row of the table; says why. A retry does not help."""


@dataclass(frozen=True)
class TableRow:
    """What a record says.

    Attributes:
        key: the columns of the key as JSON.
        values: all columns as JSON values, in the order of the declaration; timestamps as microseconds since 1970.
        build: of a row of a view, the computation that wrote it; else "".
    """

    key: str
    values: list[Any]
    build: str = ""


def read_row(value: bytes, spec: TableSpec) -> TableRow | None:
    """Read the row in `value`; None for a tick. UnusableRow if it is none."""
    if is_tick(value):
        return None
    if len(value) > LONGEST:
        raise UnusableRow(f"is longer than {LONGEST} bytes")
    try:
        document = from_json(value)  # the last of two fields with one name counts
        if spec.file or spec.topic:
            json.loads(value, object_pairs_hook=_once)
    except ValueError as error:
        raise UnusableRow(f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UnusableRow("is not a JSON object")
    build = ""
    if spec.view is not None:
        build, document = str(document.get("build")), {**(document.get("values") or {}), **(document.get("key") or {})}
    return row_of(document, spec, build)


def _once(fields: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UnusableRow(f"names the field '{twice}' twice")


def row_of(document: Mapping[str, Any], spec: TableSpec, build: str = "") -> TableRow:
    """Make the row of the JSON values in `document`, by column. UnusableRow if it is none."""
    values = [_value(name, kind, _field(document, name), spec) for name, kind in spec.columns.items()]
    named = dict(zip(spec.columns, values, strict=True))
    key = json.dumps([named[name] for name in spec.key], separators=(",", ":"), ensure_ascii=False)
    return TableRow(key, values, build)


def _field(document: Mapping[str, Any], name: str) -> Any:
    """Take the field `name`, or one whose name differs only by case, as sources do."""
    if name in document:
        return document[name]
    return next((value for other, value in document.items() if other.lower() == name.lower()), None)


def _value(name: str, kind: str, value: Any, spec: TableSpec) -> Any:
    if value is None:
        if name in spec.optional:
            return None
        raise UnusableRow(f"has no '{name}'")
    try:
        return _READ[kind](value)
    except (ValueError, TypeError, OverflowError) as error:
        raise UnusableRow(f"'{name}' is no {kind}: {str(value)[:100]!r}") from error


def _whole(bound: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not -bound <= value < bound:
            raise ValueError
        return value

    return read


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _of(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return read


def _moment(value: Any) -> int:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError
    return (moment - EPOCH) // timedelta(microseconds=1)


_READ: dict[str, Callable[[Any], Any]] = {
    "string": _of(str),
    "boolean": _of(bool),
    "double": _number,
    "timestamp": _moment,
    **{kind: _whole(bound) for kind, bound in _INTEGERS.items()},
}
