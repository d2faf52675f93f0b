"""Decide by the plan of a user's query, before it starts, how it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tocsin.declare.model.durations import exact_text
from tocsin.declare.model.errors import Fault
from tocsin.declare.model.source import Source
from tocsin.platform.failures import first_line
from tocsin.spark.events import children, unread_sources, walk
from tocsin.spark.plan_traits import find_obstacle, has_stream_joins
from tocsin.spark.plan_tree import Node, parse_tree
from tocsin.spark.query.drain import Decision
from tocsin.spark.query.work import MICRO_BATCH, REAL_TIME
from tocsin.spark.window_column import DELAY

_LARGE = 500_000
"""The JSON of a plan, in characters, that is too much for one generated method: some 3,000 expressions."""
_WATERMARK_MS = 10**13  # any; py4j passes a smaller number as Java's Integer, and Spark takes a Long
_UNBOUNDED = (
    "joins two streams without a bound on the time between their events, so what it remembers grows for ever; add both "
    "limits to the condition, as in (F.col('paid_at') >= F.col('event_time')) & (F.col('paid_at') <= "
    "F.col('event_time') + F.expr('INTERVAL 10 MINUTES'))"
)
_TWO_TIMES = "; a side of a join of two streams may have one column of event time: drop the others, or select from it"


@dataclass(frozen=True, kw_only=True)
class QueryPlan:
    """The consequences of a plan.

    Attributes:
        mode: "real-time" or "micro-batch".
        reason: why this mode, one sentence.
        output: Spark's output mode, "update" or "append".
        exchanges: shuffles between the source and the sink.
        fingerprint: 16 hex digits that change whenever the state of an old checkpoint would no longer fit.
        reach: how far apart in time events may lie that are joined.
        python: names of the Python functions that it runs on rows or groups.
    """

    mode: str
    reason: str
    output: str
    exchanges: int
    fingerprint: str
    reach: timedelta = timedelta(0)
    python: tuple[str, ...] = ()

    def latency(self, lateness: timedelta, aim: str, moment: str, seconds: int = 2) -> str:
        """Say in words how long its rows take, and by which Python functions.

        `lateness` is that of the sources, `aim` the latency that real-time mode is to have, and `moment` what a row
        waits for in output mode "append": the end of its window, or its event; and for so many `seconds` more.
        """
        if self.output == "append":
            took = f"{exact_text(lateness + self.reach)} and about {seconds} seconds after {moment}"
        else:
            took = f"about {aim if self.mode == REAL_TIME else '1 second'} after the event"
        return took + (f", by Python code on rows ({', '.join(self.python)})" if self.python else "")

    @property
    def interval(self) -> str:
        """Give the time between micro-batches: none, or a second where only closed windows are written."""
        return "1 second" if self.output == "append" else "0 seconds"

    def slots(self, partitions: int, shuffle_partitions: int) -> int:
        """Count the task slots that real-time mode holds all at once: one for each task of each stage."""
        return partitions + shuffle_partitions * self.exchanges


def analyse(rows: DataFrame) -> Node:
    """Read the analysed plan behind `rows`, which may be streaming or static.

    If it is large, what runs in the session from now on is compiled expression by expression: Janino 3.1.9 takes memory
    by the square of a method's length, and 900 conditions filled the 512 MB of an engine.
    """
    text = rows._jdf.queryExecution().analyzed().toJSON()
    if len(text) > _LARGE:
        rows.sparkSession.conf.set("spark.sql.codegen.wholeStage", "false")
    return parse_tree(text)


def shortage_of(needed: int, slots: int) -> str:
    """Say that real-time mode lacks task slots, else "": without enough, a stateless plan silently skips partitions."""
    return "" if needed <= slots else f"real-time mode needs {needed} task slots at once for this plan; it has {slots}"


def choose_mode(plan: QueryPlan, decision: Decision, obstacle: str) -> tuple[str, str]:
    """Choose the mode of a query for now, and say why; an `obstacle` to real-time mode is such a reason."""
    if decision.is_draining and not decision.is_short:
        return MICRO_BATCH, f"drains a backlog: {decision.reason}"
    if plan.mode != REAL_TIME:
        return plan.mode, plan.reason
    if obstacle:
        return MICRO_BATCH, obstacle
    return REAL_TIME, f"catches up: {decision.reason}" if decision.is_draining else plan.reason


def set_trigger(writer: Any, plan: QueryPlan, mode: str, seconds: int) -> Any:
    """Take real-time batches of so many `seconds`, else micro-batches."""
    if mode == REAL_TIME:
        return writer.trigger(realTime=f"{seconds} seconds")
    return writer.trigger(processingTime=plan.interval)


def mode_of(tree: Node) -> tuple[str, str]:
    """Find the mode for a plan in output mode "update", and why."""
    obstacle = find_obstacle(tree)
    if obstacle is not None:
        return MICRO_BATCH, obstacle
    return REAL_TIME, "every operator of the plan runs in real-time mode"


def source_faults(
    rows: DataFrame, tree: Node, function: tuple[Path, str], sources: Sequence[Source]
) -> tuple[list[Fault], timedelta]:
    """Find what is wrong with how the `function` (its file and name) has put its `sources` together.

    `rows` is what it has returned, and `tree` the analysed plan behind them; a static DataFrame has no joins of
    streams. Returns the faults, and how far apart in time events may lie that are joined.
    """
    faults = [
        Fault(str(function[0]), f"does not read source '{name}', which it declares; leave it out there", key="source")
        for name in unread_sources(tree, sources)
    ]
    reach = timedelta(0)
    if rows.isStreaming and has_stream_joins(tree):
        nodes = walk(rows._jdf.queryExecution().analyzed())
        joins = [n for n in nodes if n.nodeName() == "Join" and all(side.isStreaming() for side in children(n))]
        for names in (_event_times(side) for join in joins for side in (join.left(), join.right())):
            if len(names) > 1:
                faults.append(Fault(str(function[0]), f"joins {' and '.join(names)}{_TWO_TIMES}", key=function[1]))
        reaches = [_reach(rows, join) for join in joins]
        reach = sum((span for span in reaches if span is not None), timedelta(0))
        if None in reaches:
            faults.append(Fault(str(function[0]), _UNBOUNDED, key=function[1]))
    return faults, reach


def refusal_of(rows: DataFrame, output: str) -> str:
    """Say what Spark has against a stream of this plan, as it would when the query starts; "" for nothing."""
    jvm: Any = rows.sparkSession._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = modes.Append() if output == "append" else modes.Update()
    try:
        checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)
    except (AnalysisException, Py4JJavaError) as error:
        return f"Spark refuses its plan: {first_line(error)}"
    return ""


def _event_times(plan: Any) -> list[str]:
    """Name the columns of a plan of the JVM that have a watermark."""
    columns = [plan.output().apply(number) for number in range(plan.output().size())]
    return [column.name() for column in columns if column.metadata().contains(DELAY)]


def _reach(rows: DataFrame, join: Any) -> timedelta | None:
    """Ask Spark how far behind the watermark the state of `join` reaches; None where it has no end."""
    jvm: Any = rows.sparkSession._jvm
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    if helper.isWatermarkInJoinKeys(join):
        return timedelta(0)
    reach, watermark = 0, jvm.scala.Option.apply(_WATERMARK_MS)
    for side, other in ((join.left(), join.right()), (join.right(), join.left())):
        oldest = helper.getStateValueWatermark(side.outputSet(), other.outputSet(), join.condition(), watermark)
        if oldest.isEmpty():
            return None
        reach = max(reach, _WATERMARK_MS - oldest.get())
    return timedelta(milliseconds=reach)
