"""Train the model of a day on features of sealed days, in a process of its own; keep it if it passes the gate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from math import inf, isinf
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from pyspark.sql import DataFrame, SparkSession

from tocsin.declare.catalog import read_catalog
from tocsin.declare.code.own_modules import code_of
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import closed_before, exact_text
from tocsin.declare.model.source import Source
from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.detect.model_program import (
    FEATURES,
    MODEL,
    RESULT,
    SOURCE,
    RefusedModel,
    TrainingResult,
    TrainingTask,
)
from tocsin.detect.spark.ranges import EventReader, Range, features_in_range
from tocsin.history.places import begin, end
from tocsin.history.spark.sealed_days import with_tick
from tocsin.platform import child_process, state_file
from tocsin.platform.environments import python_in
from tocsin.spark.tables.dated_versions import DatedVersion, DatedVersions
from tocsin.spark.tables.model_files import ModelFacts, ModelFiles
from tocsin.spark.tables.published_table import arrow_schema, read_rows_of
from tocsin.spark.tables.spark.joined_tables import JoinedTables

MOST_ROWS = 5_000_000
_ERROR_LINES = 3
log = structlog.get_logger()


@dataclass(frozen=True)
class Training:
    """What the model of `day` is trained on: events of the days `used`, and which version is in force before it."""

    day: date
    events: DataFrame
    used: Sequence[date]
    before: DatedVersion | None = None
    tables: JoinedTables | None = None
    is_accepted: bool = False


def model_of(spark: SparkSession, settings: Settings, table: TableSpec, training: Training) -> pa.Table:
    """Train the model of a day, and keep its file; returns the row of `table` that names it.

    Raises:
        RefusedModel: `train` or `score` fails, takes too much, or the gate refuses the model; a retry helps after a
            change of the detector, or with other days.
        ConfigError: `detect` cannot be run. TransientError: the disk or the store takes no more.
    """
    catalog = read_catalog(settings.project)
    spec = catalog.detector(table.trains)
    features = _features(spark, spec, catalog.source(spec.sources[0]), training)
    files = ModelFiles.of(settings, spec.name)
    before = "" if training.before is None else hash_of(DatedVersions(settings, table), training.before)
    if training.is_accepted:
        spec = without_comparison(spec)
    content, result = train_on(spec, features, files, before)
    assert result.findings is not None, "it has passed the gate"
    used = training.used
    facts = ModelFacts(
        day=training.day, first=used[0], last=used[-1], days=len(used), code=str(table.sql), version=spec.version,
        bytes=len(content), trained_at=datetime.now(UTC),
        **result.model_dump(include=ModelFacts.model_fields.keys() & TrainingResult.model_fields.keys()),
    )  # fmt: skip
    files.add(content, result.hash, facts)
    if result.is_repeatable is False:
        log.warning("model is not repeatable", detector=spec.name, day=str(training.day))
    schema = arrow_schema(table)
    row = {"detector": [spec.name], "day": [str(training.day)], "hash": [result.hash]}
    return pa.table(row, pa.schema([schema.field(name) for name in table.columns]))


def without_comparison(spec: DetectorSpec) -> DetectorSpec:
    """Let the gate accept a model whatever it finds beside the one before, and on however few rows."""
    assert spec.model is not None, "asked for detectors with a model"
    return replace(spec, model=replace(spec.model, min_rows=1, max_change=inf))


def hash_of(versions: DatedVersions, version: DatedVersion) -> str:
    """Read which model `version` is. TransientError if it cannot be read."""
    return str(read_rows_of(versions.place(version))["hash"][0])


def train_on(
    spec: DetectorSpec, features: pa.Table, files: ModelFiles, before: str = "", text: bytes | None = None
) -> tuple[bytes, TrainingResult]:
    """Train on `features` in a process of its own; returns the model's file, and how it went.

    RefusedModel as for `model_of`. `before` is the hash of the model in force; a first one is trained twice.
    """
    assert spec.model is not None, "asked for detectors with a model"
    if features.num_rows > MOST_ROWS:
        what = f"more than {MOST_ROWS:,} rows of features; take longer windows, or fewer days"
        raise RefusedModel(f"{spec.path}: {what}")
    with tempfile.TemporaryDirectory(prefix="tocsin-train-") as name:
        folder = Path(name)
        pq.write_table(features, folder / FEATURES)
        (folder / SOURCE).write_bytes(code_of(spec.path) if text is None else text)
        task = TrainingTask(
            path=str(spec.path), place=files.place, entity=spec.entity, limit=spec.levels.lowest,
            min_rows=spec.model.min_rows, max_change=None if isinf(spec.model.max_change) else spec.model.max_change,
            before=before, memory=spec.model.memory, is_repeated=not before,
        )  # fmt: skip
        state_file.write(folder / "task.json", TrainingTask, task)
        result = _run(spec, folder)
        return (folder / MODEL).read_bytes(), result


def _run(spec: DetectorSpec, folder: Path) -> TrainingResult:
    assert spec.model is not None, "asked for detectors with a model"
    python = python_in(spec.path.parents[1], spec.environment) or sys.executable
    words = [*child_process.prefix(), str(python), "-m", "tocsin.detect.model_program", str(folder / "task.json")]
    # Threads of a numeric library take memory each, and add in another order.
    fixed = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1") | {"PYTHONHASHSEED": "0"}
    with (folder / "log").open("wb") as output:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ | fixed,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(spec.model.timeout.total_seconds())
        except subprocess.TimeoutExpired as error:
            what = f"training took longer than timeout = {exact_text(spec.model.timeout)}, and was ended"
            raise RefusedModel(f"{spec.path}: {what}; allow it more, or give it fewer rows") from error
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    result = state_file.read(folder / RESULT, TrainingResult, None)
    if result is None:
        last = (folder / "log").read_text(errors="replace").strip().splitlines()[-_ERROR_LINES:]
        what = f"the training ended with code {code} and no result; it may have needed more than memory ="
        raise RefusedModel(f"{spec.path}: {what} {spec.model.memory / 1e6:.0f} MB. {' '.join(last)}")
    if result.fault:
        raise RefusedModel(result.fault)
    return result


def _features(spark: SparkSession, spec: DetectorSpec, source: Source, training: Training) -> pa.Table:
    first, last = begin(training.used[0]), end(training.used[-1])
    reader = EventReader(lambda *_: with_tick(training.events), tables=lambda _: training.tables)
    # What reaches beyond the last day would be of a part of its events.
    wanted = Range(start=first, end=closed_before(spec, last), run_id="")
    rows = features_in_range(spark, reader, spec, [source], wanted)
    return rows.limit(MOST_ROWS + 1).toArrow()
