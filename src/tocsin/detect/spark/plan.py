"""Read off a detector's plan, before it starts, mode and reason, score, exchanges, fingerprint."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, NumericType, StructType, TimestampType

from tocsin.detect.rows_above import correct_score
from tocsin.detect.scores import Score, score_of
from tocsin.ingest.spark.patterns import check_function
from tocsin.model.detector import DetectorSpec, ScoreKind
from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.model.source import Source
from tocsin.sparkjob.events import IDENTITY
from tocsin.sparkjob.plan_traits import count_exchanges, fingerprint_of, has_sessions, keeps_state
from tocsin.sparkjob.plan_tree import Node
from tocsin.sparkjob.query.work import MICRO_BATCH
from tocsin.sparkjob.query_plan import QueryPlan, analysed, mode_of


class StreamOnly(ConfigError):
    """A detector's windows follow from its events, so no range of time can be cut out; a retry does not help."""


@dataclass(frozen=True, kw_only=True)
class DetectorPlan(QueryPlan):
    """The consequences of a detector's plan.

    Attributes:
        score: kind of its score, as declared or derived.
        has_sessions: it has a session window.
    """

    score: Score
    has_sessions: bool = False


def read_plan(found: DataFrame, spec: DetectorSpec, source: Source | None = None) -> DetectorPlan:
    """Read the plan behind `found`, which `detect` of `spec` has returned (streaming or static).

    Its patterns are tried on what can stand in records of `source`, if that is given; this can take seconds.

    Raises:
        ConfigError: columns are missing or of a wrong type, the kind of score cannot be told, or a per-event detector
            keeps state. All faults at once; a retry does not help.
        ConfigError: a record of `source` could stop one of its patterns.
    """
    tree = analysed(found)
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
        check_function(tree, found.sparkSession, (spec.path, "detect"), source)
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
    mode, reason = mode_of(tree)
    return mode, "update", reason
