"""Load the function `detect` of a detector's file, and apply it to events."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tocsin.detect.time_limit import time_limit
from tocsin.model.detector import DetectorSpec
from tocsin.model.errors import ConfigError

Detect = Callable[[DataFrame], DataFrame]


def load_detect(spec: DetectorSpec) -> Detect:
    """Run the file of `spec`, and return its function `detect`.

    Raises:
        ConfigError: the file cannot be run, or takes too long.
    """
    name = f"tocsin_detector_{spec.name}"
    module_spec = importlib.util.spec_from_file_location(name, spec.path)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError.one(spec.path, "is not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    try:
        with time_limit(spec.path):
            module_spec.loader.exec_module(module)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError.one(spec.path, f"cannot be imported: {type(error).__name__}: {error}") from error
    function: Detect = module.detect
    return function


def apply_detect(detect: Detect, spec: DetectorSpec, events: DataFrame) -> DataFrame:
    """Apply `detect` to `events` (see `tocsin.sparkjob.events.prepare_events`).

    Raises:
        ConfigError: it fails, takes too long, or does not return a DataFrame.
    """
    try:
        with time_limit(spec.path):
            result = detect(events)
    except ConfigError:
        raise
    except AnalysisException as error:
        raise ConfigError.one(spec.path, f"Spark refuses its plan: {first_line(error)}", key="detect") from error
    except Exception as error:
        raise ConfigError.one(spec.path, f"fails: {type(error).__name__}: {error}", key="detect") from error
    if not isinstance(result, DataFrame):
        raise ConfigError.one(spec.path, f"must return a DataFrame, not {type(result).__name__}", key="detect")
    return result


def first_line(error: object) -> str:
    """Cut the first line off what Spark says, 300 characters at most: a plan may follow."""
    return str(error).strip().splitlines()[0][:300]
