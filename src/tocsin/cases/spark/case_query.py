"""Make the query of a detector for its cases, by the functions of which its job and its backfill make theirs."""

from __future__ import annotations

import ast
import copy
import json
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tocsin.declare.catalog import Catalog
from tocsin.declare.code.python_syntax import parse
from tocsin.declare.model.detector import DetectorSpec, Span
from tocsin.declare.model.durations import EPOCH
from tocsin.declare.model.finding import Finding, Origin
from tocsin.declare.model.table import FROM, UNTIL, TableSpec
from tocsin.detect.spark.expected_windows import ClosedByBatch, Silence
from tocsin.detect.spark.findings import Emission, make_findings
from tocsin.detect.spark.plan import DetectorPlan, read_plan
from tocsin.detect.spark.ranges import EventReader, Range, features_in_range, find_in_range
from tocsin.detect.spark.step_query import detector_function
from tocsin.spark.events import (
    filter_early,
    first_filter,
    no_records,
    optimize,
    parse_events,
    prepare_events,
    used_columns,
)
from tocsin.spark.plan_tree import STRUCT, Node
from tocsin.spark.query_plan import analyse
from tocsin.spark.tables.model_files import ModelFiles
from tocsin.spark.tables.spark.joined_tables import JoinedTables, no_rows

_END = datetime(9999, 1, 1, tzinfo=UTC)
TableRow = tuple[dict[str, Any], datetime, datetime]
"""The columns of a row, and the times from which and until which it holds."""


@dataclass(frozen=True)
class LatestFindings:
    """The last version of each finding, by its identity."""

    findings: dict[str, Finding]

    @classmethod
    def of(cls, values: Iterable[str]) -> LatestFindings:
        """Read records of the findings topic, in the order in which they were written."""
        read = [Finding.model_validate_json(value) for value in values]
        return cls({finding.finding_id: finding for finding in read})


class CaseQuery:
    """The query of one detector.

    Attributes:
        reads_calendar: its cases cannot be moved to other dates.
        spans: the windows of each case, in its lane; set where entities are expected.
    """

    def __init__(self, spark: SparkSession, spec: DetectorSpec, catalog: Catalog) -> None:
        self.spec, self.source = spec, catalog.only_source(spec)
        self._spark = spark
        self.table_specs = [catalog.table(name) for name in spec.tables]
        self.function = detector_function(spec, self.source)
        self.spans: list[Span] = []
        self._files = tempfile.mkdtemp(prefix="tocsin-cases-")
        weakref.finalize(self, shutil.rmtree, self._files, ignore_errors=True)
        self._trained: dict[str, str] = {}
        self.tables = no_rows(spark, catalog, spec.tables, spec.path)
        rows = self._rows(no_records(spark), self.source.lateness, None)
        self.plan: DetectorPlan = read_plan(rows, spec)
        tree = analyse(rows)
        self.reads_calendar = reads_calendar(tree, spec)
        self.needed = read_columns(tree, spec, self.source.columns)
        optimized = optimize(rows)
        self.used = used_columns(optimized, [self.source])[self.source.name]
        self._early = None if spec.tables else first_filter(optimized)  # as a job does

    def set_tables(self, rows: Mapping[str, list[TableRow]]) -> None:
        """Put rows of tables in force, by table."""
        if self.table_specs:
            frames = {spec.name: (spec, self._frame(spec, rows.get(spec.name, []))) for spec in self.table_specs}
            self.tables = JoinedTables(self.spec.path, frames)
            self.tables.model_root = self._files

    def without_limits(self) -> CaseQuery:
        """Give the query that finds every score."""
        other = copy.copy(self)
        other.spec = self.spec.without_limits()
        return other

    def train(self, documents: list[dict[str, Any]]) -> str:
        """Train a model on records of the events topic, once; returns its hash. RefusedModel if that cannot be."""
        from tocsin.history.spark.model_training import train_on, without_comparison  # noqa: PLC0415 - needs pyarrow

        key = json.dumps(documents)
        if key not in self._trained:
            records = self._records(documents)
            read = EventReader(
                lambda *_: parse_events(records, self.source), is_exact=True, tables=lambda _: self.tables
            )
            everything = Range(start=EPOCH, end=_END, run_id="")
            features = features_in_range(self._spark, read, self.spec, [self.source], everything).toArrow()
            files = ModelFiles(f"{self._files}/{self.spec.name}")
            content, result = train_on(without_comparison(self.spec), features, files)
            files.add(content, result.hash)
            self._trained[key] = result.hash
        return self._trained[key]

    def stream(self, records: DataFrame, delay: timedelta, *, ladder: bool = False) -> DataFrame:
        """Make findings of a stream of records of the events topic, as the detector's job does; see `written`."""
        rows = filter_early(lambda early: self._rows(records, delay, self.used, early), self._early)
        return rows if self.spec.expect is not None else make_findings(rows, self.spec, Emission(ladder=ladder))

    def written(self, rows: DataFrame, batch: int, checkpoint: Path) -> list[str]:
        """Collect the findings of a micro-batch `rows` of `stream`, whose query has this `checkpoint`."""
        silence = Silence.of(self.spec)
        if silence is None:
            return [row.value for row in rows.select("value").collect()]
        kept = rows.persist()  # it is read twice
        try:
            closed = ClosedByBatch(silence, checkpoint, within=self.spans, tables=self.tables)
            made = closed.make_findings(kept, batch)
            return [] if made is None else [row.value for row in made.select("value").collect()]
        finally:
            kept.unpersist()

    def batch(self, documents: list[dict[str, Any]]) -> LatestFindings:
        """Find in records of the events topic as a backfill does; StreamOnly if it finds on the stream alone."""
        records = self._records(documents)
        read = EventReader(lambda *_: parse_events(records, self.source), is_exact=True, tables=lambda _: self.tables)
        # An exact reader leaves nothing out, and all timers fire.
        wanted = Range(start=EPOCH, end=_END, run_id="", origin=Origin.STREAM, spans=self.spans)
        return LatestFindings.of(
            row.value for row in find_in_range(self._spark, read, self.spec, [self.source], wanted).collect()
        )

    def _records(self, documents: list[dict[str, Any]]) -> DataFrame:
        # A file, since `createDataFrame` would import pandas and pass the rows through a Python worker.
        with tempfile.NamedTemporaryFile("w", dir=self._files, suffix=".json", delete=False, encoding="utf-8") as file:
            file.writelines(f"{json.dumps(document)}\n" for document in documents)
        return self._spark.read.text(file.name).coalesce(1)

    def _rows(
        self, records: DataFrame, delay: timedelta, used: frozenset[str] | None, early: str | None = None
    ) -> DataFrame:
        events = parse_events(records, self.source, used)
        return self.function(prepare_events(events, self.spec, delay, early=early), self.tables)

    def _frame(self, spec: TableSpec, rows: list[TableRow]) -> DataFrame:
        kinds = spec.columns | {FROM: "timestamp", UNTIL: "timestamp"}
        columns = ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())
        values = [(*(columns_.get(name) for name in spec.columns), since, until) for columns_, since, until in rows]
        return self._spark.createDataFrame(values, columns)


_TIMES = ("timestamp", "timestamp_ntz", "date")
_COMPARE = {"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Not"}
_NO_TIME = _COMPARE | {"And", "Or", "IsNull", "IsNotNull", "Count", "Size", "SubtractTimestamps"}
_INDIFFERENT = _NO_TIME | {
    "Alias", "AggregateExpression", "ArrayDistinct", "ArrayMax", "ArrayMin", "Coalesce", "CollectList", "CollectSet",
    "CreateArray", "CreateNamedStruct", "First", "GetArrayItem", "GetStructField", "Greatest", "HyperLogLogPlusPlus",
    "KnownNotNull", "KnownNullable", "Last", "Least", "Max", "MaxBy", "Min", "MinBy", "Slice", "SortArray",
}  # fmt: skip
"""What gives the same of times that are moved by some weeks, or is moved with them."""

_PASSING = ("projectList", "aggregateExpressions", "projections", "output")
"""Fields of operators whose columns go on as they are."""

_OF_DATETIME = {
    "astimezone", "ctime", "date", "datetime", "day", "fold", "fromisoformat", "fromtimestamp", "hour", "isocalendar",
    "isoformat", "isoweekday", "microsecond", "minute", "month", "replace", "second", "strftime", "strptime",
    "timestamp", "timetuple", "timetz", "toordinal", "tzinfo", "utctimetuple", "weekday", "year", "ZoneInfo",
}  # fmt: skip


_OPEN = {"getattr", "vars", "__dict__", "__getattribute__"}
"""What reads attributes that the code does not name."""


class _Names(NamedTuple):
    """The names in the code of a `step`: attributes, functions that it calls, and all its texts."""

    attributes: set[str]
    called: set[str]
    texts: set[str]

    @classmethod
    def of(cls, spec: DetectorSpec) -> _Names:
        names = cls(set(), set(), set())
        for node in ast.walk(parse(spec.code)):
            match node:
                case ast.Attribute(attr=name):
                    names.attributes.add(name)
                case ast.Call(func=ast.Name(id=name)):
                    names.called.add(name)
                case ast.Constant(value=str(text)):
                    names.texts.add(text)
        return names


def reads_calendar(plan: Node, spec: DetectorSpec) -> bool:
    """Return whether what `spec`, with this analysed plan, finds may depend on dates, not on distances alone."""
    if spec.has_step:
        code = _Names.of(spec)
        return not _OF_DATETIME.isdisjoint(code.attributes | code.called)
    if spec.time_zone:
        return True
    return any(_depends(top) for node in plan.walk() for top in node.expressions())


def read_columns(plan: Node, spec: DetectorSpec, columns: Collection[str]) -> set[str]:
    """Name those of `columns` that decide what `spec` finds, not those that only pass into the context of a finding."""
    if spec.has_step:
        code = _Names.of(spec)
        is_open = not (code.called | code.attributes).isdisjoint(_OPEN)
        return set(columns) if is_open else {*spec.entity, *code.attributes, *code.texts} & set(columns)
    made: dict[int, str] = {}  # the columns by the numbers that Spark gives them, renamed or not
    for node in reversed(list(plan.walk())):
        for top in node.expressions("projectList", "aggregateExpressions"):
            if top.identity is not None and (name := _passes(top, made, columns)):
                made[top.identity] = name
    read = {
        made[attribute.identity or -1]
        for node in plan.walk()
        for attribute in _decisive(node)
        if attribute.identity in made
    }
    return read | ({*spec.entity} & set(columns))


def _passes(top: Node, made: dict[int, str], columns: Collection[str]) -> str:
    inner = top.children[0] if top.kind == "Alias" else top
    if inner.kind == "GetStructField" and inner.children[0].name.startswith(STRUCT):
        return top.name if top.name in columns else ""
    return made.get(inner.identity or -1, "") if inner.kind == "AttributeReference" else ""


def _decisive(node: Node) -> Iterator[Node]:
    for field in node.fields:
        for top in node.expressions(field):
            inner = top.children[0] if top.kind == "Alias" else top
            passes = field in _PASSING and inner.kind == "AttributeReference"
            if not passes:
                yield from (inner for inner in top.walk() if inner.kind == "AttributeReference")


def _depends(node: Node) -> bool:
    if node.kind == "Literal":
        return _is_time(node)
    if node.kind in ("JsonToStructs", "PreciseTimestampConversion"):  # the record itself, and windows as declared
        return False
    has_time = any(_carries_time(child) for child in node.children)
    return (has_time and node.kind not in _INDIFFERENT) or any(map(_depends, node.children))


def _carries_time(node: Node) -> bool:
    if node.kind in _NO_TIME:
        return False
    return _is_time(node) or (node.kind in _INDIFFERENT and any(map(_carries_time, node.children)))


def _is_time(node: Node) -> bool:
    kind = node.fields.get("dataType")
    return kind in _TIMES if isinstance(kind, str) else any(repr(time) in repr(kind) for time in _TIMES)
