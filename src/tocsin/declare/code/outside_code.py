"""Name what a declared file uses besides the code of its project: locked packages, and functions of `tocsin.stats`.

Its version covers both, so that a file means the same wherever and whenever it runs.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tocsin.declare.code.case_code import without_cases
from tocsin.declare.code.outside_reads import reached
from tocsin.declare.code.own_modules import LIB, imports_in, own_modules
from tocsin.declare.code.python_syntax import parse

_TOCSIN = Path(__file__).resolve().parents[2]
_STATS, _STATS_COLUMNS = "tocsin.stats", "tocsin.stats.spark"
_OURS = {"tocsin", "pyspark", LIB}
_OF_MODELS = ("numpy", "pandas")
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)


def lock_files(project: Path) -> list[Path]:
    """List the locks of the packages of `project`."""
    return [*project.glob("requirements.txt"), *sorted(project.glob("environments/*.txt"))]


def package_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Give the line and the name of each package that `tree` imports, but for Tocsin, Spark and Python's own.

    What stands inside `try` or `if` is left out: the file gets on without it.
    """
    optional = {id(node) for outer in ast.walk(tree) if isinstance(outer, ast.Try | ast.If) for node in ast.walk(outer)}
    for node in ast.walk(tree):
        for name, _ in imports_in(node, LIB):
            root = name.partition(".")[0]
            if root not in _OURS and root not in sys.stdlib_module_names and id(node) not in optional:
                yield getattr(node, "lineno", 1), root


def file_imports(path: Path) -> Iterator[tuple[Path, int, str]]:
    """Give the `package_imports` of a declared file, without its cases, and of the modules of lib/ that it reaches."""
    text = path.read_bytes()
    tree = without_cases(parse(text, str(path)))
    for file, module in [(path, tree), *((module.path, module.tree) for module in own_modules(tree, path, text))]:
        yield from ((file, line, name) for line, name in package_imports(module))


def outside_code(trees: Sequence[ast.Module], project: Path, values: Mapping[str, Any]) -> list[str]:
    """Identify what `trees`, the code of a file that declares `values`, use besides; a comment each."""
    is_model = values.get("model") is not None
    return _used_statistics(trees) + _locked_packages(trees, project, values.get("environment", ""), is_model=is_model)


def _locked_packages(trees: Iterable[ast.Module], project: Path, environment: str, *, is_model: bool) -> list[str]:
    """List the locked versions of packages that code may use: all of its environment, if one of them is imported.

    Of what Tocsin itself brings, only what is imported counts; a model is made of numpy and pandas.
    """
    names = {name for tree in trees for _, name in package_imports(tree)} | {*(_OF_MODELS if is_model else ())}
    ours = _pins(_TOCSIN.parents[1] / "locks" / "python.txt") if names else set()
    found = {(name, version) for name, version in ours if name in names}
    if names - {name for name, _ in ours}:
        found |= _pins(project / (f"environments/{environment}.txt" if environment else "requirements.txt"))
    return [f"# {name}=={version}" for name, version in sorted(found)]


def _used_statistics(trees: Iterable[ast.Module]) -> list[str]:
    """Identify the code of `tocsin.stats` that `trees` use; empty if they use none."""
    imports = [found for tree in trees for node in ast.walk(tree) for found in imports_in(node, LIB)]
    lines = []
    for module in (_STATS, _STATS_COLUMNS):
        names = {name for imported, of in imports if imported == module for name in of or ["*"]}
        is_whole = "*" in names or any(f"{imported}.{name}" == module for imported, of in imports for name in of)
        if names or is_whole:
            known = _definitions(module)
            used = [known[name] for name in sorted(reached(known, known if is_whole else names))]
            digest = hashlib.sha256(ast.unparse(ast.Module(used, [])).encode()).hexdigest()[:12]
            lines.append(f"# {module} {digest}")
    return lines


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """Find what is defined at the top of the files of `module`, without docstrings."""
    files, found = sorted((_TOCSIN / "stats").glob("*.py")), dict[str, ast.stmt]()
    if module == _STATS_COLUMNS:
        files.append(_TOCSIN / "stats" / "spark" / "__init__.py")
    for node in [node for file in files for node in parse(file.read_text(encoding="utf-8")).body]:
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner, clean=False) is not None:
                inner.body = inner.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


def _pins(lock: Path) -> set[tuple[str, str]]:
    """Read packages and versions in a lock; none if there is no such file."""
    return set(_PIN.findall(lock.read_text(encoding="utf-8", errors="replace"))) if lock.is_file() else set()
