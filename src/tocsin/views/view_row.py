"""The contract of a row of a view, as it travels on the compacted topic `views.<name>`.

The record's key is the row's identity, `canonical_key`, so that the topic keeps the last version of each row. Each
version replaces the one before: after a crash some are written again, and the last one is right again.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.errors import InvalidEvent

Scalar = str | bool | int | float

_ESCAPES = re.compile(r"\\(?:u([0-9a-f]{4})|.)")


class ViewRow(BaseModel, frozen=True, extra="forbid"):
    """One row of a view.

    Attributes:
        key: columns of the key and their values, never null.
        window_start, window_end: UTC; None in a view without windows.
        values: the other columns; JSON values, null allowed. A number that is not finite is null.
        build: which computation of the view wrote it; a rebuilt view has a new one.
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
        appended_at: UTC.
        key: identity of the row.
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
