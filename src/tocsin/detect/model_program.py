"""Train a model in a process of its own, whose time and memory are bounded: `python -m tocsin.detect.model_program`.

Reads a `TrainingTask` from its first argument, a file, and writes the model and a `TrainingResult` beside it. Besides
training it judges the model: whether it is repeatable, what its scores are, and what it finds beside the one before.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tocsin.declare.model.errors import TocsinError
from tocsin.platform import state_file
from tocsin.quality.data_drift import FEWEST, band
from tocsin.spark.declared_function import load_module, pickle_by_value
from tocsin.spark.tables.model_files import Findings, ModelFiles

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

FEATURES, MODEL, RESULT, SOURCE = "features.parquet", "model.pickle", "result.json", "detector.py"
_SAMPLE = 10_000
_RECENT_DAYS = 7
_SHOWN = 5
_SAME = 1e-9


class RefusedModel(TocsinError):
    """A model does not pass the gate, or cannot be trained; the model before stays in force."""


class TrainingTask(BaseModel, frozen=True):
    """What to train; files lie beside it.

    Attributes:
        is_repeated: train twice, to compare.
    """

    path: str
    place: str
    entity: tuple[str, ...]
    limit: float
    min_rows: int
    max_change: float | None = None
    before: str = ""
    memory: int
    is_repeated: bool = False


class TrainingResult(BaseModel, frozen=True):
    """The outcome: a fault, or what was made."""

    fault: str = ""
    hash: str = ""
    rows: int = 0
    packages: dict[str, str] = {}
    seconds: float = 0.0
    memory: int = 0
    is_repeatable: bool | None = None
    drifted: tuple[str, ...] = ()
    findings: Findings | None = None


def feature_frame(table: pa.Table) -> pd.DataFrame:
    """Make of Arrow the frame that `train` and `score` get: times are UTC, null numbers NaN."""
    frame: pd.DataFrame = table.to_pandas()
    return frame.reset_index(drop=True)


def checked_scores(found: Any, rows: int, where: str) -> np.ndarray:
    """Return what `score` gave for so many `rows` as floats; NaN is no score.

    RefusedModel if they are not as many, or no numbers.
    """
    import numpy as np  # noqa: PLC0415 - as in step_query

    shown = f"{where}: score returned"
    try:
        count = len(found)
    except TypeError as error:
        what = f"{shown} {type(found).__name__}; return a number for each row of features"
        raise RefusedModel(what) from error
    if count != rows:
        raise RefusedModel(f"{shown} {count} values for {rows} rows of features; return one for each, in their order")
    values = np.asarray(found)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        try:
            if any(isinstance(value, str | bytes) for value in values.ravel()):
                raise ValueError("texts")
            values = values.astype(float).reshape(rows)
        except (TypeError, ValueError) as error:
            raise RefusedModel(f"{shown} values that are no numbers ({values.dtype}); return floats") from error
    return np.asarray(values, dtype=float)


def train(task: TrainingTask, folder: Path) -> TrainingResult:
    """Train, judge, and write the model into `folder`. RefusedModel with what is wrong."""
    import pyarrow.parquet as pq

    frame = feature_frame(pq.read_table(folder / FEATURES))
    if len(frame) < task.min_rows:
        raise RefusedModel(f"{len(frame)} rows of features, and min_rows = {task.min_rows}; seal more days")
    # Spark gives rows in any order, and what is trained may depend on it.
    frame = frame.sort_values(["window_start", *task.entity], kind="stable", ignore_index=True)
    module = load_module(Path(task.path), (folder / SOURCE).read_bytes())
    functions: dict[str, Callable[..., Any]] = {name: getattr(module, name) for name in ("train", "score")}
    began = time.monotonic()
    model = _trained(functions["train"], frame, task.path)
    seconds = time.monotonic() - began
    content = _pickled(model, task.path)
    (folder / MODEL).write_bytes(content)
    sample = frame.iloc[:: max(1, len(frame) // _SAMPLE)].reset_index(drop=True)
    score = functions["score"]
    found = _scores(score, sample, model, task.path)
    is_repeatable = None
    if task.is_repeated:
        again = _scores(score, sample, _trained(functions["train"], frame, task.path), task.path)
        is_repeatable = bool(abs(found - again).max() <= _SAME * max(1.0, abs(found).max()))
    drifted = _drifted(frame, task.entity)
    if drifted and task.max_change is not None:
        what = f"features have drifted in the last {_RECENT_DAYS} days: {', '.join(drifted)}"
        raise RefusedModel(f"{what}; if that is meant to be, tocsin model train NAME --accept")
    findings = _findings(score, frame, model, task)
    _check_change(findings, task.max_change)
    return TrainingResult(
        hash=hashlib.sha256(content).hexdigest(),
        rows=len(frame),
        packages=_packages(module),
        seconds=round(seconds, 3),
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        is_repeatable=is_repeatable,
        drifted=drifted,
        findings=findings,
    )


def _trained(function: Callable[..., Any], frame: pd.DataFrame, path: str) -> Any:
    import numpy as np  # noqa: PLC0415 - as in step_query

    random.seed(0)
    np.random.seed(0)
    model = function(frame.copy())
    if model is None:
        raise RefusedModel(f"{path}: train returned nothing; return the model")
    return model


def _pickled(model: Any, path: str) -> bytes:
    try:
        content = pickle_by_value(model)
    except Exception as error:
        what = f"{path}: train returned {type(model).__name__}, which cannot be pickled: {error}"
        raise RefusedModel(f"{what}; return plain values, arrays, or a model of a library") from error
    return content


def _scores(score: Callable[..., Any], frame: pd.DataFrame, model: Any, path: str) -> np.ndarray:
    import numpy as np  # noqa: PLC0415 - as in step_query

    found = checked_scores(score(frame.copy(), model), len(frame), path)
    if not np.isfinite(found).all():
        count = int((~np.isfinite(found)).sum())
        what = f"{path}: {count} of {len(found)} scores are NaN or infinite"
        raise RefusedModel(f"{what}; fill in null features, or leave such windows out in detect")
    return found


def _drifted(frame: pd.DataFrame, entity: tuple[str, ...]) -> tuple[str, ...]:
    """Name the features whose median or share of nulls of the last days is far from that of the days before."""
    import pandas as pd

    days = frame["window_start"].dt.floor("D")
    names = [name for name in frame.columns if name not in entity and pd.api.types.is_numeric_dtype(frame[name])]
    numbers = frame[names].astype(float)
    daily = {"median": numbers.groupby(days).median(), "null_ratio": numbers.isna().groupby(days).mean()}
    drifted = []
    for figure, values in daily.items():
        before, recent = values.iloc[:-_RECENT_DAYS], values.iloc[-_RECENT_DAYS:]
        if len(before) < FEWEST * _RECENT_DAYS:
            continue
        for name in names:
            usual = band(figure, before[name].dropna().tolist() or [0.0])
            now = recent[name].median()
            if not usual.low <= now <= usual.high and not pd.isna(now):
                drifted.append(f"{name} ({figure} {now:.4g}, usually {usual.low:.4g} to {usual.high:.4g})")
    return tuple(drifted)


def _findings(score: Callable[..., Any], frame: pd.DataFrame, model: Any, task: TrainingTask) -> Findings:
    import pandas as pd

    last = frame["window_start"].max().floor("D") - pd.Timedelta(days=_RECENT_DAYS - 1)
    recent = frame[frame["window_start"] >= last].reset_index(drop=True)
    days = recent["window_start"].dt.floor("D").nunique()
    new = _scores(score, recent, model, task.path) > task.limit
    if not task.before:
        return Findings(days=days, new=int(new.sum()))
    try:
        old = _scores(score, recent, ModelFiles(task.place).load(task.before), task.path) > task.limit
    except Exception as error:  # the file may be gone, or of another code: the new one is then to take its place
        print(f"the model before cannot be compared: {error}", file=sys.stderr)
        return Findings(days=days, new=int(new.sum()))
    names = [", ".join(map(str, row)) for row in recent[["window_start", *task.entity]].itertuples(index=False)]

    def some(chosen: Any) -> tuple[str, ...]:
        return tuple(name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen)[:_SHOWN]

    return Findings(days=days, new=int(new.sum()), old=int(old.sum()), appear=some(new & ~old), vanish=some(old & ~new))


def _check_change(findings: Findings, most: float | None) -> None:
    if findings.old is None or most is None:
        return
    new, old = findings.new + 1, findings.old + 1  # so that none and a few are alike
    if max(new / old, old / new) > most:
        what = f"finds {findings.new} windows in the last {findings.days} days, where the model before finds"
        what += f" {findings.old}: more than max_change = {most:g} times"
        raise RefusedModel(f"{what}; if that is meant to be, tocsin model train NAME --accept")


def _packages(module: Any) -> dict[str, str]:
    """List the versions of the packages that are loaded and that the file imports, directly."""
    owners = importlib.metadata.packages_distributions()
    roots = {getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in vars(module).values()}
    names = {name.partition(".")[0] for name in roots if isinstance(name, str)} | {"numpy", "pandas"}
    found = {owner for name in names & sys.modules.keys() for owner in owners.get(name, ())}
    return {name: importlib.metadata.version(name) for name in sorted(found)}


def main() -> None:
    """Do the task in the file that is the first argument."""
    file = Path(sys.argv[1])
    task = state_file.load(file, TrainingTask)
    os.chdir(file.parent)
    resource.setrlimit(resource.RLIMIT_DATA, (task.memory, task.memory))
    try:
        result = train(task, file.parent)
    except MemoryError:
        result = TrainingResult(fault=f"{task.path}: train needs more than memory = {task.memory / 1e6:.0f} MB")
    except TocsinError as error:
        result = TrainingResult(fault=str(error))
    except BaseException as error:
        traceback.print_exc()
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == task.path]
        place = f"{task.path}:{lines[-1]}" if lines else task.path
        result = TrainingResult(fault=f"{place}: train or score failed: {type(error).__name__}: {error}")
    state_file.write(file.parent / RESULT, TrainingResult, result)


if __name__ == "__main__":
    main()
