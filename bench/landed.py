"""Write landed files as a run does, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pyarrow as pa
from pyarrow import compute, parquet

from tocsin.declare.model.source import Source
from tocsin.history.landing_ledger import PARTITION, LandedFile
from tocsin.history.parquet_files import digest
from tocsin.history.places import Places
from tocsin.platform.state_file import write_whole
from tocsin.platform.storage.stored_path import size_of

_TYPES = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def arrow_schema(columns: dict[str, str]) -> pa.Schema:
    """`columns`, as of `columns_of`, in Arrow's types."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])


class LandingWriter:
    """The files of one run."""

    def __init__(self, places: Places, run: str, source: Source) -> None:
        """Write nothing yet."""
        self.files: list[LandedFile] = []
        self.run, self._places, self._lateness = run, places, source.lateness

    def write(self, table: pa.Table, partition: int = 0) -> None:
        """Write one file for each day of the events in `table`, which came from `partition`."""
        for day, events in _by_day(table):
            path = self._places.landed(day, self.run) / f"part-{len(self.files):05d}.parquet"
            sink = pa.BufferOutputStream()
            rows = events.append_column(PARTITION, pa.array([partition] * events.num_rows, pa.int32()))
            parquet.write_table(rows, sink, compression="zstd", store_schema=False)
            write_whole(path, sink.getvalue().to_pybytes())
            delay = compute.subtract(events["ingested_at"], events["event_time"])
            file = LandedFile(
                path=self._places.within(path),
                day=day,
                rows={partition: events.num_rows},
                late=compute.sum(compute.greater(delay, self._lateness)).as_py() or 0,
                newest_event=compute.max(events["event_time"]).as_py(),
                newest_append=compute.max(events["ingested_at"]).as_py(),
                bytes=size_of(path),
                sha256=digest(path),
            )
            self.files.append(file)


def _by_day(table: pa.Table) -> Iterator[tuple[date, pa.Table]]:
    days = compute.floor_temporal(table["event_time"], unit="day")
    for moment in compute.unique(days).to_pylist():
        yield moment.date(), table.filter(compute.equal(days, moment))
