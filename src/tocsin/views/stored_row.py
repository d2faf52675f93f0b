"""A row of a view as sinks and readers know it: with its place in the topic, and whether its window has closed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.errors import InvalidEvent


class StoredRow(NamedTuple):
    """The last version of a row of a view; a tuple, which takes half the time that a frozen dataclass takes to make.

    Attributes:
        values: the other columns; JSON values, never NaN or infinite.
    """

    identity: str
    name: str
    key: dict[str, Scalar]
    window_start: datetime | None
    window_end: datetime | None
    values: dict[str, Any]
    build: str
    partition: int
    offset: int
    appended_at: datetime
    is_final: bool = False

    @classmethod
    def of(cls, row: ViewRow, columns: Iterable[str], identity: str, place: tuple[int, int, datetime]) -> StoredRow:
        """Make it of a row of the topic, with identity and place (partition, offset, append time) of its record.

        `columns` are of the key, in the order of the declaration; KeyError when the row has none of that name.
        """
        partition, offset, appended_at = place
        key = {column: row.key[column] for column in columns}
        return cls(
            identity=identity,
            name=name_of(key.values()),
            key=key,
            window_start=row.window_start,
            window_end=row.window_end,
            values={column: _finite(value) for column, value in row.values.items()},
            build=row.build,
            partition=partition,
            offset=offset,
            appended_at=appended_at,
        )

    def closed_by(self, moment: datetime | None) -> StoredRow:
        """Return the row, marked as final if its window had closed when the watermark was `moment`."""
        is_final = moment is not None and self.window_end is not None and self.window_end <= moment
        return self._replace(is_final=True) if is_final else self

    def to_record(self) -> bytes:
        """Write the value of its record again."""
        row = ViewRow(
            key=self.key,
            window_start=self.window_start,
            window_end=self.window_end,
            values=self.values,
            build=self.build.removesuffix(_PARTS),
        )
        return row.model_dump_json().encode()


_PARTS = ".parts"


def parts_of(build: str) -> str:
    """Name the build of the rows of the topic in the read model of a view that shows others."""
    return build + _PARTS


@dataclass(frozen=True)
class TopicWrite:
    """An upsert of `row` on the topic, or with None a deletion of `identity`, in place of the version at `offset`."""

    row: StoredRow | None
    identity: str
    partition: int
    offset: int


class ReadBatch:
    """The last version of each row in a batch of records; windows that ended by `final_before` are final.

    `rows` are by build and identity, `builds` in the order in which they came. `removals` and `stale` are the records
    that remove a row, or are of a replaced build, by its identity.
    """

    def __init__(self, final_before: datetime | None) -> None:
        self.final_before = final_before
        self.builds: dict[str, None] = {}
        self.rows: dict[tuple[str, str], StoredRow] = {}
        self.removals: dict[str, RowRecord] = {}
        self.stale: dict[str, RowRecord] = {}

    @property
    def touched(self) -> set[str]:
        """Return identities of rows that the store may have to be asked for."""
        return {*self.removals, *self.stale}

    def put(self, row: StoredRow) -> None:
        """Take `row` as the last version."""
        self.rows[row.build, row.identity] = row
        self.removals.pop(row.identity, None)
        self.stale.pop(row.identity, None)

    def remove(self, record: RowRecord) -> None:
        """Take `record` as the end of its row."""
        self.removals[record.key] = record
        self.stale.pop(record.key, None)


def name_of(values: Iterable[Scalar]) -> str:
    """Write the values of a key as one text, by which a reader asks for them: `berlin:4711`.

    A colon within a value is written as %3A and a percent sign as %25, so that two keys have two names.
    """
    return ":".join(_plain(value).replace("%", "%25").replace(":", "%3A") for value in values)


def micros(moment: datetime) -> int:
    """Count the microseconds from 1970 to `moment`."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment_of(count: int) -> datetime:
    """Return the moment so many microseconds after 1970, UTC."""
    return EPOCH + timedelta(microseconds=count)


def _plain(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _finite(value: Any) -> Any:
    """Put null in the place of numbers that JSON cannot write."""
    if isinstance(value, str | int | None):  # most are
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


Scalar = str | bool | int | float

_ESCAPES = re.compile(r"\\(?:u([0-9a-f]{4})|.)")


class ViewRow(BaseModel, frozen=True, extra="forbid"):
    """One row of a view.

    Attributes:
        key: columns of the key and their values, never null.
        values: the other columns; JSON values, null allowed. A number that is not finite is null.
    """

    key: dict[str, Scalar]
    window_start: datetime | None = None
    window_end: datetime | None = None
    values: dict[str, Any]
    build: str

    @classmethod
    def from_record(cls, value: bytes, topic: str, partition: int, offset: int) -> ViewRow:
        """Read the row in a record of its topic; InvalidEvent when it is no row, and a retry does not help."""
        try:
            return cls.model_validate_json(value)
        except ValidationError as error:
            reasons = [f"{'.'.join(map(str, d['loc'])) or 'value'}: {d['msg']}" for d in error.errors()]
            raise InvalidEvent(reasons, topic, partition, offset) from error

    @property
    def identity(self) -> str:
        """Give the key of its record: the columns of the key, then the start of the window, as JSON."""
        start = None if self.window_start is None else (self.window_start - EPOCH) // timedelta(microseconds=1)
        return canonical_key(self.key, start)


class RowRecord(NamedTuple):
    """One record of the topic of a view.

    Attributes:
        value: the row as JSON; None when it is removed.
        removes: of a removal that an applier wrote: the offset of the version that it was about.
    """

    topic: str
    partition: int
    offset: int
    appended_at: datetime
    key: str
    value: bytes | None
    removes: int | None = None

    @property
    def place(self) -> tuple[int, int, datetime]:
        """Return partition, offset and append time."""
        return self.partition, self.offset, self.appended_at


def canonical_key(key: dict[str, Scalar], window_start: int | None) -> str:
    """Write a row's identity: JSON of its key, columns sorted, no spaces, and the window's start in µs since 1970."""
    columns: dict[str, Any] = dict(sorted(key.items()))
    if window_start is not None:
        columns["window"] = window_start
    text = json.dumps(columns, separators=(",", ":"), ensure_ascii=False)
    # Spark writes the digits of \u001F as capital letters, Python as small ones.
    return _ESCAPES.sub(lambda escape: f"\\u{escape[1].upper()}" if escape[1] else escape[0], text)
