"""Find who sends too little, or nothing: give each expected entity a row in each window, also where nothing came.

A window without events has no row in any aggregate. So the rows that `detect` has made of closed windows are joined to
all windows that have closed, and the score turned round: what is missing. On a stream the watermark says which windows
have closed, batch by batch; it moves by ticks where nothing comes in (ADR 0040).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tocsin.declare.model.detector import DetectorSpec, Entities, Span
from tocsin.declare.model.durations import (
    EPOCH,
    MICROSECOND,
    closed_before,
    exact_text,
    first_number,
    last_number,
    step_of,
)
from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.platform import state_file
from tocsin.platform.storage.stored_path import StoredPath
from tocsin.spark.columns import any_null
from tocsin.spark.query.progress import batches_in, watermark_of
from tocsin.spark.tables.spark.joined_tables import JoinedTables
from tocsin.spark.window_column import by_clock, from_clock

FILLS_BACK = timedelta(days=1)
"""A stream looks for silence in windows that ended so long before its watermark, at most; a backfill in all."""


@dataclass(frozen=True)
class Known:
    """What tells who is expected, beside the declaration; `seen` are those seen before the rows that are filled in."""

    tables: JoinedTables | None = None
    seen: DataFrame | None = None


def fill_in(rows: DataFrame, silence: Silence, spans: Sequence[Span], known: Known | None = None) -> DataFrame:
    """Make one row for each expected entity and window of `spans`.

    `rows` are those of closed windows that `detect` has returned. Those of other entities and windows are left out.
    `score` becomes what is missing; columns beside it are null where there was no row.
    """
    entity = silence.spec.entity
    expected = _expected(rows, silence, _windows(rows, silence, spans), known or Known())
    texts = rows.withColumns({name: F.col(name).cast("string") for name in entity})
    found = F.coalesce(F.col("score").cast("double"), F.lit(0.0))
    joined = expected.join(texts, ["window", *entity], "left")
    return joined.withColumn("score", F.lit(float(silence.expect.minimum)) - found)


def _expected(rows: DataFrame, silence: Silence, windows: DataFrame, known: Known) -> DataFrame:
    expect = silence.expect
    if expect.table and known.tables is not None:
        return known.tables.holding(expect.table, windows)
    if expect.seen_within is not None:
        seen = seen_in(rows, silence.spec)
        earlier = seen if known.seen is None else seen.unionByName(known.seen)
        return expected_since(earlier, silence, expect.seen_within, windows)
    columns = ", ".join(f"`{name}` string" for name in silence.spec.entity)
    names = rows.sparkSession.createDataFrame(list(expect.names), columns)
    return windows.crossJoin(F.broadcast(names))


def _windows(rows: DataFrame, silence: Silence, spans: Sequence[Span]) -> DataFrame:
    spec = silence.spec
    slide = step_of(spec) // MICROSECOND
    listed = rows.sparkSession.createDataFrame(_numbers(spec, spans), "first bigint, last bigint")
    number = listed.select(F.explode(F.sequence("first", "last")).alias("number"))
    start = number.select((F.col("number") * slide).alias("begin"))
    end = F.col("begin") + F.lit(silence.window // MICROSECOND)
    edges = F.struct(
        from_clock(F.timestamp_micros("begin"), spec).alias("start"),
        from_clock(F.timestamp_micros(end), spec).alias("end"),
    )
    return start.select(edges.alias("window"))


def _numbers(spec: DetectorSpec, spans: Sequence[Span]) -> list[tuple[int, int]]:
    numbers = ((first_number(spec, first), first_number(spec, after) - 1) for first, after in spans)
    return [(first, last) for first, last in numbers if first <= last]


class ClosedByBatch:
    """Fills in the windows that each micro-batch of a query in append mode closes.

    Spark emits in batch N the windows that ended after the watermark of batch N - 1, and up to that of N. It has
    written both down before the batch begins. So a batch that runs again after a crash closes the same windows.
    `nobody` says why nobody was expected in the windows that were closed last; empty where somebody was.
    """

    def __init__(
        self,
        silence: Silence,
        query: StoredPath,
        emission: Emission | None = None,
        within: Sequence[Span] = (),
        tables: JoinedTables | None = None,
    ) -> None:
        self._emission = emission or Emission()
        self._silence, self._spec, self._query, self._within = silence, silence.spec, query, within
        self._tables, self._seen = tables, SeenEntities(silence, query)
        self.nobody = ""

    def make_findings(self, rows: DataFrame, batch: int) -> DataFrame | None:
        """Make findings of what `batch` closes; None when it closes nothing."""
        filled = self.missing(rows, batch)
        return None if filled is None else make_findings(filled, self._spec, self._emission)

    def missing(self, rows: DataFrame, batch: int) -> DataFrame | None:
        """Find what is missing in what `batch` closes; `rows` are what it emits. None when it closes nothing."""
        first = rows.agg(F.min(F.unix_micros("window.start")).alias("start")).collect()[0]["start"]
        before, now = (watermark_of(self._query, number) for number in (batch - 1, batch))
        if now is None:
            return None
        end = closed_before(self._spec, now)
        if before is not None:
            start: datetime | None = closed_before(self._spec, before)
        elif self._within:
            start = self._within[0][0]
        else:
            start = None if first is None else EPOCH + first * MICROSECOND
        since = [moment for moment in (start, self._emission.publish_from) if moment is not None]
        if not since:
            return None  # no event yet
        spans = [(max(*since, first), min(after, end)) for first, after in self._within or [(end - FILLS_BACK, end)]]
        closes = bool(_numbers(self._spec, spans))
        if not closes and first is None:
            return None
        known = self._known(rows, batch, now, has_rows=first is not None)
        return fill_in(rows, self._silence, spans, known) if closes else None

    def _known(self, rows: DataFrame, batch: int, now: datetime, *, has_rows: bool) -> Known:
        expect = self._silence.expect
        if expect.seen_within is not None:
            seen, is_any = self._seen.take(rows, batch, now, has_rows=has_rows)
            self.nobody = "" if is_any else f"no entity was seen within {exact_text(expect.seen_within)}"
            return Known(seen=seen)
        if self._tables is not None and expect.table:
            self.nobody = f"table '{expect.table}' has no rows in force" if self._tables.is_empty(expect.table) else ""
        return Known(self._tables)


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
