"""Check with `ast` the functions `train` and `score` in the file of a detector with a model."""

from __future__ import annotations

import ast
from typing import Any

from tocsin.declare.code.outside_reads import TRAIN
from tocsin.declare.model.errors import Fault

MODEL_FUNCTIONS = (TRAIN, "score")
_ARGUMENTS = {TRAIN: ["features"], "score": ["features", "model"]}
_EXAMPLE = 'model=Model(days=60, every="1 week")'


def model_faults(tree: ast.Module, values: dict[str, Any], path: str) -> list[Fault]:
    """List what does not fit together: the keyword `model` of `values`, and `train` and `score` in the file `tree`."""
    if not values:
        return []  # they have faults of their own
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in _ARGUMENTS}
    if values.get("model") is None:
        called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if len(found) < len(_ARGUMENTS) or called & found.keys():
            return []  # functions of the detector's own that happen to be called so
        what = f"is called by nothing, as one of a model: declare {_EXAMPLE}, or give it another name, or remove it"
        return [Fault(path, what, key=name, line=node.lineno) for name, node in found.items()]
    faults = []
    for name, arguments in _ARGUMENTS.items():
        shown = f"def {name}({', '.join(arguments)})"
        if name not in found:
            faults.append(Fault(path, f"needs a function {name}: {shown}", key="model"))
        elif len(found[name].args.args) != len(arguments) or _has_others(found[name].args):
            faults.append(Fault(path, f"must be {shown}", key=name, line=found[name].lineno))
    if values.get("forget_after") is not None:
        faults.append(Fault(path, "goes with detect, which gives the features of windows; not with step", key="model"))
    return faults


def _has_others(given: ast.arguments) -> bool:
    return bool(given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs)
