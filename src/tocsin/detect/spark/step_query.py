"""The function of a detector on DataFrames, `detect` or `step`: events in, what comes of them out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import EPOCH, MICROSECOND
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Source
from tocsin.detect.spark.model_scores import scored_function
from tocsin.detect.spark.step_processor import OUTCOMES, StepProcessor, outcome_columns
from tocsin.detect.step_program import StepProgram
from tocsin.detect.stepper import KeyState, PlacedEvent, StepOutcome, Stepper, StepTask
from tocsin.spark.columns import JSON_TIMES, any_null
from tocsin.spark.declared_function import DeclaredFunction, QueryFunction
from tocsin.spark.events import IDENTITY, SourceEvents, rows_of
from tocsin.spark.tables.spark.joined_tables import JoinedTables

if TYPE_CHECKING:
    import pyarrow as pa

NULL_ENTITY = "null_entity"
_ROWS = 1_000
_PLACE = (("topic", ""), ("partition", 0), ("offset", 0))  # with what stands for null: a record may be anybody's
_ORDER = tuple(name for name, _ in _PLACE)
_NAMES = frozenset({*IDENTITY, "event_time"})
_KEEP_EVENTS = {"Project", "Filter", "SubqueryAlias", "Join", "Generate", "ResolvedHint"}
"""Operators of which each row comes from one row of their first child."""


def detector_function(
    spec: DetectorSpec, source: Source, *, until: datetime | None = None, text: bytes | None = None
) -> QueryFunction:
    """Load the function of `spec`: `detect`, or `step` made a function of DataFrames.

    On a static DataFrame timers before `until` fire; with None, those alone that an event follows. `text` is that of
    its file; None for what it holds now. Raises a ConfigError if the file cannot be run.
    """
    if spec.model is not None:
        return scored_function(spec, text)
    if not spec.has_step:
        declared = DeclaredFunction(spec.path, spec.function, text)
        if spec.expect is not None and spec.expect.table and not declared.takes_tables:
            return lambda events, _: declared(events)
        return declared if spec.window is not None else lambda *arguments: _with_identity(declared(*arguments))
    if len(spec.sources) > 1:
        raise ConfigError.one(spec.path, "declares several sources; step reads one", key="source")
    return _StepFunction(StepTask.of(spec, source.columns, text), spec.tables, until)


class _StepFunction:
    def __init__(self, task: StepTask, tables: tuple[str, ...], until: datetime | None) -> None:
        self._task, self._tables = task, tables
        StepProgram(task.path, task.text)  # what is wrong with it is told here, and not by a worker
        self._until = None if until is None else (until - EPOCH) // MICROSECOND - 1

    def __call__(self, events: DataFrame | SourceEvents, tables: JoinedTables | None = None) -> DataFrame:
        """Run it: columns are `OUTCOMES`. Events with a null in the entity are counted and left out."""
        assert isinstance(events, DataFrame), "step has one source"
        task = self._task
        for table in self._tables:
            assert tables is not None, "what is declared was opened"
            events = tables.join(events, table)
            task = replace(task, columns=task.columns | tables.added_columns(table))
        entity = [F.col(name) for name in task.entity]
        named = any_null(entity)
        counted = events.observe(NULL_ENTITY, F.count_if(named).alias("null_entity")).where(~named)
        keys = [f"entity_{number}" for number in range(len(entity))]
        rows = counted.select(
            *(column.cast("string").alias(name) for column, name in zip(entity, keys, strict=True)),
            "event_time",
            F.unix_micros("event_time").alias("at"),
            *(
                F.coalesce(F.col(name), F.lit(none)).alias(short)
                for name, (short, none) in zip(IDENTITY, _PLACE, strict=True)
            ),
            F.to_json(F.struct(*task.columns), JSON_TIMES).alias("columns"),
        )
        if events.isStreaming:
            grouped = rows.groupBy(*keys)
            return grouped.transformWithState(StepProcessor(task), OUTCOMES, "Append", "EventTime")
        ordered = rows.repartition(*keys).sortWithinPartitions(*keys, "at", *_ORDER)
        run = _PartitionRun(task, len(keys), self._until)
        return ordered.select(*keys, "at", *_ORDER, "columns").mapInArrow(run, OUTCOMES)


class _PartitionRun:
    """Runs `step` over one partition of history, sorted by entity, time and identity: one batch of rows in memory."""

    def __init__(self, task: StepTask, keys: int, until: int | None) -> None:
        self._task, self._keys, self._until = task, keys, until

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: list[StepOutcome] = []
        for outcome in self._outcomes(_rows(batches)):
            found.append(outcome)
            if len(found) == _ROWS:
                yield _batch(found)
                found = []
        yield _batch(found)

    def _outcomes(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[StepOutcome]:
        stepper = Stepper(self._task)
        for key, events in groupby(rows, lambda row: row[: self._keys]):
            kept = KeyState()
            for row in events:
                yield from stepper.take(key, kept, PlacedEvent(*row[self._keys :]))
            if self._until is not None:
                yield from stepper.pass_time(key, kept, self._until)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _batch(found: list[StepOutcome]) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - 80 MB and 5 s, which other detectors need not spend

    kinds = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}
    fields = [(name, kinds[kind]) for name, kind in (column.split() for column in OUTCOMES.split(", "))]
    columns = zip(*map(outcome_columns, found), strict=True) if found else [[] for _ in fields]
    arrays = [pa.array(list(values), kind) for values, (_, kind) in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields])


def _with_identity(rows: DataFrame) -> DataFrame:
    jvm: Any = rows.sparkSession._jvm
    plan = _kept(jvm, rows._jdf.queryExecution().analyzed())
    return rows if plan is None else rows_of(plan, rows.sparkSession)


def _kept(jvm: Any, plan: Any) -> Any:
    own = {column.name() for column in _items(plan.output())}
    if own >= _NAMES:
        return plan
    if plan.nodeName() not in _KEEP_EVENTS:
        return None
    first, *others = _items(plan.children())
    below = _kept(jvm, first)
    if below is None:
        return None
    if plan.nodeName() != "Project":
        return plan.withNewChildren(_sequence(jvm, [below, *others]))
    missing = [column for column in _items(below.output()) if column.name() in _NAMES - own]
    columns = _sequence(jvm, [*_items(plan.projectList()), *missing])
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, below)


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _sequence(jvm: Any, items: list[Any]) -> Any:
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(items)
