"""A view, records of its topic, and a sink in memory that dies on demand."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tocsin.declare.model.detector import Stage
from tocsin.declare.model.view import ViewSpec
from tocsin.platform.kafka.reader import Offsets
from tocsin.views.sinks.sink import SinkBatch, SinkLost
from tocsin.views.stored_row import RowRecord, StoredRow, ViewRow

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def view_spec(**fields: Any) -> ViewSpec:
    known: dict[str, Any] = {
        "name": "word_counts",
        "path": Path("views/word_counts.py"),
        "sources": ("words",),
        "key": ("word",),
        "window": 10 * SECOND,
        "sink": "sqlite",
        "table": "windowed_counts",
        "owner": "search@example.com",
        "stage": Stage.LIVE,
        "title": "Words.",
        "doc": "Words.",
        "version": "v1",
    }
    return ViewSpec(**known | fields)


def view_row(word: str, count: Any, *, window: int | None = 0, build: str = "a", **values: Any) -> ViewRow:
    """A row of the window that starts so many seconds after noon."""
    start = None if window is None else NOON + window * SECOND
    end = None if start is None else start + 10 * SECOND
    return ViewRow(
        key={"word": word}, window_start=start, window_end=end, values={"count": count, **values}, build=build
    )


def record(row: ViewRow | None, offset: int, *, key: str = "", partition: int = 0, **fields: Any) -> RowRecord:
    value = None if row is None else row.model_dump_json().encode()
    identity = key if row is None else row.identity
    known: dict[str, Any] = {"value": value, "key": identity, "appended_at": NOON + offset * SECOND}
    return RowRecord(topic="views.word_counts", partition=partition, offset=offset, **known | fields)


class MemorySink:
    """Keeps rows by identity."""

    refused = 0

    def __init__(self, address: str = "", consumer: str = "", spec: ViewSpec | None = None) -> None:
        self.opened, self.spec = (address, consumer), spec
        self.rows: dict[str, StoredRow] = {}
        self.offsets_there: Offsets | None = None
        self.expected: Offsets | None = None
        self.versions: list[tuple[str, Any]] = []

    def offsets(self) -> Offsets | None:
        self.expected = self.offsets_there
        return self.offsets_there

    def apply(self, batch: SinkBatch) -> None:
        if self.offsets_there != self.expected:
            raise SinkLost
        for row in batch.removed:
            self.rows.pop(row.identity, None)
        self.rows |= {row.identity: row for row in batch.rows}
        self.versions += [(row.name, row.values["count"]) for row in batch.rows]
        self.offsets_there = self.expected = dict(batch.offsets)

    def replace(self, rows: Iterable[StoredRow], gone: Iterable[StoredRow], offsets: Offsets) -> None:
        del gone
        self.rows = {row.identity: row for row in rows}
        self.offsets_there = self.expected = dict(offsets)

    def close(self) -> None:
        pass

    def counts(self) -> dict[str, Any]:
        return {row.name: row.values["count"] for row in self.rows.values()}
