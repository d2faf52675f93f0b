"""Load the function in the file of a detector, a flow or a view, and apply it to events."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from tocsin.declare.code.case_code import CASES, without_cases
from tocsin.declare.code.own_modules import code_of, importable
from tocsin.declare.code.python_syntax import compile_module, parse
from tocsin.declare.model.detector import Resources
from tocsin.declare.model.errors import ConfigError
from tocsin.platform.failures import first_line, in_a_line
from tocsin.platform.time_limit import time_limit
from tocsin.spark.events import Prepared, SourceEvents
from tocsin.spark.tables.spark.joined_tables import JoinedTables


class Declared(Prepared, Protocol):
    """The declaration of a query; see `tocsin.declare.model.detector.DetectorSpec`."""

    @property
    def name(self) -> str: ...  # noqa: D102 - as in the specs
    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def sources(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def tables(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def resources(self) -> Resources | None: ...  # noqa: D102


# Standard output is redirected for the whole process: two threads at once could leave it redirected for ever.
_redirecting = threading.RLock()

QueryFunction = Callable[[DataFrame | SourceEvents, JoinedTables | None], DataFrame]
"""What a declared file makes of events, and of the tables that it joins."""


class DeclaredFunction:
    """The function `name` of the file `path`: `detect`, `flow` or `view`."""

    def __init__(self, path: Path, name: str, text: bytes | None = None) -> None:
        """Run the file, or `text`, which it held earlier. ConfigError if it cannot be run, or takes too long."""
        self._path, self._name = path, name
        self._function: Callable[..., object] = load_declared(path, name, text)

    @property
    def takes_tables(self) -> bool:
        """Return whether it takes more than events."""
        return len(inspect.signature(self._function).parameters) > 1

    def __call__(self, events: DataFrame | SourceEvents, tables: JoinedTables | None = None) -> DataFrame:
        """Apply it; raises a ConfigError if it fails, takes too long, or does not return a DataFrame."""
        arguments = (events,) if tables is None else (events, tables)
        try:
            inspect.signature(self._function).bind(*arguments)
        except TypeError as error:
            wanted = "events, tables" if tables is not None else "events"
            raise self._fault(
                f"must take ({wanted}): tables={'[...] is' if tables else '[...] is not'} declared"
            ) from error
        try:
            with _redirecting, time_limit(self._path), contextlib.redirect_stdout(sys.stderr):
                result = self._function(*arguments)
        except ConfigError:
            raise
        except AnalysisException as error:
            raise self._fault(f"Spark refuses its plan: {first_line(error)}", line_of(error, self._path)) from error
        except (Exception, SystemExit) as error:
            raise self._fault(f"fails: {in_a_line(error)}", line_of(error, self._path)) from error
        if not isinstance(result, DataFrame):
            raise self._fault(f"must return a DataFrame, not {type(result).__name__}")
        return result

    def _fault(self, what: str, line: int | None = None) -> ConfigError:
        return ConfigError.one(self._path, what, key=self._name, line=line)


def load_declared(path: Path, name: str, text: bytes | None = None) -> Any:
    """Run the file `path`, or `text`, and return what it calls `name`; errors as `load_module`."""
    return getattr(load_module(path, text, with_cases=name == CASES), name, None)


def load_module(path: Path, text: bytes | None = None, *, with_cases: bool = False) -> ModuleType:
    """Run `path`, or `text`, as a module; its cases run for themselves. ConfigError if it fails or takes too long."""
    module = ModuleType(f"tocsin_{path.parent.name}_{path.stem}")
    module.__file__, files = str(path), [path]
    sys.modules[module.__name__] = module  # a dataclass looks up there what its annotations name
    try:
        with time_limit(path), contextlib.redirect_stdout(sys.stderr):
            text = code_of(path, with_cases=with_cases) if text is None else text
            tree = parse(text, str(path))
            code = tree if with_cases else without_cases(tree)  # a mistake in a case harms no job
            with importable(path, text) as own:
                files += own
                exec(compile_module(code, str(path)), module.__dict__)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        what = f"cannot be imported: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            what += "; docs/write/packages.md says how packages and modules get here"
        where = next((file for file in reversed(files) if line_of(error, file)), path)  # that of lib/ is further in
        raise ConfigError.one(where, what, line=line_of(error, where)) from error
    finally:
        # In no list of modules, so that cloudpickle sends its functions to Python workers by value.
        del sys.modules[module.__name__]
    return module


def pickle_by_value(value: Any) -> bytes:
    """Pickle `value` together with what it uses of a declared file, which no other process can import."""
    content: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return content


def line_of(error: BaseException, path: Path) -> int | None:
    """Find the last line of the file `path` on the way to `error`; None when it is on none."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)
