"""Tell the cases in a detector's file from the code that its job runs, with `ast`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from copy import copy

CASES = "CASES"
_Assignment = ast.Assign | ast.AnnAssign


def without_cases(tree: ast.Module) -> ast.Module:
    """Leave out `CASES` and what nothing else of the file uses; the tree as it is where other code reads `CASES`."""
    bound = Counter(name for node in ast.walk(tree) for name in _bound(node))
    dropped = [node for node in tree.body if _targets(node) == [CASES]]
    kept = [node for node in tree.body if node not in dropped]
    if not dropped or CASES in _used(kept):
        return tree
    only = _only_names(dropped, kept, bound)
    while more := [node for node in kept if _is_definition(node) and set(_targets(node)) <= only]:
        dropped, kept = dropped + more, [node for node in kept if node not in more]
        only = _only_names(dropped, kept, bound)
    body = [statement for node in kept if (statement := _without_imports(node, only)) is not None]
    return ast.Module(body=body, type_ignores=tree.type_ignores)


def case_names(tree: ast.Module) -> list[str]:
    """List the names of the cases in the file `tree`, as far as they are literals."""
    firsts = [call.args[0] for call in _cases(tree) if call.args]
    return [str(first.value) for first in firsts if isinstance(first, ast.Constant)]


def case_kinds(tree: ast.Module) -> tuple[bool, bool]:
    """Return whether the file `tree` has a case that fires, and one that is silent; what is no literal may be both."""
    named = [keyword.value for call in _cases(tree) for keyword in call.keywords if keyword.arg == "expect"]
    expected = named + [call.args[2] for call in _cases(tree) if len(call.args) > 2]
    empty = [isinstance(value, ast.List | ast.Tuple) and not value.elts for value in expected]
    unsure = any(not isinstance(value, ast.List | ast.Tuple) for value in expected)
    return unsure or not all(empty), unsure or any(empty)


def _cases(tree: ast.Module) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name_of(node.func) == "Case"]
    return sorted(calls, key=lambda call: call.lineno)


def _only_names(dropped: list[ast.stmt], kept: list[ast.stmt], bound: Counter[str]) -> set[str]:
    return {name for name in _used(dropped) - _used(kept) if bound[name] == 1}


def _targets(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if isinstance(node, _Assignment | ast.AugAssign) and len(names) == len(targets) else []


def _is_definition(node: ast.stmt) -> bool:
    is_plain = isinstance(node, _Assignment) or (isinstance(node, ast.FunctionDef) and not node.decorator_list)
    return is_plain and bool(_targets(node))


def _bound(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Global):
        return node.names
    return [_alias(node)] if isinstance(node, ast.alias) else []


def _used(body: Iterable[ast.stmt]) -> set[str]:
    nodes = (node for statement in body for node in ast.walk(statement))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _without_imports(node: ast.stmt, names: set[str]) -> ast.stmt | None:
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return node
    left = [alias for alias in node.names if _alias(alias) not in names]
    if not left:
        return None
    trimmed = copy(node)
    trimmed.names = left
    return trimmed


def _alias(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
