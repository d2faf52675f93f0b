"""Read what a detector's file declares, with `ast`: never import the file, and list all its faults at once."""

from __future__ import annotations

import ast
import hashlib
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from tocsin.model.detector import DetectorSpec, Levels, ScoreKind, Stage
from tocsin.model.errors import ConfigError, Fault
from tocsin.model.names import valid_name
from tocsin.project.validation import Address, Duration, Text, as_list, faults_of

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([MG])B")


def read_spec(path: Path) -> DetectorSpec:
    """Read the declaration of the detector in `path`.

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
    values, faults = _read_keywords(call, path)
    if (name := valid_name(path.stem)) != path.stem:
        what = f"the file name is the detector's name: small letters, digits and _ only; rename it to {name}.py"
        faults.append(Fault(str(path), what))
    doc = ast.get_docstring(tree) or ""
    if not doc.strip():
        what = "needs a docstring that says what it catches, what it misses and where to look first"
        faults.append(Fault(str(path), what, line=1))
    if faults:
        raise ConfigError(faults)
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
    """Return whether `node` is `CASES = ...` with a literal, which has no effect."""
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
        what = f"the function under @detector must be called 'detect', not '{owner.name}'"
        raise ConfigError.one(path, what, line=owner.lineno)
    return calls[0]


def _size(value: object) -> int:
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = round(float(match[1]) * (1e9 if match[2] == "G" else 1e6)) if match else 0
    if size <= 0:
        raise ValueError(f"must be a size such as '900 MB' or '1.5 GB', not {value!r}")
    return size


def _limit(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {value!r}")
    return value


def _limits(limits: dict[str, Any]) -> dict[str, Any]:
    Levels(**limits)
    return limits


class _Keywords(BaseModel, extra="forbid"):
    """The keywords of `@detector`; their meaning is that of the attributes of `DetectorSpec`."""

    source: Text
    entity: Annotated[tuple[Text, ...], BeforeValidator(as_list), Field(min_length=1)]
    window: Duration | None
    levels: Annotated[dict[Literal["email", "urgent"], Annotated[Any, AfterValidator(_limit)]], AfterValidator(_limits)]
    owner: Address
    runbook: Text
    stage: Stage
    slide: Duration | None = None
    score: ScoreKind | None = None
    dedup_period: Duration = DetectorSpec.dedup_period
    page_within: Duration = DetectorSpec.page_within
    notify: StrictBool = True
    memory: Annotated[int, BeforeValidator(_size)] | None = None

    @field_validator("slide")
    @classmethod
    def _at_most_the_window(cls, slide: timedelta | None, others: ValidationInfo) -> timedelta | None:
        window = others.data.get("window", slide)
        if slide is not None and (window is None or slide > window):
            raise ValueError("needs a window at least as long as itself")
        return slide


def _read_keywords(call: ast.Call, path: Path) -> tuple[dict[str, Any], list[Fault]]:
    """Read the keywords of `@detector` and all that is wrong with them."""
    faults: list[Fault] = []
    literals: dict[str, Any] = {}
    lines = {keyword.arg or "**": keyword.value.lineno for keyword in call.keywords}
    if call.args:
        what = 'takes keywords only, as in source="logins"'
        faults.append(Fault(str(path), what, key="detector", line=call.lineno))
    for keyword in call.keywords:
        try:
            literals[keyword.arg or "**"] = _literal(keyword)
        except ValueError as error:
            faults.append(Fault(str(path), str(error), key=keyword.arg or "**", line=keyword.value.lineno))
    try:
        values = dict(_Keywords.model_validate(literals))
        return values | {"levels": Levels(**values["levels"])}, faults
    except ValidationError as error:
        keys = {fault.key for fault in faults}
        found = faults_of(
            error, path, _Keywords, "a key of a detector", lambda key: lines.get(key.partition(".")[0], call.lineno)
        )
        return {}, sorted(
            faults + [fault for fault in found if fault.key not in keys], key=lambda fault: fault.line or 0
        )


def _literal(keyword: ast.keyword) -> Any:
    """Read the value of `keyword`; `Levels(...)` as a dict."""
    node = keyword.value
    if keyword.arg is None:
        raise ValueError("must be written out; ** cannot be read without importing the file")
    try:
        if keyword.arg != "levels":
            return ast.literal_eval(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Levels":
            return {str(inner.arg): ast.literal_eval(inner.value) for inner in node.keywords}
    except ValueError as error:
        raise ValueError("must be a literal, because the file is read without being imported") from error
    raise ValueError("must be written as Levels(email=50, urgent=100)")
