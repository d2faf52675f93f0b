"""Make mutants of a detector's file: small changes that its cases should notice. With `ast`, nothing is run.

A limit that is one higher or lower, a window of twice the length, a filter that is gone, a comparison that takes in or
leaves out its border, another aggregate behind the score. A line that ends with EITHER_WAY keeps its comparisons.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tocsin.declare.code.case_code import CASES, case_kinds, without_cases
from tocsin.declare.code.python_syntax import parse
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import parse_duration
from tocsin.declare.model.errors import Fault

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_IN_SQL = re.compile(r"(?<![<>=!])(>=|<=|>|<)(?![<>=])")
_SWAPPED = {">": ">=", ">=": ">", "<": "<=", "<=": "<"}
_AGGREGATES = {
    "sum": "max", "max": "min", "min": "max", "avg": "max", "mean": "max", "count": "max",
    "count_distinct": "count", "countDistinct": "count", "approx_count_distinct": "count", "stddev": "avg",
    "percentile_approx": "max", "median": "max",
}  # fmt: skip
EITHER_WAY = "# either way"
"""The comment of an author who has thought of the border, and found that it makes no difference."""

_FILTERS = ("where", "filter")


@dataclass(frozen=True)
class Mutant:
    """A changed file: its `text`, the `line` of the change, and the `change` in words.

    `is_border`: a comparison takes in its border, or leaves it out.
    """

    line: int
    change: str
    text: str
    is_border: bool = False


def mutants_of(text: str) -> list[Mutant]:
    """Make the mutants of the detector's file `text`, without its cases, in the order of their lines."""
    tree = without_cases(parse(text))
    made = [mutant for number, node in enumerate(ast.walk(tree)) for mutant in _mutate(tree, number, node)]
    lines = text.splitlines()
    noted = [
        mutant for mutant in made if not (mutant.is_border and lines[mutant.line - 1].rstrip().endswith(EITHER_WAY))
    ]
    by_place = {(mutant.line, mutant.change): mutant for mutant in noted}
    return [by_place[place] for place in sorted(by_place)]


def _mutate(tree: ast.Module, number: int, node: ast.AST) -> Iterator[Mutant]:
    for change, replaced in _changes(node, tree):
        changed = copy.deepcopy(tree)
        replaced(next(node for place, node in enumerate(ast.walk(changed)) if place == number))
        text = ast.unparse(ast.fix_missing_locations(changed))
        yield Mutant(getattr(node, "lineno", 1), change, text, is_border=isinstance(node, ast.Compare | ast.Constant))


_Change = tuple[str, Callable[[ast.AST], None]]


def _changes(node: ast.AST, tree: ast.Module) -> Iterator[_Change]:
    if isinstance(node, ast.Call) and _name(node.func) == "detector":
        is_by_zone = any(keyword.arg == "time_zone" for keyword in node.keywords)
        for keyword in node.keywords:
            if not (is_by_zone and keyword.arg == "window"):  # only days have a zone
                yield from _of_keyword(keyword)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        yield from _of_comparison(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _FILTERS and node.args:
            yield f"without .{node.func.attr}({_short(node.args[0])})", _drop_filter
        if node.func.attr in _AGGREGATES and node.args and _name(node.func.value) in ("F", "functions"):
            yield from _of_aggregate(node, tree)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_sql(node, tree):
        yield from _of_sql(node.value)


def _of_keyword(keyword: ast.keyword) -> Iterator[_Change]:
    if keyword.arg == "window" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str):
        twice = f"{2 * parse_duration(keyword.value.value).total_seconds():g} seconds"
        change = f'window="{twice}" instead of "{keyword.value.value}"'
        yield change, lambda node: setattr(_keyword(node, "window"), "value", ast.Constant(twice))
    if keyword.arg in ("levels", "expect") and isinstance(keyword.value, ast.Call):
        for limit in keyword.value.keywords:
            if keyword.arg == "expect" and limit.arg != "minimum":
                continue
            value = ast.literal_eval(limit.value)
            for step in (1, -1):
                changed = ast.Constant(value + step)
                yield (
                    f"{limit.arg}={value + step} instead of {value}",
                    _set_number(keyword.arg, str(limit.arg), changed),
                )


def _set_number(of: str, name: str, value: ast.Constant) -> Callable[[ast.AST], None]:
    def change(node: ast.AST) -> None:
        declared = _keyword(node, of).value
        setattr(_keyword(declared, name), "value", value)  # noqa: B010 - as mypy sees it, it is any expression

    return change


def _of_comparison(compared: ast.Compare) -> Iterator[_Change]:
    old, new = type(compared.ops[0]), _COMPARED[type(compared.ops[0])]
    yield f"{_SIGNS[new]} instead of {_SIGNS[old]} in {_short(compared)}", lambda node: setattr(node, "ops", [new()])


def _of_aggregate(call: ast.Call, tree: ast.Module) -> Iterator[_Change]:
    assert isinstance(call.func, ast.Attribute)
    if _alias(call, tree) not in ("score", ""):
        return  # context and the latest event are no part of what a case expects
    is_count = call.func.attr == "count"
    new = "max" if is_count else _AGGREGATES[call.func.attr]

    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        node.func.attr = new
        if is_count:
            node.args = [ast.Call(ast.Attribute(node.func.value, "lit", ast.Load()), [ast.Constant(1)], [])]
        node.args = node.args[:1]

    shown = "1 if there is any" if is_count else f"{new}(...)"
    yield f"{shown} instead of {_short(call)}", change


def _of_sql(text: str) -> Iterator[_Change]:
    for found in _IN_SQL.finditer(text):
        new = f"{text[: found.start()]}{_SWAPPED[found[0]]}{text[found.end() :]}"
        yield f'"{new[:60]}" instead of "{text[:60]}"', lambda node, new=new: setattr(node, "value", new)  # type: ignore[misc]  # a default binds it now


def _is_sql(constant: ast.Constant, tree: ast.Module) -> bool:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and constant in node.args)
    return any(_name(call.func) in (*_FILTERS, "expr", "selectExpr") for call in calls)


def _alias(call: ast.Call, tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == "alias" and node.args:
            assert isinstance(node.func, ast.Attribute)
            if any(inner is call for inner in ast.walk(node.func.value)):
                return str(getattr(node.args[0], "value", ""))
    return ""


def _drop_filter(node: ast.AST) -> None:
    """Let the filter take all: the call stays, so that its place in the tree does."""
    assert isinstance(node, ast.Call)
    node.args = [ast.Constant("true")]


def _keyword(call: ast.AST, name: str) -> ast.keyword:
    assert isinstance(call, ast.Call)
    return next(keyword for keyword in call.keywords if keyword.arg == name)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:59]}…"


def has_cases(spec: DetectorSpec) -> bool:
    """Return whether the file of `spec` has a case."""
    return any(case_kinds(_tree(spec)))


def faults_of_cases(specs: Iterable[DetectorSpec]) -> list[Fault]:
    """List the detectors of one source in stage shadow or live without a case that fires, or without a silent one."""
    faults: list[Fault] = []
    for spec in specs:
        if not (spec.stage.runs and spec.has_one_source):  # cases are timelines of one source
            continue
        fires, is_silent = case_kinds(_tree(spec))
        lacks = [] if fires else ["one that fires, expect=[email(...)]"]
        lacks += [] if is_silent else ["one that stays silent, expect=[]"]
        if lacks:
            what = f"needs at least {' and '.join(lacks)}; docs/write/testing.md shows how"
            faults.append(Fault(str(spec.path), what, key=CASES))
    return faults


def _tree(spec: DetectorSpec) -> ast.Module:
    return parse(spec.path.read_text(encoding="utf-8"))
