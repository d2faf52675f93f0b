"""Judge the rows of closed windows by the model that holds when they begin: one path for stream and history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.detect.model_program import checked_scores, feature_frame
from tocsin.spark.columns import any_null
from tocsin.spark.declared_function import DeclaredFunction, QueryFunction, load_declared
from tocsin.spark.events import SourceEvents
from tocsin.spark.tables.model_files import ModelFiles
from tocsin.spark.tables.spark.joined_tables import MODEL_DAY, MODEL_HASH, JoinedTables

if TYPE_CHECKING:
    import pyarrow as pa

MODEL = "model"
"""The column, and so the fact in a finding's context, with the day and the hash of the model that judged it."""
_ADDED = ("score", MODEL, "window_start")
_NO_FEATURES = ("window", "evidence", "event_time_max")


def feature_function(spec: DetectorSpec, text: bytes | None = None) -> QueryFunction:
    """Load `detect` of a detector with a model: it gives features, without a score. ConfigError as for the file."""
    declared = DeclaredFunction(spec.path, spec.function, text)

    def apply(events: DataFrame | SourceEvents, tables: JoinedTables | None = None) -> DataFrame:
        rows = declared(events, tables) if len(spec.tables) > 1 else declared(events)
        needed = ["window", *spec.entity]
        faults = [f"returns no column '{name}'" for name in needed if name not in rows.columns]
        faults += [f"returns a column '{name}', which the platform adds" for name in _ADDED if name in rows.columns]
        if faults:
            raise ConfigError([Fault(str(spec.path), f"detect {fault}", key="detect") for fault in faults])
        return rows

    return apply


def scored_function(spec: DetectorSpec, text: bytes | None = None) -> QueryFunction:
    """Load `detect` and `score`: rows with the score of the model that holds, and which that is.

    The score is null where no model holds yet, and where the entity is null.
    """
    features = feature_function(spec, text)
    score = load_declared(spec.path, "score", text)

    def apply(events: DataFrame | SourceEvents, tables: JoinedTables | None = None) -> DataFrame:
        assert tables is not None, "the table of its models is declared"
        rows = features(events, tables)
        judged = tables.holding_models(rows, spec.model_table)
        names = [name for name in rows.columns if name not in _NO_FEATURES]
        frame = F.struct(F.col("window.start").alias("window_start"), *names)
        judge = _Judge(score, ModelFiles(f"{tables.model_root}/{spec.name}"), spec.path)
        is_known = ~any_null([F.col(name) for name in spec.entity])
        udf = F.arrow_udf(_annotated(judge), "double")  # type: ignore[attr-defined]
        value = udf(frame, F.when(is_known, F.col(MODEL_HASH)))
        model = F.concat_ws(" ", MODEL_DAY, F.left(MODEL_HASH, F.lit(12)))
        return judged.withColumns({"score": value, MODEL: model}).drop(MODEL_DAY, MODEL_HASH)

    return apply


def features_of(rows: DataFrame, spec: DetectorSpec) -> DataFrame:
    """Give the columns of `rows`, of `feature_function`, that `train` and `score` get; rows without an entity fall."""
    names = [name for name in rows.columns if name not in _NO_FEATURES]
    known = rows.where(~any_null([F.col(name) for name in spec.entity]))
    return known.select(F.col("window.start").alias("window_start"), *names)


class _Judge:
    """Scores one Arrow batch, in a Python worker."""

    def __init__(self, score: Callable[..., Any], files: ModelFiles, path: Path) -> None:
        self._score, self._files, self._path = score, files, path

    def __call__(self, rows: pa.Array, hashes: pa.Array) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415 - as in step_query
        import pyarrow.compute as pc  # noqa: PLC0415 - as in step_query

        table = pa.Table.from_struct_array(rows)
        scores = pa.nulls(len(rows), pa.float64())
        for digest in pc.unique(hashes.drop_null()).to_pylist():
            own = pc.fill_null(pc.equal(hashes, digest), False)
            frame = feature_frame(table.filter(own))
            found = checked_scores(self._score(frame, self._files.load(digest)), len(frame), str(self._path))
            scores = pc.replace_with_mask(scores, own, pa.array(found, pa.float64(), from_pandas=True))
        return scores


def _annotated(judge: _Judge) -> Callable[..., Any]:
    import pyarrow as pa  # noqa: PLC0415 - as in step_query

    def score(rows: Any, hashes: Any) -> Any:
        return judge(rows, hashes)

    score.__annotations__ = dict.fromkeys(("rows", "hashes", "return"), pa.Array)
    return score
