"""Read what a detector's file declares, with `ast`: the file is never imported, and all its faults are told at once.

Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tocsin.model.detector import DetectorSpec, Levels, ScoreKind, Stage
from tocsin.model.durations import parse_duration
from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.model.names import valid_name

_REQUIRED = ("source", "entity", "window", "levels", "owner", "runbook", "stage")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([MG])B")
_OPTIONAL = ("slide", "score", "dedup_period", "page_within", "notify", "memory")


def read_spec(path: Path) -> DetectorSpec:
    """The declaration of the detector in `path`.

    Raises:
        ConfigError: with every fault of the file: syntax, no or two decorated functions, unknown, missing or
            wrongly typed keys, no docstring. A retry does not help.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except (SyntaxError, UnicodeDecodeError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        raise ConfigError.one(path, f"is not Python 3.11: {error}", line=line) from error
    call = _decorator_call(tree, path)
    reader = _Reader(path, call)
    values = reader.read()
    if (name := valid_name(path.stem)) != path.stem:
        reader.fault(f"the file name names the detector: small letters, digits and _ only; rename it to {name}.py")
    doc = ast.get_docstring(tree) or ""
    if not doc.strip():
        reader.fault("needs a docstring that says what it catches, what it misses and where to look first", line=1)
    if reader.faults:
        raise ConfigError(reader.faults)
    title = doc.strip().splitlines()[0]
    return DetectorSpec(name=path.stem, path=path, title=title, doc=doc, version=version_of(tree, values), **values)


def version_of(tree: ast.Module, values: dict[str, Any]) -> str:
    """12 hex digits that change when, and only when, the results may change.

    Hash of the normalised syntax tree of the file, since any statement of it may change what `detect` finds, plus
    source, entity, window, slide, levels and score kind. Comments, docstrings, layout, cases (a literal `CASES` that
    nothing reads), owner, runbook, stage and memory do not count.
    """
    copy = ast.parse(ast.unparse(tree))
    read = {node.id for node in ast.walk(copy) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    copy.body = [node for node in copy.body if "CASES" in read or not _is_cases(node)]
    for node in ast.walk(copy):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            node.decorator_list = [d for d in node.decorator_list if not _is_detector_call(d)]
        elif not isinstance(node, ast.Module):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    meaning = [repr(values.get(key)) for key in ("source", "entity", "window", "slide", "levels", "score")]
    return hashlib.sha256("\n".join([*meaning, ast.unparse(copy)]).encode()).hexdigest()[:12]


def _is_cases(node: ast.stmt) -> bool:
    """Whether `node` is `CASES = ...` with a literal, which has no effect."""
    if not (isinstance(node, ast.Assign) and ast.unparse(node).startswith("CASES = ")):
        return False
    try:
        ast.literal_eval(node.value)
    except (TypeError, ValueError):
        return False
    return True


def _is_detector_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "detector"


def _decorator_call(tree: ast.Module, path: Path) -> ast.Call:
    """The one `@detector(...)` of the file."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    calls = [d for f in functions for d in f.decorator_list if isinstance(d, ast.Call) and _is_detector_call(d)]
    if len(calls) != 1:
        what = f"needs exactly one function with @detector(...) before it; found {len(calls)}"
        raise ConfigError.one(path, what)
    owner = next(f for f in functions if calls[0] in f.decorator_list)
    if owner.name != "detect":
        what = f"the function behind @detector must be called 'detect', not '{owner.name}'"
        raise ConfigError.one(path, what, line=owner.lineno)
    return calls[0]


class _Reader:
    """Reads the keywords of one decorator and gathers every fault on the way."""

    def __init__(self, path: Path, call: ast.Call) -> None:
        self.path, self.call = path, call
        self.faults: list[Fault] = []
        self._readers: dict[str, Callable[[ast.keyword], Any]] = {
            "source": self._text, "owner": self._owner, "runbook": self._text, "entity": self._entity,
            "window": self._window, "levels": self._levels, "stage": lambda k: self._choice(k, Stage),
            "slide": self._duration, "score": lambda k: self._choice(k, ScoreKind), "dedup_period": self._duration,
            "page_within": self._duration, "notify": self._flag, "memory": self._size,
        }  # fmt: skip

    def fault(self, what: str, *, key: str | None = None, line: int | None = None, near: str | None = None) -> None:
        self.faults.append(Fault(str(self.path), what, key=key, line=line, nearest=near))

    def read(self) -> dict[str, Any]:
        if self.call.args:
            self.fault('takes keywords only, as in source="logins"', key="detector", line=self.call.lineno)
        values: dict[str, Any] = {}
        given = {keyword.arg: keyword for keyword in self.call.keywords}
        for name, keyword in given.items():
            line = keyword.value.lineno
            if name is None:
                self.fault("must be written out; ** cannot be read without importing the file", key="**", line=line)
            elif name not in self._readers:
                self.fault("is not a key of a detector", key=name, line=line, near=nearest(name, self._readers))
            else:
                values[name] = self._readers[name](keyword)
        for name in _REQUIRED:
            if name not in given:
                self.fault("is missing", key=name, line=self.call.lineno)
        window, slide = values.get("window"), values.get("slide")
        if slide is not None and (window is None or slide > window):
            self.fault("needs a window at least as long as itself", key="slide", line=given["slide"].value.lineno)
        return values

    def _literal(self, keyword: ast.keyword) -> Any:
        try:
            return ast.literal_eval(keyword.value)
        except ValueError:
            self.fault("must be a literal, because the file is read without being imported",
                       key=keyword.arg, line=keyword.value.lineno)  # fmt: skip
            return None

    def _expect(self, keyword: ast.keyword, value: object, what: str, *, good: bool) -> bool:
        known = any(fault.key == keyword.arg for fault in self.faults)
        if not good and not known:
            self.fault(f"must be {what}, not {value!r}", key=keyword.arg, line=keyword.value.lineno)
        return good

    def _text(self, keyword: ast.keyword) -> str:
        value = self._literal(keyword)
        good = isinstance(value, str) and bool(value.strip())
        return str(value) if self._expect(keyword, value, "a text that is not empty", good=good) else ""

    def _owner(self, keyword: ast.keyword) -> str:
        value = self._text(keyword)
        address = value.count("@") == 1 and not any(c.isspace() or c in "<>,;" for c in value)
        self._expect(keyword, value, "one e-mail address", good=address)
        return value

    def _flag(self, keyword: ast.keyword) -> bool:
        value = self._literal(keyword)
        return bool(value) if self._expect(keyword, value, "True or False", good=isinstance(value, bool)) else False

    def _entity(self, keyword: ast.keyword) -> tuple[str, ...]:
        value = self._literal(keyword)
        columns = [value] if isinstance(value, str) else value
        good = isinstance(columns, list | tuple) and bool(columns) and all(isinstance(c, str) and c for c in columns)
        return tuple(columns) if self._expect(keyword, value, "a column name or a list of them", good=good) else ()

    def _duration(self, keyword: ast.keyword) -> timedelta | None:
        value = self._literal(keyword)
        try:
            return parse_duration(value)
        except (ValueError, TypeError):
            self._expect(keyword, value, "a duration such as '10 seconds' or '1 hour'", good=False)
            return None

    def _size(self, keyword: ast.keyword) -> int | None:
        value = self._literal(keyword)
        match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        size = round(float(match[1]) * (1e9 if match[2] == "G" else 1e6)) if match else 0
        return size if self._expect(keyword, value, "a size such as '900 MB' or '1.5 GB'", good=size > 0) else None

    def _window(self, keyword: ast.keyword) -> timedelta | None:
        none = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
        return None if none else self._duration(keyword)

    def _choice(self, keyword: ast.keyword, choices: type[Stage] | type[ScoreKind]) -> Any:
        value = self._literal(keyword)
        try:
            return choices(value)
        except ValueError:
            names = [choice.value for choice in choices]
            near = nearest(str(value), names)
            what = f"must be one of {', '.join(names)}, not {value!r}"
            self.fault(what, key=keyword.arg, line=keyword.value.lineno, near=near)
            return None

    def _levels(self, keyword: ast.keyword) -> Levels | None:
        node = keyword.value
        line = node.lineno
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Levels"):
            self.fault("must be written as Levels(email=50, urgent=100)", key="levels", line=line)
            return None
        limits: dict[str, float] = {}
        for inner in node.keywords:
            value = self._literal(inner)
            if inner.arg not in ("email", "urgent"):
                self.fault(
                    "is not a level",
                    key=f"levels.{inner.arg}",
                    line=line,
                    near=nearest(str(inner.arg), ["email", "urgent"]),
                )
            elif isinstance(value, bool) or not isinstance(value, int | float):
                self.fault(f"must be a number, not {value!r}", key=f"levels.{inner.arg}", line=line)
            else:
                limits[inner.arg] = value
        try:
            return Levels(**limits)
        except ValueError as error:
            self.fault(str(error), key="levels", line=line)
            return None
