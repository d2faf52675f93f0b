"""Events as a detector receives them: the same function for a stream and for history."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.model.durations import Windowed, spark_interval
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.source import EVENT_COLUMNS, TICK_START, Source
from tocsin.spark.plan_tree import STRUCT, Node, parse_tree
from tocsin.spark.window_column import add_window

TICKS = "ticks"

IDENTITY = ("raw_topic", "raw_partition", "raw_offset")
"""What makes an event the same event, however often it was written."""


class Prepared(Windowed, Protocol):
    """What a declaration says about the events that its function receives: `declare.model.detector.DetectorSpec`."""

    @property
    def keeps_state(self) -> bool: ...  # noqa: D102 - as in the specs


def event_columns(source: Source) -> dict[str, str]:
    """Return columns and types, as DDL, of one event record of `source`, and of a tick."""
    return EVENT_COLUMNS | source.columns | {"tick": "boolean"}


class SourceEvents:
    """Implements `tocsin.declare.model.flow.Sources`."""

    def __init__(self, where: Path, events: Mapping[str, DataFrame], spec: Prepared | None) -> None:
        """Give `events`, by the name of their source, and windows of `spec`, if any. `where` is named in errors."""
        self._where, self._events, self._spec = where, events, spec

    def __getitem__(self, name: str) -> DataFrame:
        """Return the events of the source `name`; see `Sources.__getitem__`."""
        if name not in self._events:
            what = f"reads source '{name}', which it does not declare"
            raise ConfigError([Fault(str(self._where), what, key="source", nearest=nearest(name, self._events))])
        return self._events[name]

    def with_window(self, rows: DataFrame) -> DataFrame:
        """Add `window` by the `event_time` of `rows`; see `Sources.with_window`."""
        if self._spec is None or self._spec.window is None or "event_time" not in rows.columns:
            why = "a flow has none" if self._spec is None else "window=None is declared"
            what = f"there is no window to add: {why}"
            if self._spec is not None and self._spec.window is not None:
                what = f"rows without 'event_time' have no window (they have: {', '.join(rows.columns)})"
            raise ConfigError.one(self._where, what, key="window")
        return add_window(rows, self._spec)


def by_source(
    sources: Sequence[Source], where: Path, spec: Prepared | None, events_of: Callable[[Source], DataFrame]
) -> DataFrame | SourceEvents:
    """Give the function in the file `where` what it takes: the events of its only source, or those of each."""
    if len(sources) == 1:
        return events_of(sources[0])
    return SourceEvents(where, {source.name: events_of(source) for source in sources}, spec)


def planned_events(
    spark: SparkSession, sources: Sequence[Source], spec: Prepared, where: Path
) -> DataFrame | SourceEvents:
    """Give the function of `spec`, in the file `where`, events that can be planned, but not read."""

    def events_of(source: Source) -> DataFrame:
        events = parse_events(no_records(spark), source, is_only=len(sources) == 1)
        return prepare_events(events, spec, source.lateness, is_only=len(sources) == 1)

    return by_source(sources, where, spec, events_of)


def count_ticks(records: DataFrame, label: str = "") -> DataFrame:
    """Count the ticks among records of an events topic by the observation `ticks`, or `ticks:<label>`."""
    name = f"{TICKS}:{label}" if label else TICKS
    return records.observe(name, F.count_if(F.col("value").cast("string").startswith(TICK_START)).alias("ticks"))


def no_records(spark: SparkSession) -> DataFrame:
    """Make a stream of the records of an events topic that can be planned, but not run: no broker is asked."""
    topic = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "events"}
    return spark.readStream.format("kafka").options(**topic).load()


def parse_events(
    records: DataFrame, source: Source, used: frozenset[str] | None = None, *, is_only: bool = True
) -> DataFrame:
    """Parse records of the events topic (column `value`, binary or text) into envelope, declared columns and `tick`.

    Columns not in `used` (see `used_columns`; None means all) are null: to read them is a quarter of the work. Where
    `source` is not the only one of a query its name becomes part of the plan: such plans differ in their state.
    """
    columns = event_columns(source)
    read = ", ".join(f"`{name}` {kind}" for name, kind in columns.items() if used is None or name in used)
    struct = _struct(source, is_only=is_only)
    parsed = records.select(F.from_json(F.col("value").cast("string"), read).alias(struct))
    return parsed.select(
        *(
            F.col(f"`{struct}`.`{name}`") if used is None or name in used else F.lit(None).cast(kind).alias(name)
            for name, kind in columns.items()
        )
    )


def _struct(source: Source, *, is_only: bool) -> str:
    return STRUCT if is_only else f"{STRUCT}:{source.name}"


def optimize(rows: DataFrame) -> Any:
    """Let Spark optimize the plan behind the stream `rows`; returns a node of the JVM."""
    plan = rows._jdf.queryExecution().analyzed()  # a stream's own optimized plan is not to be had before it runs
    return rows.sparkSession._jsparkSession.sessionState().optimizer().execute(plan)


def optimize_once(rows: DataFrame) -> DataFrame:
    """Let Spark optimize the stream `rows` before it starts, as it does in each batch: there is less left to do then.

    Not for rows that ask for the present time, of which this makes a constant.
    """
    return rows_of(optimize(rows), rows.sparkSession)


def rows_of(plan: Any, spark: SparkSession) -> DataFrame:
    """Make the rows of a plan, a node of the JVM."""
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def used_columns(plan: Any, sources: Sequence[Source]) -> dict[str, frozenset[str]]:
    """Find by source the columns that an optimized plan reads, if it was made from `parse_events` with all of them."""
    tree = parse_tree(plan.toJSON())
    expressions = [inner for node in tree.walk() for top in node.expressions() for inner in top.walk()]
    read = [expression for expression in expressions if expression.kind == "GetStructField"]
    # The optimizer may have merged the reading into what uses it, and counts otherwise then.
    is_merged = any(expression.children[0].kind == "JsonToStructs" for expression in read)
    found = {}
    for source in sources:
        names, struct = list(event_columns(source)), _struct(source, is_only=len(sources) == 1)
        own = {names[field.fields["ordinal"]] for field in read if field.children[0].name == struct}
        found[source.name] = frozenset(names if is_merged else own)
    return found


def filter_early(make: Callable[[str], DataFrame], early: str | None = None) -> DataFrame:
    """Make the rows of a stream by `make`, which is given the argument `early` of `prepare_events`.

    `early` is what `first_filter` has found; where it is None it is found first, at the cost of a further plan.
    """
    rows = None
    if early is None:
        rows = make("")
        early = first_filter(optimize(rows))
    if early:
        with contextlib.suppress(PySparkException):  # not every expression can be written as SQL
            return make(early)
    return make("") if rows is None else rows


def first_filter(plan: Any) -> str:
    """Read what an optimized plan asks of each event before all else, as SQL; "" for nothing, or of several streams."""
    above = [node for node in walk(plan) for child in children(node) if child.nodeName() == "Deduplicate"]
    if len(above) != 1 or above[0].nodeName() != "Filter" or not above[0].condition().deterministic():
        return ""
    return str(above[0].condition().sql())


def walk(plan: Any) -> Iterator[Any]:
    """Yield all nodes of a plan of the JVM, parents first."""
    yield plan
    for child in children(plan):
        yield from walk(child)


def children(plan: Any) -> list[Any]:
    """List the children of a node of the JVM."""
    found = plan.children()
    return [found.apply(number) for number in range(found.size())]


def read_sources(tree: Node, sources: Sequence[Source]) -> list[str]:
    """Name those of several `sources` that the plan `tree`, made from `parse_events`, reads, in the order it has."""
    names = [expression.name for node in tree.walk() for expression in node.expressions("projectList")]
    known = {_struct(source, is_only=False): source.name for source in sources}
    return [known[name] for name in dict.fromkeys(names) if name in known]


def unread_sources(tree: Node, sources: Sequence[Source]) -> list[str]:
    """Name those of several `sources` that the plan `tree` does not read."""
    read = read_sources(tree, sources)
    return [source.name for source in sources if source.name not in read] if len(sources) > 1 else []


def prepare_events(
    events: DataFrame,
    spec: Prepared,
    delay: timedelta | None,
    *,
    is_only: bool = True,
    early: str | None = None,
) -> DataFrame:
    """Prepare `events` (see `parse_events`) for the function of `spec`; those of history have no `delay`.

    For a query that keeps state the watermark stands `delay` behind the latest event or tick, and events that were
    written twice are there once; else they are as they are. With a window, `window` says which window an event belongs
    to (one row for each if they overlap); not where other sources are read as well (`is_only`): Spark takes one column
    with a watermark on each side of a join. Rows without an event time are left out. On a static DataFrame there is no
    watermark; the rest is the same.

    Where a stream is to run, `early` is what the function asks of each event before all else, in SQL, or "". All copies
    of an event pass it or none, so it is asked before duplicates are dropped. If state has one partition, events come
    together there at once. Neither changes state, so plans are read without it.
    """
    timed = events
    if events.isStreaming and spec.keeps_state and delay is not None:
        timed = events.withWatermark("event_time", spark_interval(delay))
    # Ticks move the watermark, so they go after it. The predicate has to name event_time: Spark pushes any other below
    # the watermark, which then stands still while nothing but ticks arrives.
    timed = timed.where(F.col("tick").isNull() | F.col("event_time").isNull())
    if early:
        timed = timed.where(F.expr(early) | F.col("event_time").isNull())
    timed = timed.where(F.col("event_time").isNotNull())
    if spec.keeps_state and delay is not None:
        if early is not None and events.sparkSession.conf.get("spark.sql.shuffle.partitions") == "1":
            timed = timed.repartition(1)  # else duplicates take a shuffle, and an aggregate another
        timed = timed.dropDuplicates([*IDENTITY, "event_time"])
    if spec.window is not None and is_only:
        timed = add_window(timed, spec)
    return timed.drop("tick")
