"""Check with `ast` what a file with `step` must look like: its arguments, the type of its state, its timer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tocsin import stats
from tocsin.declare.code.python_syntax import parse_expression
from tocsin.declare.model.errors import Fault

STEP, ON_TIMER, TIMER = "step", "on_timer", "timer"
_PLAIN = {"str", "int", "float", "bool", "datetime"}
_TIMER = {"datetime | None", "None | datetime", "Optional[datetime]"}
_STATISTICS = {name for name, value in vars(stats).items() if isinstance(value, type)}
_TYPES = (
    "str, int, float, bool, datetime, a state of tocsin.stats, list[...] and dict[str, ...] of these, "
    "each perhaps `| None`"
)
_NOT_WITH_STEP = ("window", "slide", "time_zone", "score")


def function_faults(tree: ast.Module, function: ast.FunctionDef, values: dict[str, Any], path: str) -> list[Fault]:
    """List what is wrong with `function`, `detect` or `step`, and with the keywords `values` that go with it."""
    if function.name != STEP:
        if values.get("forget_after") is None:
            return []
        return [Fault(path, "belongs to step; detect has a window", key="forget_after", line=function.lineno)]
    faults = [Fault(path, what, key=key, line=function.lineno) for key, what in _keyword_faults(values)]
    return [*faults, *_Signature(tree, function, path).faults()]


def state_class(tree: ast.Module, function: ast.FunctionDef) -> ast.ClassDef | None:
    """Find the dataclass in the file that annotates the argument `state`; None if there is none."""
    annotation = function.args.args[1].annotation if len(function.args.args) == 3 else None
    name = annotation.value if isinstance(annotation, ast.Constant) else getattr(annotation, "id", None)
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _keyword_faults(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if not values:
        return  # they have faults of their own
    if values.get("forget_after") is None:
        yield "forget_after", 'is missing: step needs it, as in forget_after="30 days"'
    if len(values["sources"]) > 1:
        yield "source", "must be one source with step"
    for key in _NOT_WITH_STEP:
        if values.get(key):
            wanted = "must be None" if key == "window" else "cannot be used"
            yield key, f"{wanted} with step, which takes one event after the other"


@dataclass(frozen=True)
class _Signature:
    tree: ast.Module
    step: ast.FunctionDef
    path: str

    def faults(self) -> list[Fault]:
        if _arguments(self.step) != 3:
            return [self._fault("must take (key, state, event)", STEP, self.step)]
        state = state_class(self.tree, self.step)
        if state is None or not any(_is_dataclass(decorator) for decorator in state.decorator_list):
            what = "must have the type of its state, a @dataclass of this file: def step(key, state: Seen, event)"
            return [self._fault(what, STEP, self.step)]
        fields = [node for node in state.body if isinstance(node, ast.AnnAssign)]
        return [*self._field_faults(state, fields), *self._timer_faults(state, fields)]

    def _field_faults(self, state: ast.ClassDef, fields: list[ast.AnnAssign]) -> Iterator[Fault]:
        if not fields:
            yield self._fault("has no fields, so it can hold nothing", state.name, state)
        for field in fields:
            key = f"{state.name}.{ast.unparse(field.target)}"
            if field.value is None:
                yield self._fault("needs a default: an entity that is new begins with it", key, field)
            if not _is_storable(field.annotation):
                yield self._fault(f"cannot be stored as {ast.unparse(field.annotation)}; use {_TYPES}", key, field)

    def _timer_faults(self, state: ast.ClassDef, fields: list[ast.AnnAssign]) -> Iterator[Fault]:
        timer = next((field for field in fields if ast.unparse(field.target) == TIMER), None)
        on_timer = next((n for n in self.tree.body if isinstance(n, ast.FunctionDef) and n.name == ON_TIMER), None)
        if timer is not None and ast.unparse(timer.annotation) not in _TIMER:
            yield self._fault("must be `datetime | None`", f"{state.name}.{TIMER}", timer)
        if timer is not None and on_timer is None:
            what = "is set for nothing: the file has no on_timer(key, state, at)"
            yield self._fault(what, f"{state.name}.{TIMER}", timer)
        if on_timer is not None and timer is None:
            what = f"is never called: {state.name} has no field `{TIMER}: datetime | None = None`"
            yield self._fault(what, ON_TIMER, on_timer)
        if on_timer is not None and _arguments(on_timer) != 3:
            yield self._fault("must take (key, state, at)", ON_TIMER, on_timer)

    def _fault(self, what: str, key: str, node: ast.stmt) -> Fault:
        return Fault(self.path, what, key=key, line=node.lineno)


def _arguments(function: ast.FunctionDef) -> int:
    given = function.args
    others = given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs
    return -1 if others else len(given.args)


def _is_dataclass(node: ast.expr) -> bool:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")[-1] == "dataclass"


def _is_storable(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _is_storable(parse_expression(node.value))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        some = [side for side in (node.left, node.right) if ast.unparse(side) != "None"]
        return len(some) == 1 and _is_storable(some[0])
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match ast.unparse(node.value), len(inner):
            case ("list", 1) | ("Optional", 1):
                return _is_storable(inner[0])
            case ("dict", 2):
                return ast.unparse(inner[0]) == "str" and _is_storable(inner[1])
        return False
    return ast.unparse(node).rpartition(".")[-1] in _PLAIN | _STATISTICS
