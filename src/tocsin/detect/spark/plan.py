"""Read off a detector's plan, before it starts, mode and reason, score, exchanges, fingerprint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, NumericType, StructType, TimestampType

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.detector import DetectorSpec, ScoreKind
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.source import Source
from tocsin.detect.scores import Score, definitions, expand, kind_of, never_fires, score_of
from tocsin.detect.spark.step_query import detector_function
from tocsin.ingest.spark.patterns import check_function, check_source
from tocsin.platform.environments import without_elsewhere
from tocsin.platform.failures import first_line
from tocsin.platform.time_limit import time_limit
from tocsin.quality.suites.suite_catalog import read_row_rules
from tocsin.spark.events import IDENTITY, planned_events
from tocsin.spark.plan_traits import (
    KEEP_ROWS,
    above_aggregate,
    count_exchanges,
    find_cut,
    find_never_true,
    find_unrepeatable,
    fingerprint_of,
    has_sessions,
    has_stream_joins,
    keeps_state,
    other_keys,
    python_functions,
)
from tocsin.spark.plan_tree import Node, replace_columns
from tocsin.spark.query.work import MICRO_BATCH
from tocsin.spark.query_plan import QueryPlan, analyse, mode_of, refusal_of, source_faults
from tocsin.spark.tables.spark.joined_tables import no_rows
from tocsin.spark.window_column import has_other_windows, knows_zone

_NEVER = (
    "can never be reached: the score falls with each event, and a window without events has no row; "
    "let score be the count, and add expect=Entities([...], minimum=...)"
)

_OTHER_WINDOW = (
    "is not what detect groups by, so a backfill would cut its windows elsewhere: group by the column 'window' that "
    "events have; declare another length as window=, overlapping ones with slide=, and days of a place by "
    'window="1 day", time_zone="Europe/Berlin"'
)

_OTHER_KEY = (
    "groups by '{0}' besides the entity, so several rows of one entity and window would overwrite each other; name it "
    "in entity=, or take it by an aggregate such as F.max('{0}')"
)
_BY_FIRST = (
    "dropDuplicates keeps the first event of all time on the stream, and the first of each day in a backfill; put "
    "'window' among its columns"
)


class StreamOnly(ConfigError):
    """A detector's windows follow from its events, so no range of time can be cut out; a retry does not help."""


@dataclass(frozen=True, kw_only=True)
class DetectorPlan(QueryPlan):
    """The consequences of a detector's plan; `score` is the kind of its score, as declared or derived."""

    score: Score
    has_sessions: bool = False


def read_plan(found: DataFrame, spec: DetectorSpec, sources: Sequence[Source] = ()) -> DetectorPlan:
    """Read the plan behind `found`, which the function of `spec` has returned (streaming or static).

    Its patterns are tried on what can stand in records of `sources`, if these are given; this can take seconds.

    Raises:
        ConfigError: columns are missing or of a wrong type, the kind of score cannot be told, a per-event detector
            keeps state (all faults at once), or a record of `sources` could stop a pattern; a retry does not help.
    """
    tree = analyse(found)
    if spec.has_step:
        return _step_plan(tree, spec, sources[0] if sources else None, found.sparkSession)
    score = _score(tree, spec)
    faults = column_faults(found.schema, spec)
    if score.kind is None and not any(fault.key == "score" for fault in faults):
        what = f"is neither rising nor final by its plan ({score.why})"
        what += '; declare score="rising" or score="final"'
        faults.append(Fault(str(spec.path), what, key="score"))
    mode, output, reason = _mode(tree, score)
    wrong, reach = source_faults(found, tree, (spec.path, "detect"), sources)
    faults += (wrong or _join_faults(found, spec, output, reach)) + _silence_faults(tree, spec)
    faults += _repeat_faults(tree, spec, output) + _group_faults(tree, spec)
    faults += _window_faults(tree, spec, found.sparkSession)
    if faults:
        raise ConfigError(faults)
    if sources:
        check_function(tree, found.sparkSession, (spec.path, "detect"), max(sources, key=lambda it: it.max_bytes))
    return DetectorPlan(
        mode=mode,
        reason=reason,
        output=output,
        score=score,
        exchanges=count_exchanges(tree),
        fingerprint=fingerprint_of(tree, output + _seen_by(spec), found.sparkSession),
        has_sessions=has_sessions(tree),
        reach=reach,
        python=python_functions(tree),
    )


def _window_faults(tree: Node, spec: DetectorSpec, spark: SparkSession) -> list[Fault]:
    if spec.window is None:
        what = "is None, but the detector keeps state; give it a window"
        return [Fault(str(spec.path), what, key="window")] if keeps_state(tree) else []
    if not knows_zone(spark, spec.time_zone):
        what = f"Java has no rules for '{spec.time_zone}'; name another place of the same clock"
        return [Fault(str(spec.path), what, key="time_zone")]
    is_other = not has_sessions(tree) and has_other_windows(tree, spec, spark)
    return [Fault(str(spec.path), _OTHER_WINDOW, key="window")] if is_other else []


def _seen_by(spec: DetectorSpec) -> str:
    """Say what decides which entities have been seen: a change makes those that a checkpoint remembers wrong."""
    within = spec.expect.seen_within if spec.expect is not None else None
    return "" if within is None else f" seen within {within} by {spec.code}"


def _silence_faults(tree: Node, spec: DetectorSpec) -> list[Fault]:
    """List what keeps a detector from finding who sends nothing."""
    if spec.expect is not None and has_sessions(tree):
        return [Fault(str(spec.path), "needs windows of a fixed length: a session ends by silence", key="expect")]
    if spec.expect is None and never_fires(tree, spec.levels.lowest):
        return [Fault(str(spec.path), _NEVER, key="levels")]
    return []


def _step_plan(tree: Node, spec: DetectorSpec, source: Source | None, spark: SparkSession) -> DetectorPlan:
    columns = () if source is None else sorted(source.columns.items())
    state = (spec.code, spec.sources[0], spec.entity, spec.forget_after, columns)
    return DetectorPlan(
        mode=MICRO_BATCH,
        reason="step takes one event after the other behind the watermark, in Python, and real-time mode runs none",
        output="append",
        score=Score(ScoreKind.FINAL, False, "the score belongs to a single event"),
        exchanges=count_exchanges(tree),
        fingerprint=fingerprint_of(Node("TransformWithStateInPySpark", {"step": repr(state)}), "append", spark),
    )


def check_range(plan: DetectorPlan, spec: DetectorSpec) -> None:
    """Check that the detector finds the same in a range of time as on the stream. StreamOnly if it has sessions."""
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
    small = [name.lower() for name in schema.names]
    twice = [name for name in schema.names if small.count(name.lower()) > 1]
    faults += [
        Fault(str(spec.path), f"detect returns it twice, as Spark ignores case: {', '.join(twice)}", key=name)
        for name in twice[:1]
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
    if spec.expect is not None:
        return Score(ScoreKind.FINAL, False, "what is missing is known when a window has closed")
    if spec.model is not None:
        return Score(ScoreKind.FINAL, False, "its model judges windows that have closed")
    derived = correct_score(tree, score_of(tree), spec.entity)
    if spec.window is None:
        return Score(ScoreKind.RISING, False, "the score belongs to a single event")
    if spec.score is None:
        return derived
    return Score(spec.score, derived.counts and spec.score is ScoreKind.RISING, "the file declares it")


def _repeat_faults(tree: Node, spec: DetectorSpec, output: str) -> list[Fault]:
    found = [find_cut(tree, output), find_never_true(tree)]
    dropped = [{key.name for key in node.expressions("keys")} for node in tree.walk() if node.kind == "Deduplicate"]
    found += [_BY_FIRST for keys in dropped if keys.isdisjoint(("window", "event_time"))]
    if called := find_unrepeatable(tree):
        found.append(
            f"calls {called}: a backfill, or an event that is read again, would get another score; use event_time"
        )
    return [Fault(str(spec.path), what, key="detect") for what in found if what]


def _group_faults(tree: Node, spec: DetectorSpec) -> list[Fault]:
    """List the columns by which `detect` makes several rows of one entity and window, which share an identity."""
    found = [] if spec.window is None else other_keys(tree, {*spec.entity, "window"})
    return [Fault(str(spec.path), _OTHER_KEY.format(name), key="detect") for name in found]


def _join_faults(found: DataFrame, spec: DetectorSpec, output: str, reach: timedelta) -> list[Fault]:
    """List what Spark refuses on a stream, and what is wrong with joining events which lie up to `reach` apart."""
    if found.isStreaming and (refusal := refusal_of(found, output)):
        return [Fault(str(spec.path), refusal, key="detect")]
    faults = []
    if reach and spec.notify and reach >= spec.page_within:
        what = f"must be longer than {reach}, how far apart joined events may lie: a window is known that much later, "
        faults.append(Fault(str(spec.path), what + "and an older one notifies nobody at once", key="page_within"))
    return faults


def _mode(tree: Node, score: Score) -> tuple[str, str, str]:
    if has_sessions(tree):
        return MICRO_BATCH, "append", "a session window is known only when it has closed"
    if has_stream_joins(tree):
        return MICRO_BATCH, "append", "it joins two streams: each finding is made when its window has closed"
    if score.kind is ScoreKind.FINAL:
        return MICRO_BATCH, "append", f"the score is final, so it is emitted when its window closes: {score.why}"
    mode, reason = mode_of(tree)
    return mode, "update", reason


_JUDGED = {"Filter", "Join"}
_KEEP_MATCHES = {"Inner", "Cross", "LeftSemi"}
_UNSTEADY = ("Python", "ScalaUDF", "Rand", "Uuid", "Shuffle", "Current", "Now", "Reflect")


def correct_score(plan: Node, score: Score, entity: Iterable[str]) -> Score:
    """Correct `score`, derived from the columns of `plan` alone, for the operators above its topmost aggregate."""
    between = above_aggregate(plan)
    if score.kind is not ScoreKind.RISING or between is None:
        return score
    made = definitions(plan)
    for column in (*entity, "window"):
        expression = expand(plan, column)
        if expression is not None and _aggregates(expression):
            return _final(f"'{column}' comes from an aggregate and can change while its window is open")
    for node in between:
        if node.kind == "Union":
            return _score_of_union(node, score, tuple(entity))
        if why := _drop_reason(node, made):
            return _final(why)
    # A count that skips values, because its row is written only from some moment on, may miss every rung of the ladder.
    return replace(score, counts=score.counts and all(node.kind in KEEP_ROWS for node in between))


def _score_of_union(union: Node, score: Score, entity: tuple[str, ...]) -> Score:
    parts = [correct_score(part, score_of(part), entity) for part in union.children]
    for part in parts:
        if part.kind is not ScoreKind.RISING:
            return part
    return replace(score, counts=False)


def _drop_reason(node: Node, made: dict[int, Node]) -> str:
    """Say why the operator `node` may take away a row that it once gave; "" when it never does."""
    if node.kind not in KEEP_ROWS | _JUDGED:
        return f"nothing is known about {node.kind} above an aggregate"
    for condition in (replace_columns(top, made) for top in node.expressions("condition")):
        if not _stays(condition):
            return "a filter above the aggregate can turn false again while its window is open"
        if node.kind == "Join" and _aggregates(condition) and _join_type(node) not in _KEEP_MATCHES:
            return "a join above the aggregate can drop or change a row once it begins to match"
    return ""


def _join_type(join: Node) -> str:
    return str(join.fields["joinType"]["object"]).rsplit(".", 1)[-1].removesuffix("$")


def _stays(condition: Node) -> bool:
    """Return whether `condition`, once true for a group, stays true when more events come in."""
    if not _aggregates(condition):
        return not any(node.kind.startswith(_UNSTEADY) for node in condition.walk())
    if condition.kind in ("And", "Or"):
        return all(_stays(child) for child in condition.children)
    if condition.kind == "IsNotNull":
        return _rises(condition.children[0])
    if condition.kind in ("GreaterThan", "GreaterThanOrEqual"):
        more, less = condition.children
    elif condition.kind in ("LessThan", "LessThanOrEqual"):
        less, more = condition.children
    else:
        return False
    return _rises(more) and not _aggregates(less) and _stays(less)


def _rises(expression: Node) -> bool:
    return _aggregates(expression) and kind_of(expression).kind is ScoreKind.RISING


def _aggregates(expression: Node) -> bool:
    return any(node.kind == "AggregateExpression" for node in expression.walk())


def _final(why: str) -> Score:
    return Score(ScoreKind.FINAL, False, why)


def detector_plans(spark: SparkSession, project: Path, catalog: Catalog) -> tuple[dict[str, DetectorPlan], list[Fault]]:
    """Read the plan of each detector by name, and the faults: plans and patterns that Spark, Java or Tocsin refuses."""
    found: dict[str, DetectorPlan] = {}
    faults: list[Fault] = []
    for source in catalog.sources.values():
        faults += _pattern_faults(spark, project, source)
    for name, spec in without_elsewhere(catalog.detectors).items():
        try:
            found[name] = plan_of(spark, spec, catalog)
        except ConfigError as error:
            faults += error.faults
        except (PySparkException, Py4JJavaError) as error:  # it has no room for the plan, say
            faults.append(Fault(str(spec.path), f"Spark fails on its plan: {first_line(error)}", key=spec.function))
    return found, faults


def plan_of(spark: SparkSession, spec: DetectorSpec, catalog: Catalog) -> DetectorPlan:
    """Read the plan of the detector `spec`; ConfigError with all that Spark or Tocsin refuses in it."""
    sources = catalog.sources_of(spec)
    events = planned_events(spark, sources, spec, spec.path)
    rows = detector_function(spec, sources[0])(events, no_rows(spark, catalog, spec.tables, spec.path))
    with time_limit(spec.path):
        return read_plan(rows, spec, sources)


def _pattern_faults(spark: SparkSession, project: Path, source: Source) -> list[Fault]:
    try:
        rules = read_row_rules(project, source)
    except ConfigError:
        rules = ()  # reported already, without Spark
    try:
        check_source(spark, source, rules)
    except ConfigError as error:
        return list(error.faults)
    return []
