"""Read off a detector's plan, before it starts, mode and reason, score, exchanges, fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, NumericType, StructType, TimestampType

from tocsin.detect.drain import Decision
from tocsin.detect.rows_above import correct_score
from tocsin.detect.scores import Score, score_of
from tocsin.ingest.spark.patterns import check_detector
from tocsin.model.detector import DetectorSpec, ScoreKind
from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.model.source import Source
from tocsin.sparkjob.events import IDENTITY
from tocsin.sparkjob.plan_traits import count_exchanges, find_obstacle, fingerprint_of, has_sessions, keeps_state
from tocsin.sparkjob.plan_tree import Node, parse_tree
from tocsin.sparkjob.query.work import MICRO_BATCH, REAL_TIME


class StreamOnly(ConfigError):
    """A detector's windows follow from its events, so no range of time can be cut out; a retry does not help."""


@dataclass(frozen=True, kw_only=True)
class DetectorPlan:
    """The consequences of a detector's plan.

    Attributes:
        mode: "real-time" or "micro-batch".
        reason: why this mode, one sentence.
        output: Spark's output mode, "update" or "append".
        score: kind of its score, as declared or derived.
        exchanges: shuffles between the source and the sink.
        fingerprint: 16 hex digits that change whenever the state of an old checkpoint would no longer fit.
        has_sessions: it has a session window.
    """

    mode: str
    reason: str
    output: str
    score: Score
    exchanges: int
    fingerprint: str
    has_sessions: bool = False

    def slots(self, partitions: int, shuffle_partitions: int) -> int:
        """Count the task slots that real-time mode holds all at once: one for each task of each stage."""
        return partitions + shuffle_partitions * self.exchanges


def read_plan(found: DataFrame, spec: DetectorSpec, source: Source | None = None) -> DetectorPlan:
    """Read the plan behind `found`, which `detect` of `spec` has returned (streaming or static).

    Its patterns are tried on what can stand in records of `source`, if that is given; this can take seconds.

    Raises:
        ConfigError: columns are missing or of a wrong type, the kind of score cannot be told, or a per-event detector
            keeps state. All faults at once; a retry does not help.
        ConfigError: a record of `source` could stop one of its patterns.
    """
    tree = parse_tree(found._jdf.queryExecution().analyzed().toJSON())
    score = _score(tree, spec)
    faults = column_faults(found.schema, spec)
    if score.kind is None and not any(fault.key == "score" for fault in faults):
        what = f"is neither rising nor final by its plan ({score.why})"
        what += '; declare score="rising" or score="final"'
        faults.append(Fault(str(spec.path), what, key="score"))
    if spec.window is None and keeps_state(tree):
        faults.append(Fault(str(spec.path), "is None, but the detector keeps state; give it a window", key="window"))
    if faults:
        raise ConfigError(faults)
    if source is not None:
        check_detector(tree, found.sparkSession, spec, source)
    mode, output, reason = _mode(tree, score)
    return DetectorPlan(
        mode=mode,
        reason=reason,
        output=output,
        score=score,
        exchanges=count_exchanges(tree),
        fingerprint=fingerprint_of(tree, output, found.sparkSession),
        has_sessions=has_sessions(tree),
    )


def choose_mode(plan: DetectorPlan, decision: Decision, refusal: str, needed_slots: int, slots: int) -> tuple[str, str]:
    """Choose the mode of a query for now; returns it and why.

    Args:
        plan: of the detector.
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


def set_trigger(writer: Any, plan: DetectorPlan, mode: str, seconds: int) -> Any:
    """Take real-time batches; else micro-batches at once, or each second where nobody waits for an open window."""
    if mode == REAL_TIME:
        return writer.trigger(realTime=f"{seconds} seconds")
    return writer.trigger(processingTime="1 second" if plan.score.kind is ScoreKind.FINAL else "0 seconds")


def check_range(plan: DetectorPlan, spec: DetectorSpec) -> None:
    """Check that the detector `spec` with this `plan` finds the same in a range of time as the stream does.

    Raises:
        StreamOnly: a session may have begun before any range, and go on after it.
    """
    if plan.has_sessions:
        what = "has a session window, and a session may cross midnight, so it runs only on the stream; "
        what += "use a window of a fixed length to run it on history"
        raise StreamOnly.one(spec.path, what, key="detect")


def column_faults(schema: StructType, spec: DetectorSpec) -> list[Fault]:
    """List what is wrong with the columns that `detect` returned."""
    needed = [*spec.entity, "score", *(("window",) if spec.window is not None else IDENTITY)]
    faults = [
        Fault(str(spec.path), f"detect returns no column '{name}'", key=name, nearest=nearest(name, schema.names))
        for name in needed
        if name not in schema.names
    ]
    types = {field.name: field.dataType for field in schema.fields}
    if "score" in types and not isinstance(types["score"], NumericType):
        faults.append(Fault(str(spec.path), f"must be a number, not {types['score'].simpleString()}", key="score"))
    if "evidence" in types and not isinstance(types["evidence"], ArrayType):
        faults.append(Fault(str(spec.path), "must be an array of samples", key="evidence"))
    if "event_time_max" in types and not isinstance(types["event_time_max"], TimestampType):
        faults.append(Fault(str(spec.path), "must be a timestamp", key="event_time_max"))
    return faults


def _score(tree: Node, spec: DetectorSpec) -> Score:
    """Take the declared kind of score, else the derived one."""
    derived = correct_score(tree, score_of(tree), spec.entity)
    if spec.window is None:
        return Score(ScoreKind.RISING, False, "the score belongs to a single event")
    if spec.score is None:
        return derived
    return Score(spec.score, derived.counts and spec.score is ScoreKind.RISING, "the file declares it")


def _mode(tree: Node, score: Score) -> tuple[str, str, str]:
    """Find mode, output mode and reason."""
    if has_sessions(tree):
        return MICRO_BATCH, "append", "a session window is known only when it has closed"
    if score.kind is ScoreKind.FINAL:
        return MICRO_BATCH, "append", f"the score is final, so it is emitted when its window closes: {score.why}"
    obstacle = find_obstacle(tree)
    if obstacle is not None:
        return MICRO_BATCH, "update", obstacle
    return REAL_TIME, "update", "every operator of the plan runs in real-time mode"
