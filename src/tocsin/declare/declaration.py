"""Read what a detector, a flow or a view declares, with `ast`: never import the file, and list all faults at once."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from tocsin.declare import keywords
from tocsin.declare.code.case_code import without_cases
from tocsin.declare.code.outside_code import outside_code
from tocsin.declare.code.outside_reads import TRAIN, outside_reads
from tocsin.declare.code.own_modules import OwnModule, own_modules
from tocsin.declare.code.python_syntax import compile_module, parse
from tocsin.declare.code.step_signature import ON_TIMER, function_faults
from tocsin.declare.keywords import DeclaredKind
from tocsin.declare.model.detector import MODELS_OF, DetectorSpec
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.names import valid_name
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.validation import faults_of

_CALLS = {
    "levels": ("Levels", (), "Levels(email=50, urgent=100)"),
    "model": ("Model", (), 'Model(days=60, every="1 week")'),
    "expect": ("Entities", ("names", "minimum"), 'Entities(["web.1", "web.2"], minimum=5)'),
}
"""Keywords that are no plain literal: the class that is called, its arguments without a name, an example."""


def read_spec(path: Path) -> DetectorSpec:
    """Read the declaration of the detector in `path`.

    Raises:
        ConfigError: with every fault of the file: syntax, no or two decorated functions, unknown, missing or
            wrongly typed keys, no docstring, code that reads more than events. A retry does not help.
    """
    return cast(DetectorSpec, _read(path, keywords.DETECTOR))


def read_flow(path: Path) -> FlowSpec:
    """Read the declaration of the flow in `path`; errors as `read_spec`."""
    return cast(FlowSpec, _read(path, keywords.FLOW))


def read_view(path: Path) -> ViewSpec:
    """Read the declaration of the view in `path`; errors as `read_spec`."""
    spec = cast(ViewSpec, _read(path, keywords.VIEW))
    return replace(spec, table=spec.table or spec.name)


def written_keywords(path: Path) -> dict[str, str]:
    """Return what the detector in `path`, which can be read, declares: each keyword with its value as it is written."""
    call, _ = _decorator_call(parse(path.read_text(encoding="utf-8")), path, keywords.DETECTOR)
    values = {str(keyword.arg): keyword.value for keyword in call.keywords}
    return {
        key: node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
        for key, node in values.items()
    }


def _read(path: Path, kind: DeclaredKind) -> keywords.Spec:
    try:
        text = path.read_bytes()
        tree = parse(text.decode(), str(path))
        compile_module(tree, str(path))  # finds what the parser does not, such as a keyword that is written twice
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError.one(path, f"is not Python 3.11: {error}", line=getattr(error, "lineno", None)) from error
    call, function = _decorator_call(tree, path, kind)
    values, faults = _read_keywords(call, path, kind)
    if kind is keywords.DETECTOR:
        faults += function_faults(tree, function, values, str(path)) + model_faults(tree, values, str(path))
    if (name := valid_name(path.stem)) != path.stem:
        what = f"the file name is the {kind.word}'s name: small letters, digits and _ only; rename it to {name}.py"
        faults.append(Fault(str(path), what))
    doc = ast.get_docstring(tree) or ""
    if not doc.strip():
        what = f"needs a docstring that says {kind.doc}"
        faults.append(Fault(str(path), what, line=1))
    running = without_cases(tree)
    reads = outside_reads(running, [function.name, ON_TIMER, *(MODEL_FUNCTIONS if values.get("model") else ())])
    faults += [Fault(str(path), read.what, key=function.name, line=read.line) for read in reads]
    modules: list[OwnModule] = []
    try:
        modules = own_modules(running, path, text)
    except ConfigError as error:
        faults += error.faults
    for module in modules:
        found = outside_reads(module.tree, module.functions)
        faults += [Fault(str(module.path), f"{read.what}; {path.name} reaches it", line=read.line) for read in found]
    if faults:
        raise ConfigError(faults)
    own = [f"# {module.place}\n{normalised_code(module.tree, kind)}" for module in modules]
    used = outside_code([running, *(module.tree for module in modules)], path.parent.parent, values)
    code = "\n".join([normalised_code(running, kind), *own, *used])
    title, version = doc.strip().splitlines()[0], version_of(code, values, kind)
    if (expected := values.get("expect")) is not None and expected.table:
        values["tables"] = tuple(dict.fromkeys([*values["tables"], expected.table]))
    if values.get("model") is not None:
        values["tables"] = (*values["tables"], f"{MODELS_OF}{path.stem}")
    return kind.spec(name=path.stem, path=path, title=title, doc=doc, code=code, version=version, **values)


def version_of(code: str, values: dict[str, Any], kind: DeclaredKind) -> str:
    """12 hex digits that change when, and only when, the results may change.

    Hash of the `normalised_code` of the file and of the modules of lib/ that it reaches, of what it uses besides (see
    `tocsin.declare.code.outside_code`), and the keywords that `kind` names; owner, stage and others do not count.
    """
    meaning = [repr(values.get(key)) for key in kind.meaning]
    if len(sources := values.get("sources", ())) == 1:
        meaning[0] = repr(sources[0])
    meaning += [repr(values[key]) for key in keywords.ADDED_MEANING if values.get(key)]
    return hashlib.sha256("\n".join([*meaning, code]).encode()).hexdigest()[:12]


def normalised_code(tree: ast.Module, kind: DeclaredKind) -> str:
    """Write the statements of a file, since any of them may change what its function returns, in one layout.

    Comments, docstrings and the decorator of `kind` are left out. `tree` is `without_cases`; a module of lib/ has none,
    and what it calls CASES may count.
    """
    copy = parse(ast.unparse(tree))
    for node in ast.walk(copy):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            node.decorator_list = [d for d in node.decorator_list if not _is_call_of(kind, d)]
        elif not isinstance(node, ast.Module):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(copy)


def _is_call_of(kind: DeclaredKind, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == kind.word


def _decorator_call(tree: ast.Module, path: Path, kind: DeclaredKind) -> tuple[ast.Call, ast.FunctionDef]:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    calls = [d for f in functions for d in f.decorator_list if isinstance(d, ast.Call) and _is_call_of(kind, d)]
    if len(calls) != 1:
        what = f"needs exactly one function with @{kind.word}(...) before it; found {len(calls)}"
        raise ConfigError.one(path, what)
    owner = next(f for f in functions if calls[0] in f.decorator_list)
    if owner.name not in kind.functions:
        names = " or ".join(f"'{name}'" for name in kind.functions)
        what = f"the function under @{kind.word} must be called {names}, not '{owner.name}'"
        raise ConfigError.one(path, what, line=owner.lineno)
    return calls[0], owner


def _read_keywords(call: ast.Call, path: Path, kind: DeclaredKind) -> tuple[dict[str, Any], list[Fault]]:
    faults: list[Fault] = []
    literals: dict[str, Any] = {}
    lines = {keyword.arg or "**": keyword.value.lineno for keyword in call.keywords}
    if call.args:
        what = 'takes keywords only, as in source="logins"'
        faults.append(Fault(str(path), what, key=kind.word, line=call.lineno))
    for keyword in call.keywords:
        try:
            literals[keyword.arg or "**"] = _literal(keyword)
        except ValueError as error:
            faults.append(Fault(str(path), str(error), key=keyword.arg or "**", line=keyword.value.lineno))
    try:
        return dict(kind.keywords.model_validate(literals)), faults
    except ValidationError as error:
        keys = {fault.key for fault in faults}
        found = faults_of(
            error, path, kind.keywords, f"a key of a {kind.word}",
            lambda key: lines.get(key.partition(".")[0], call.lineno),
        )  # fmt: skip
        return {}, sorted(
            faults + [fault for fault in found if fault.key not in keys], key=lambda fault: fault.line or 0
        )


def _literal(keyword: ast.keyword) -> Any:
    node = keyword.value
    if keyword.arg is None:
        raise ValueError("must be written out; ** cannot be read without importing the file")
    try:
        if keyword.arg not in _CALLS:
            return ast.literal_eval(node)
        name, positional, example = _CALLS[keyword.arg]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            by_place = dict(zip(positional, map(ast.literal_eval, node.args), strict=False))
            named = {inner.arg: ast.literal_eval(inner.value) for inner in node.keywords}
            if len(node.args) == len(by_place) and None not in named and by_place.keys().isdisjoint(named):
                return by_place | named
    except ValueError as error:
        raise ValueError("must be a literal, because the file is read without being imported") from error
    raise ValueError(f"must be written as {example}")


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
