"""Read the raw lines of cases as the ingest of their source does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, time

from pyspark.sql import SparkSession

from tocsin.cases.case_events import DeclaredEvent
from tocsin.cases.case_language import DAY, CaseEvent
from tocsin.ingest.spark.envelope import add_event
from tocsin.ingest.spark.parse import parsed
from tocsin.model.errors import ConfigError, Fault
from tocsin.model.source import Source

_RECORD = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " headers array<struct<key:string,value:binary>>"
)
_APPENDED = datetime.combine(DAY, time.max, UTC)
"""A line must not be ahead of its time: this is when all of them came in."""


def read_lines(spark: SparkSession, lines: Sequence[CaseEvent], source: Source) -> list[DeclaredEvent]:
    """Parse `lines`, in their order; those that the source ignores make no event.

    Raises:
        ConfigError: with each line that would go to quarantine, and its reasons.
    """
    if not lines:
        return []
    rows = [(None, str(one.text).encode(), "raw", 0, number, _APPENDED, None) for number, one in enumerate(lines)]
    frame = add_event(parsed(spark.createDataFrame(rows, _RECORD), source), source)
    read = {row.offset: row for row in frame.select("offset", "reasons", "event").collect()}
    faults = [
        Fault(one.place.file, f"the line would go to quarantine ({read[number].reasons}): {str(one.text)[:200]}",
              line=one.place.line)
        for number, one in enumerate(lines) if read[number].reasons
    ]  # fmt: skip
    if faults:
        raise ConfigError(faults)
    events = ((one, read[number].event) for number, one in enumerate(lines))
    return [_event(one, json.loads(event), source) for one, event in events if event is not None]


def _event(line: CaseEvent, document: dict[str, object], source: Source) -> DeclaredEvent:
    columns = {
        name: datetime.fromisoformat(str(document[name])) if kind == "timestamp" and name in document
        else document.get(name)
        for name, kind in source.columns.items()
    }  # fmt: skip
    return DeclaredEvent(line.place, datetime.fromisoformat(str(document["event_time"])), columns)
