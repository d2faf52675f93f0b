"""Say in words what differs between two versions of a declared file's code."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from tocsin.project.code.python_syntax import parse

_LONGEST = 120
_STEPS = {
    "where": "filter", "filter": "filter", "groupBy": "grouping", "agg": "aggregate", "join": "join",
    "withColumn": "computed column", "withColumns": "computed columns", "select": "selection",
}  # fmt: skip
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def code_changes(before: str, after: str) -> list[str]:
    """List what changed from the code `before` to that `after`, both as `normalised_code` writes it."""
    old, new = _parts(before), _parts(after)
    changes = [f"{name} was added" for name in new if name not in old]
    changes += [f"{name} is gone" for name in old if name not in new]
    for name in (name for name in new if name in old):
        if ast.unparse(old[name]) != ast.unparse(new[name]):
            changes += list(_difference(name, old[name], new[name]))
    return changes or ["the order of its statements changed"]


def _parts(code: str) -> dict[str, ast.stmt]:
    """Name each statement at the top of a file."""
    return {_name(statement): statement for statement in parse(code).body}


def _name(statement: ast.stmt) -> str:
    if isinstance(statement, _Definition):
        return f"{'class' if isinstance(statement, ast.ClassDef) else 'function'} {statement.name}"
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return ast.unparse(targets[0])
    return f"`{_short(ast.unparse(statement))}`"


def _difference(name: str, before: ast.stmt, after: ast.stmt) -> Iterator[str]:
    if not isinstance(before, _Definition):
        old, new = (ast.unparse(one).partition("=")[2].strip() for one in (before, after))
        yield f"{name} changed from {_short(old)} to {_short(new)}"
        return
    steps = dict(_changed_steps(before, after))
    if steps and _without_steps(before) == _without_steps(after):
        for kind, (old, new) in steps.items():
            yield f"the {kind} changed from {_short(old)} to {_short(new)}"
        return
    lines = list(difflib.ndiff(ast.unparse(before).splitlines(), ast.unparse(after).splitlines()))
    gone, come = (next((one[2:].strip() for one in lines if one.startswith(mark)), "") for mark in ("- ", "+ "))
    if gone and come:
        yield f"{name} changed: {_short(gone)} became {_short(come)}"
    else:
        yield f"{name} changed: {_short(come)} was added" if come else f"{name} changed: {_short(gone)} is gone"


def _changed_steps(before: ast.stmt, after: ast.stmt) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the kinds of steps, such as filters, that are as many as before and say something else."""
    old, new = _steps(before), _steps(after)
    if [kind for kind, _ in old] == [kind for kind, _ in new]:
        for (kind, one), (_, other) in zip(old, new, strict=True):
            if one != other:
                yield kind, (one, other)


def _steps(code: ast.AST) -> list[tuple[str, str]]:
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [
        (_STEPS[call.func.attr], ", ".join(map(ast.unparse, [*call.args, *call.keywords])))
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in _STEPS
    ]


def _without_steps(code: ast.stmt) -> str:
    """Write `code` with empty steps."""
    copy = parse(ast.unparse(code))
    for node in ast.walk(copy):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _STEPS:
            node.args, node.keywords = [], []
    return ast.unparse(copy)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
