"""Records of an events topic as Arrow tables: the columns and types that Spark's own reading of them gives."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tocsin.model.source import EVENT_COLUMNS, Source, is_tick

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION = "tocsin_partition"
"""Of the events topic; a column that goes before a file is written."""

_NEEDED = ("raw_topic", "raw_partition", "raw_offset", "event_time", "ingested_at")
_FAST = b'{"raw_topic"'
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})")
_BITS = {"int": 31, "bigint": 63}


@dataclass(frozen=True)
class Parsed:
    """The content of a chunk of records.

    Attributes:
        table: the events; the declared columns behind those of the envelope, and PARTITION.
        ticks: time of the newest tick of each partition, UTC.
        unreadable: how many records of each partition are neither event nor tick.
    """

    table: pa.Table
    ticks: dict[int, datetime]
    unreadable: dict[int, int]


def columns_of(source: Source) -> dict[str, str]:
    """Names and types of the columns of landed and sealed events of `source`, in order."""
    return EVENT_COLUMNS | source.columns


def arrow_schema(columns: dict[str, str]) -> pa.Schema:
    """`columns` (see `columns_of`) as Arrow's; times are microseconds in UTC, every column may be null."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def parse(values: Sequence[bytes | None], partitions: Sequence[int], columns: dict[str, str]) -> Parsed:
    """Parse `values` of records, each from the partition at the same index in `partitions`.

    Null where a record lacks a column or has a value of another type there, as Spark's from_json does it. A record
    without identity or times is unreadable.
    """
    import pyarrow as pa
    from pyarrow import compute

    ticks: dict[int, datetime] = {}
    unreadable: dict[int, int] = {}
    plain: list[bytes] = []
    places: list[int] = []
    for value, partition in zip(values, partitions, strict=True):
        if value is not None and value.startswith(_FAST):
            plain.append(value)
            places.append(partition)
        elif value is not None and is_tick(value) and (moment := _tick(value)) is not None:
            ticks[partition] = max(moment, ticks.get(partition, moment))
        else:
            unreadable[partition] = unreadable.get(partition, 0) + 1
    schema = arrow_schema(columns)
    table = _quick(plain, schema)
    if table is None:
        table = pa.Table.from_pylist([_slow(value, columns) for value in plain], schema)
    table = table.append_column(PARTITION, pa.array(places, pa.int32()))
    whole = compute.and_kleene(True, True)
    for name in _NEEDED:
        whole = compute.and_(whole, compute.is_valid(table[name]))
    if not compute.all(whole).as_py() and table.num_rows:
        for partition in table.filter(compute.invert(whole))[PARTITION].to_pylist():
            unreadable[partition] = unreadable.get(partition, 0) + 1
        table = table.filter(whole)
    return Parsed(table, ticks, unreadable)


def _quick(values: list[bytes], schema: pa.Schema) -> pa.Table | None:
    """All at once; None when one of them is not as ingest writes them."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    if not values:
        return schema.empty_table()
    text = b"\n".join(values)
    try:
        text.decode()
        table = arrow_json.read_json(
            pa.BufferReader(text),
            arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    # A record with a line end or a second object in it would shift all that follow.
    return table if table.num_rows == len(values) == text.count(b"\n") + 1 else None


def _slow(value: bytes, columns: dict[str, str]) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return {name: _typed(fields.get(name), kind) for name, kind in columns.items()} if isinstance(fields, dict) else {}


def _typed(value: Any, kind: str) -> Any:
    """`value` of a JSON field as one of type `kind`; None when it is none."""
    if kind == "string":
        return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind == "timestamp":
        return _time(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind == "double":
        return float(value)
    return value if isinstance(value, int) and -(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind] else None


def _time(value: Any) -> datetime | None:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except ValueError:
        return None


def _tick(value: bytes) -> datetime | None:
    try:
        return _time(json.loads(value).get("event_time"))
    except (ValueError, AttributeError, RecursionError):
        return None
