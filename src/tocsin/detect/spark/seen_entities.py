"""Expect whom a detector has seen: each entity with a row in one of the last windows, on a stream and on history.

On a stream, the last window of each is written down beside the checkpoint with the batch that has closed it. A batch
that runs again after a crash goes on from what the one before it has written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tocsin.declare.model.detector import DetectorSpec, Entities
from tocsin.declare.model.durations import MICROSECOND, last_number, step_of
from tocsin.platform import state_file
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.spark.columns import any_null
from tocsin.spark.query.progress import batches_in
from tocsin.spark.window_column import by_clock

MOST_SEEN = 50_000
"""So many entities are remembered on a stream: of more, those that were seen last."""

_KEPT = 3
_Seen = list[tuple[list[str], int]]

log = structlog.get_logger()


@dataclass(frozen=True)
class Silence:
    """A detector that expects entities in windows of a fixed length."""

    spec: DetectorSpec
    expect: Entities
    window: timedelta

    @classmethod
    def of(cls, spec: DetectorSpec) -> Silence | None:
        """Return what `spec` expects; None where it expects nobody."""
        return cls(spec, spec.expect, spec.window) if spec.expect is not None and spec.window is not None else None


def seen_in(rows: DataFrame, spec: DetectorSpec) -> DataFrame:
    """List who has a row, as texts, and in which window (`seen`): its number when they are counted from 1970 on."""
    names = [F.col(name).cast("string").alias(name) for name in spec.entity]
    return rows.where(~any_null(names)).select(*names, _number(spec).alias("seen"))


def _number(spec: DetectorSpec) -> Column:
    start = F.unix_micros(by_clock(F.col("window.start"), spec))
    return F.floor(start / (step_of(spec) // MICROSECOND)).cast("bigint")


def expected_since(seen: DataFrame, silence: Silence, within: timedelta, windows: DataFrame) -> DataFrame:
    """Give each of `windows` (column `window`) those who were `seen` in an earlier one, at most `within` before."""
    spec = silence.spec
    numbered = windows.withColumn("number", _number(spec))
    bounds = numbered.agg(F.min("number").alias("first"), F.max("number").alias("last"))
    # One range of windows for each time an entity was seen, up to when it was seen next: none is expected twice.
    following = F.lead("seen").over(Window.partitionBy(*spec.entity).orderBy("seen"))
    ranges = seen.distinct().withColumn("next", following).crossJoin(F.broadcast(bounds))
    begin = F.greatest(F.col("seen") + 1, F.col("first"))
    last = F.col("seen") + within // silence.window
    end = F.least(last, F.coalesce("next", "last"), F.col("last"))
    numbers = ranges.withColumns({"begin": begin, "end": end}).where("begin <= end")
    expected = numbers.select(*spec.entity, F.explode(F.sequence("begin", "end")).alias("number"))
    return expected.join(F.broadcast(numbered), "number").select("window", *spec.entity)


class SeenEntities:
    """Those that a stream has seen, in files of the folder `seen` beside its checkpoint."""

    def __init__(self, silence: Silence, query: StoredPath) -> None:
        self._silence, self._spec, self._folder = silence, silence.spec, query / "seen"

    def take(self, rows: DataFrame, batch: int, now: datetime, *, has_rows: bool) -> tuple[DataFrame, bool]:
        """Return who was seen before `batch`, whose watermark is `now`, and whether anybody was up to its end.

        What its `rows` add is written down first.
        """
        before = self._read(batch)
        columns = ", ".join(f"`{name}` string" for name in self._spec.entity)
        pairs = [(*names, last) for names, last in before]
        frame = rows.sparkSession.createDataFrame(pairs, f"{columns}, seen bigint")
        if has_rows:
            before = self._write(seen_in(rows, self._spec).unionByName(frame), batch, now)
        return frame, any(last >= self._oldest(now) for _, last in before)

    def _read(self, batch: int) -> _Seen:
        number = max((number for number in batches_in(self._folder) if number < batch), default=None)
        return [] if number is None else state_file.load(self._folder / str(number), _Seen)

    def _write(self, seen: DataFrame, batch: int, now: datetime) -> _Seen:
        last = seen.groupBy(*self._spec.entity).agg(F.max("seen").alias("seen"))
        recent = last.where(F.col("seen") >= self._oldest(now)).orderBy(F.desc("seen"), *self._spec.entity)
        found = [(list(row[:-1]), row[-1]) for row in recent.limit(MOST_SEEN + 1).collect()]
        if len(found) > MOST_SEEN:
            log.warning("too many entities: those unseen for longest are not expected", most=MOST_SEEN)
        state_file.write(self._folder / str(batch), _Seen, found[:MOST_SEEN])
        for number in sorted(batches_in(self._folder))[:-_KEPT]:
            (self._folder / str(number)).unlink(missing_ok=True)
        return found

    def _oldest(self, now: datetime) -> int:
        within = self._silence.expect.seen_within or timedelta(0)
        return last_number(self._spec, now) - within // self._silence.window - 1
