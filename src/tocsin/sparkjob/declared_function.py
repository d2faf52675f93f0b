"""Load the function in the file of a detector, a flow or a view, and apply it to events."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tocsin.model.errors import ConfigError
from tocsin.runtime.time_limit import time_limit
from tocsin.tables.spark.joined_tables import JoinedTables


class DeclaredFunction:
    """The function `name` of the file `path`: `detect`, `flow` or `view`."""

    def __init__(self, path: Path, name: str) -> None:
        """Run the file.

        Raises:
            ConfigError: it cannot be run, or takes too long.
        """
        self._path, self._name = path, name
        self._function = _load(path, name)

    def __call__(self, events: DataFrame, tables: JoinedTables | None = None) -> DataFrame:
        """Apply it to `events`, and to `tables` if it declares some.

        Raises:
            ConfigError: it fails, takes too long, or does not return a DataFrame.
        """
        arguments = (events,) if tables is None else (events, tables)
        try:
            inspect.signature(self._function).bind(*arguments)
        except TypeError as error:
            wanted = "events, tables" if tables is not None else "events"
            raise self._fault(
                f"must take ({wanted}): tables={'[...] is' if tables else '[...] is not'} declared"
            ) from error
        try:
            with time_limit(self._path):
                result = self._function(*arguments)
        except ConfigError:
            raise
        except AnalysisException as error:
            raise self._fault(f"Spark refuses its plan: {first_line(error)}") from error
        except Exception as error:
            raise self._fault(f"fails: {type(error).__name__}: {error}") from error
        if not isinstance(result, DataFrame):
            raise self._fault(f"must return a DataFrame, not {type(result).__name__}")
        return result

    def _fault(self, what: str) -> ConfigError:
        return ConfigError.one(self._path, what, key=self._name)


def first_line(error: object) -> str:
    """Cut the first line off what Spark says, 300 characters at most: a plan may follow."""
    return str(error).strip().splitlines()[0][:300]


def _load(path: Path, name: str) -> Callable[[DataFrame], object]:
    spec = importlib.util.spec_from_file_location(f"tocsin_{name}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError.one(path, "is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        with time_limit(path):
            spec.loader.exec_module(module)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError.one(path, f"cannot be imported: {type(error).__name__}: {error}") from error
    function: Callable[[DataFrame], object] = getattr(module, name)
    return function
