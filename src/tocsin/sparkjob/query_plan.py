"""Decide by the plan of a user's query, before it starts, how it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from tocsin.sparkjob.plan_traits import find_obstacle
from tocsin.sparkjob.plan_tree import Node, parse_tree
from tocsin.sparkjob.query.drain import Decision
from tocsin.sparkjob.query.work import MICRO_BATCH, REAL_TIME


@dataclass(frozen=True, kw_only=True)
class QueryPlan:
    """The consequences of a plan.

    Attributes:
        mode: "real-time" or "micro-batch".
        reason: why this mode, one sentence.
        output: Spark's output mode, "update" or "append".
        exchanges: shuffles between the source and the sink.
        fingerprint: 16 hex digits that change whenever the state of an old checkpoint would no longer fit.
    """

    mode: str
    reason: str
    output: str
    exchanges: int
    fingerprint: str

    @property
    def interval(self) -> str:
        """Give the time between micro-batches: none, or a second where only closed windows are written."""
        return "1 second" if self.output == "append" else "0 seconds"

    def slots(self, partitions: int, shuffle_partitions: int) -> int:
        """Count the task slots that real-time mode holds all at once: one for each task of each stage."""
        return partitions + shuffle_partitions * self.exchanges


def analysed(rows: DataFrame) -> Node:
    """Read the analysed plan behind `rows`, which may be streaming or static."""
    return parse_tree(rows._jdf.queryExecution().analyzed().toJSON())


def choose_mode(plan: QueryPlan, decision: Decision, refusal: str, needed_slots: int, slots: int) -> tuple[str, str]:
    """Choose the mode of a query for now; returns it and why.

    Args:
        plan: of the query.
        decision: how to read on.
        refusal: what Spark has said against real-time mode for this plan; empty if nothing.
        needed_slots: task slots that the plan needs at once in real-time mode.
        slots: those that there are.
    """
    if decision.is_draining and not decision.is_short:
        return MICRO_BATCH, f"drains a backlog: {decision.reason}"
    if plan.mode != REAL_TIME:
        return plan.mode, plan.reason
    if refusal:
        return MICRO_BATCH, f"Spark refuses real-time mode for this plan: {refusal}"
    # Spark checks the slots of stateful plans alone; a stateless one would read part of the topic in silence.
    if needed_slots > slots:
        return MICRO_BATCH, f"real-time mode needs {needed_slots} task slots at once for this plan; it has {slots}"
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
