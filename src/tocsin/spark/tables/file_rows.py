"""Read the rows of a table from a file: CSV with a header, or one JSON object a line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tocsin.declare.model.table import TableSpec
from tocsin.spark.tables.table_row import LONGEST, TableRow, UnusableRow, read_row, row_of

_SHOWN = 5
_TRUTH = {"true": True, "false": False}
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_DECIMAL = re.compile(r"\s*[+-]?[0-9.]+([eE][+-]?[0-9]+)?\s*")
"""To Python `1_000` and digits of other scripts are numbers, too."""


class UnusableFile(Exception):
    """The file is no table as it is; names the lines and what is wrong. It must be written anew."""


def read_rows(path: Path, spec: TableSpec) -> list[TableRow]:
    """Read all rows of `path`: `.csv` (UTF-8, a header with the names of columns, an empty field is null) or `.jsonl`.

    Columns that the table does not declare are left out.

    Raises:
        UnusableFile: it cannot be read, is empty, lacks a column or names it twice, has more than `max_rows` rows, two
            rows of one key, or a row with a value of another type. The first faults are named, each with its line.
    """
    rows: list[TableRow] = []
    first: dict[str, int] = {}
    faults: list[str] = []
    try:
        for number, row in _rows(path, spec):
            if isinstance(row, str):
                faults.append(f"line {number} {row}")
            elif row.key in first:
                faults.append(f"line {number} has the key {row.key} of line {first[row.key]}")
            else:
                first[row.key] = number
                rows.append(row)
            if len(rows) > spec.max_rows:
                raise UnusableFile(f"{path} has more than max_rows = {spec.max_rows} rows")
            if len(faults) > _SHOWN:
                break
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnusableFile(f"{path} cannot be read: {error}") from error
    if faults:
        shown = "; ".join(faults[:_SHOWN])
        raise UnusableFile(f"{path}: {shown}{'; and more' if len(faults) > _SHOWN else ''}")
    if not rows:
        raise UnusableFile(f"{path} has no rows; to end all rows remove the table")
    return rows


def _rows(path: Path, spec: TableSpec) -> Iterator[tuple[int, TableRow | str]]:
    """Yield each row with its line, or what is wrong with it."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        if path.suffix == ".jsonl":
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _read(lambda line=line: read_row(line.encode(), spec))
            return
        reader = csv.DictReader(lines, strict=True)
        header = reader.fieldnames or []
        alike = {name.strip().lower() for name in header}
        needed = [name for name in spec.columns if name not in spec.optional or name.lower() in alike]
        missing = [name for name in needed if header.count(name) != 1]
        if missing:
            raise UnusableFile(f"{path} needs the column{'s' * (len(missing) > 1)} {', '.join(missing)}, each once; "
                               f"its first line names {', '.join(header) or 'none'}")  # fmt: skip
        for fields in reader:
            yield reader.line_num, _read(lambda fields=fields: _of_fields(fields, spec))


def _read(row: Any) -> TableRow | str:
    try:
        found: TableRow | None = row()
    except UnusableRow as error:
        return str(error)
    return found if found is not None else "is a tick"


def _of_fields(fields: dict[Any, Any], spec: TableSpec) -> TableRow:
    """Make a row of the `fields` of a line, by column; under None those that the header does not name."""
    if None in fields:
        raise UnusableRow("has more fields than the header")
    if None in fields.values():
        raise UnusableRow("has fewer fields than the header")
    if sum(len(value or "") for value in fields.values()) > LONGEST:
        raise UnusableRow(f"is longer than {LONGEST} bytes")
    return row_of({name: _typed(spec.columns[name], fields[name]) for name in spec.columns if name in fields}, spec)


def _typed(kind: str, text: str | None) -> Any:
    """Read `text` as JSON would hold it; what cannot be is left as it is, and refused as the wrong type."""
    if not text:
        return None
    try:
        if kind in ("int", "bigint") and _WHOLE.fullmatch(text):
            return int(text)
        if kind == "double" and _DECIMAL.fullmatch(text):
            return float(text)
    except ValueError:
        return text
    return _TRUTH.get(text.lower(), text) if kind == "boolean" else text
