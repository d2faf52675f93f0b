"""Name columns for the fields of JSON records: those at the top, and those within fields."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.declare.model.source import ENVELOPE, RAW_RECORD
from tocsin.ingest.line_forms import field_at

_LONGEST, _DEEPEST, _MOST_NESTED, _NESTED_SHOWN = 64, 6, 300, 40


@dataclass(frozen=True)
class JsonColumns:
    """Columns of records, each with its columns from fields at the top.

    Attributes:
        nested: the columns that fields within fields would be, and what they hold in each record.
        paths: of columns of either kind whose name is not that of their field.
        left_out: fields that are no column, with the reason.
    """

    records: list[dict[str, Any]]
    nested: dict[str, list[Any]]
    paths: dict[str, str]
    left_out: list[str]

    def unread(self, columns: Collection[str]) -> Iterator[str]:
        """Name the fields that none of `columns` holds, with the reason, and those that it holds only within others."""
        yield from self.left_out
        inner = [self.paths[name] for name in self.nested if name not in columns]
        if inner:
            shown = ", ".join(inner[:_NESTED_SHOWN]) + (", ..." if len(inner) > _NESTED_SHOWN else "")
            yield f"{shown} (within columns; name the path in [from] to make one a column)"


def name_columns(records: list[dict[str, Any]]) -> JsonColumns:
    """Name columns for all fields of `records`."""
    columns: dict[str, str] = {}  # by field
    left_out = []
    for field in dict.fromkeys(name for record in records for name in record):
        like = next((column for column in columns if column.lower() == field.lower()), None)
        if like is not None:
            left_out.append(f"{_shown(field)} (read as {like}: they differ only by case)")
        elif reason := _unusable(field):
            left_out.append(f"{_shown(field)} ({reason})")
        elif all(record.get(field) in (None, "") for record in records):
            left_out.append(f"{_shown(field)} (has no value in the sample)")
        else:
            columns[field] = _free_name(field, columns.values())
    rows = [{column: field_at(record, field) for field, column in columns.items()} for record in records]
    found = dict.fromkeys(path for record in records for path in _paths(record))
    inner = [path for path in found if path not in columns and not _unusable(path)][:_MOST_NESTED]
    nested: dict[str, list[Any]] = {}
    paths = {column: field for field, column in columns.items() if column != field}
    for path in inner:
        column = _free_name(path, [*columns.values(), *nested])
        nested[column], paths[column] = [field_at(record, path) for record in records], path
    return JsonColumns(rows, nested, paths, left_out)


def _unusable(field: str) -> str:
    if field == RAW_RECORD:
        return "means the whole record in a source"
    return "" if field.strip() and field.isprintable() else "its name cannot be written"


def _shown(field: str) -> str:
    return field if field.strip() and field.isprintable() else json.dumps(field)


def _free_name(field: str, taken: Any) -> str:
    """Make a column name of `field` that is neither reserved nor `taken`."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", field).strip("_" if not re.fullmatch(r"\w+", field, re.ASCII) else "")
    name = name if re.match(r"[A-Za-z_]", name) else f"field_{name}".rstrip("_")
    name = f"{name}_field" if name.lower() in ENVELOPE else name
    used, number, own = {other.lower() for other in taken}, 1, name[:_LONGEST]
    while own.lower() in used:
        number += 1
        own = f"{name[: _LONGEST - 4]}_{number}"
    return own


def _paths(record: Mapping[str, Any], before: str = "", depth: int = 1) -> Iterator[str]:
    for name, value in record.items():
        path = f"{before}{name}"
        if isinstance(value, dict) and depth < _DEEPEST and name and "." not in name:
            yield from _paths(value, f"{path}.", depth + 1)
        elif before and name and "." not in name and not isinstance(value, dict | list):
            yield path
