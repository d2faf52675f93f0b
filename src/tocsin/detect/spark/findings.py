"""Make the rows of a detector records of the `findings` topic; the same expressions for a stream and for history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType

from tocsin.declare.model.detector import DetectorSpec, Levels, Span
from tocsin.declare.model.finding import CUT, MAX_EVIDENCE, Origin, next_rung
from tocsin.declare.model.sizes import BEGINNING, DIGEST, FINDING_BYTES, RECORD_OVERHEAD, SAMPLE_BYTES, TEXT_BYTES
from tocsin.detect.stepper import MOST_FAULTS, UNTOLD
from tocsin.spark.columns import JSON_TIMES, any_null, own_column
from tocsin.spark.events import IDENTITY
from tocsin.spark.window_column import is_whole

OBSERVATION = "findings"
WRITTEN = "written"
STEPS = "steps"
FAULTS = "step_faults"
"""Observed with `step`: some of the events that it failed on, as JSON."""
ABOVE = ("above_start", "above_end")
"""Observed with the ladder: first start and last end of windows above the highest limit, microseconds since 1970."""

SCORE_TIMES = ("window_start", "window_end")

_LARGEST_RUNG = 10**9
_OF_FIXED_SIZE = (BooleanType, DateType, NumericType, TimestampNTZType, TimestampType)


@dataclass(frozen=True, kw_only=True)
class Emission:
    """The choice of values that become findings.

    Attributes:
        ladder: above the highest limit only about each +10 % is written, as a lower bound; right only for a count
            that is emitted at each of its values.
        publish_from: windows that start before it are left out (events before it were not read); None for all.
        incomplete: windows that share time with one of these spans are left out, and what `step` finds in them: events
            are missing.
        observed: takes what a batch tells of `step`; None for a stream, where the observation `steps` has it.
    """

    ladder: bool = False
    publish_from: datetime | None = None
    incomplete: tuple[Span, ...] = ()
    origin: Origin = Origin.STREAM
    run_id: str = ""
    observed: Observation | None = None


def rungs(highest: float) -> Iterator[int]:
    """Yield the counts above the limit `highest` that are written: the first, then each about 10 % above the last."""
    rung = int(highest) + 1
    while rung <= _LARGEST_RUNG:
        yield rung
        rung = next_rung(rung)


def make_findings(rows: DataFrame, spec: DetectorSpec, emission: Emission) -> DataFrame:
    """Make records of those of `rows` above a limit: `key` (finding_id), `value` (JSON of a `Finding`).

    `rows` is what the function of `spec` returned. Those whose entity or score is null or not finite are left out, and
    counted by the observation `findings` as `null_entity` and `null_score`. What senders decide about is bounded as the
    contract says; a finding that is longer than its topic takes all the same is left out, and counted by the
    observation `written` as `too_long`.
    """
    if spec.has_step:
        return _bounded(_emitted_by_step(rows, emission))
    named, score, valid = _judged(spec)
    counted = rows.observe(
        OBSERVATION,
        F.count_if(named).alias("null_entity"),
        F.count_if(~valid).alias("null_score"),
        *(_edges_above(score, spec, emission) if emission.ladder and spec.window is not None else ()),
    )
    emitted = counted.where(~named & valid & _is_emitted(score, spec, emission))
    document = _document(rows, spec, emission, score)
    fields = emitted.select(_finding_id(spec).alias("finding_id"), *document)
    written = fields.select(F.col("finding_id").alias("key"), F.to_json(F.struct("*"), JSON_TIMES).alias("value"))
    return _bounded(written)


def make_scores(rows: DataFrame, spec: DetectorSpec, observed: Observation | None = None) -> DataFrame:
    """Make of each of `rows` above a limit the columns of its entity, as text, `window_start`, `window_end`, `score`.

    Without windows both times are that of the event. Rows whose entity or score is null or not finite are left out.
    `observed` is as for `Emission`.
    """
    if spec.has_step:
        fields = "entity map<string, string>, score double, event_time_max timestamp"
        found = _found_by_step(rows, observed).select(F.from_json("value", fields).alias("found"))
        entity = [F.col("found.entity").getItem(name).alias(name) for name in spec.entity]
        times = [F.col("found.event_time_max").alias(edge) for edge in SCORE_TIMES]
        return found.select(*entity, *times, "found.score")
    named, score, valid = _judged(spec)
    moment = F.col("event_time_max" if "event_time_max" in rows.columns else "event_time")
    edges = (moment, moment) if spec.window is None else (F.col("window.start"), F.col("window.end"))
    # What is counted stands between: Spark would ask Python functions once for the filter and once for the rows.
    counted = rows.observe("scores", F.count("*").alias("rows"))
    return counted.where(~named & valid & (score > F.lit(float(spec.levels.lowest)))).select(
        *(F.col(name).cast("string").alias(name) for name in spec.entity),
        *(edge.alias(name) for edge, name in zip(edges, SCORE_TIMES, strict=True)),
        score.alias("score"),
    )


def _judged(spec: DetectorSpec) -> tuple[Column, Column, Column]:
    score = F.col("score").cast("double")
    valid = score.isNotNull() & ~F.isnan(score) & (F.abs(score) != float("inf"))
    return any_null([F.col(name) for name in spec.entity]), score, F.coalesce(valid, F.lit(False))


def _found_by_step(rows: DataFrame, observed: Observation | None) -> DataFrame:
    failed = F.col("fault").isNotNull()
    faults = F.slice(F.collect_list(F.when(F.col("fault") != UNTOLD, F.struct("place", "fault"))), 1, MOST_FAULTS)
    counted = rows.observe(
        observed or STEPS,
        F.count_if("unscored").alias("null_score"),
        F.count_if(failed).alias("failed_in_step"),
        F.to_json(faults).alias(FAULTS),
    )
    return counted.where(F.col("key").isNotNull())


def _emitted_by_step(rows: DataFrame, emission: Emission) -> DataFrame:
    found = _found_by_step(rows, emission.observed)
    if emission.publish_from is not None:
        found = found.where(F.col("at") >= F.unix_micros(F.lit(emission.publish_from)))
    for since, until in emission.incomplete:
        found = found.where(~F.col("at").between(F.unix_micros(F.lit(since)), F.unix_micros(F.lit(until))))
    start = json.dumps({"origin": emission.origin.value, "run_id": emission.run_id})
    return found.select("key", F.concat(F.lit(f"{start[:-1]}, "), F.expr("substring(value, 2)")).alias("value"))


def _bounded(written: DataFrame) -> DataFrame:
    fits = F.octet_length("value") <= FINDING_BYTES - RECORD_OVERHEAD
    return written.observe(WRITTEN, F.count_if(~fits).alias("too_long")).where(fits)


def _is_emitted(score: Column, spec: DetectorSpec, emission: Emission) -> Column:
    emitted = score > F.lit(float(spec.levels.lowest))
    if emission.ladder:
        on_rung = F.col("score").cast("bigint").isin(list(rungs(spec.levels.highest)))
        emitted = emitted & ((score <= F.lit(float(spec.levels.highest))) | on_rung)
    if emission.publish_from is not None and spec.window is not None:
        emitted = emitted & (F.col("window.start") >= F.lit(emission.publish_from))
    return emitted if spec.window is None else emitted & is_whole(emission.incomplete)


def _edges_above(score: Column, spec: DetectorSpec, emission: Emission) -> list[Column]:
    above = score > F.lit(float(spec.levels.highest))
    if emission.publish_from is not None:
        above &= F.col("window.start") >= F.lit(emission.publish_from)
    first, last = (F.when(above, F.unix_micros(F.col(f"window.{edge}"))) for edge in ("start", "end"))
    return [F.min(first).alias(ABOVE[0]), F.max(last).alias(ABOVE[1])]


def _document(rows: DataFrame, spec: DetectorSpec, emission: Emission, score: Column) -> list[Column]:
    columns = rows.columns
    windowed = spec.window is not None
    used = {*spec.entity, "score", "window", "event_time_max", "evidence", "ingested_at", "source", "schema_version"}
    used |= set() if windowed else {*IDENTITY, "event_time"}
    evidence = F.slice("evidence", 1, MAX_EVIDENCE) if "evidence" in columns else None
    context = _context(rows, [name for name in columns if name not in used], evidence)
    latest = "event_time_max" if windowed or "event_time_max" in columns else "event_time"
    at_least = score > F.lit(float(spec.levels.highest)) if emission.ladder else F.lit(False)
    fields = {
        "detector": F.lit(spec.name),
        "version": F.lit(spec.version),
        "entity": F.struct(*[_shorten(F.col(name).cast("string")).alias(name) for name in spec.entity]),
        "level": _by_level(spec.levels, score, "urgent", "email"),
        "score": score,
        "limit": _by_level(spec.levels, score, spec.levels.urgent, spec.levels.email),
        "at_least": at_least,
        "origin": F.lit(emission.origin.value),
        "run_id": F.lit(emission.run_id),
        "discriminator": F.lit("") if windowed else _event_identity(),
    }
    if windowed:
        fields |= {"window_start": F.col("window.start"), "window_end": F.col("window.end")}
    if latest in columns:
        fields["event_time_max"] = F.col(latest)
    if evidence is not None:
        fields["evidence"] = F.coalesce(F.filter(evidence, _is_short), F.array())
    if context:
        fields["context"] = F.struct(*context)
    return [column.alias(name) for name, column in fields.items()]


def _context(rows: DataFrame, names: list[str], evidence: Column | None) -> list[Column]:
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    columns: list[Column] = []
    cut: list[tuple[str, Column]] = []
    if evidence is not None:
        cut.append(("evidence", F.exists(evidence, lambda sample: ~_is_short(sample))))
    for name in names:
        column = own_column(name)
        if isinstance(kinds[name], StringType):
            column = _shorten(column)
        elif not isinstance(kinds[name], _OF_FIXED_SIZE):
            column, long = F.when(_is_short(column), column), column.isNotNull() & ~_is_short(column)
            cut.append((name, long))
        columns.append(column.alias(name))
    if cut:
        cut_names = F.array_compact(F.array(*[F.when(long, F.lit(name)) for name, long in cut]))
        columns.append(F.when(F.size(cut_names) > 0, cut_names).alias(CUT))
    return columns


def _is_short(value: Column) -> Column:
    return F.octet_length(F.to_json(F.array(value), JSON_TIMES)) <= SAMPLE_BYTES + len("[]")


def _shorten(text: Column) -> Column:
    length, digest = F.octet_length(text), F.left(F.sha2(text, 256), F.lit(DIGEST))
    mark = F.concat(F.lit("…["), length.cast("string"), F.lit(" bytes, sha256 "), digest, F.lit("]"))
    return F.when(length > TEXT_BYTES, F.concat(F.left(text, F.lit(BEGINNING)), mark)).otherwise(text)


def _by_level(levels: Levels, score: Column, urgent: object, email: object) -> Column:
    if levels.urgent is None:
        return F.lit(email)
    above = F.when(score > F.lit(float(levels.urgent)), F.lit(urgent))
    return above if levels.email is None else above.otherwise(F.lit(email))


def _finding_id(spec: DetectorSpec) -> Column:
    """Compute `finding_id` by an expression: Spark's JSON writer and canonical_entity give the same text."""
    entity = F.to_json(F.struct(*[F.col(name).cast("string").alias(name) for name in sorted(spec.entity)]))
    if spec.window is None:
        parts = [F.lit(""), F.lit(""), _event_identity()]
    else:
        edges = [F.unix_micros(F.col(f"window.{edge}")).cast("string") for edge in ("start", "end")]
        parts = [*edges, F.lit("")]
    text = F.concat_ws("\n", F.lit(spec.name), entity, *parts)
    return F.substring(F.sha2(text, 256), 1, 32)


def _event_identity() -> Column:
    return F.concat_ws("/", *[F.col(name).cast("string") for name in IDENTITY])
