"""Modules of a project's `lib/`: those that a declared file reaches travel with its text.

Comments at the end of the text hold them, so that a copy of a version, a task on another machine and what runs now are
each whole, whatever lib/ holds by then.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tocsin.declare.code.case_code import without_cases
from tocsin.declare.code.python_syntax import compile_module, parse
from tocsin.declare.model.errors import ConfigError, Fault, nearest

LIB = "lib"
_CARRIED = re.compile(rb'^# carries (lib/[^:\n]+\.py): (".*")$', re.MULTILINE)
_DECLARED = ("detectors", "flows", "views")
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_IMPORTING = threading.RLock()


@dataclass
class OwnModule:
    """A module of `lib/` that a file reaches.

    Attributes:
        used: names of it that others import; None stands for all of them.
    """

    place: str
    path: Path
    text: str
    tree: ast.Module
    used: set[str] | None = field(default_factory=set)

    @property
    def functions(self) -> list[str]:
        """Name the functions and classes that may be used."""
        defined = [node.name for node in self.tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        return [name for name in defined if self.used is None or name in self.used]


def code_of(path: Path, *, with_cases: bool = False) -> bytes:
    """Read the declared file `path` with the modules that it reaches; those of cases alone only `with_cases`.

    Raises OSError, SyntaxError, or a ConfigError with all faults of its imports from lib/.
    """
    text = path.read_bytes()
    tree = parse(text, str(path))
    modules = own_modules(tree if with_cases else without_cases(tree), path, text)
    if not modules or _CARRIED.search(text):
        return text
    lines = [f"# carries {module.place}: {json.dumps(module.text)}\n" for module in modules]
    return text.rstrip(b"\n") + b"\n\n" + "".join(lines).encode()


def carrying(text: bytes, carrier: bytes) -> bytes:
    """Let `text` carry the modules that `carrier` does."""
    return text + b"\n" + b"".join(found[0] + b"\n" for found in _CARRIED.finditer(carrier))


def lib_files(project: Path) -> list[Path]:
    """List the files of `lib/`."""
    return sorted((project / LIB).rglob("*.py"))


def own_modules(tree: ast.Module, path: Path, text: bytes) -> list[OwnModule]:
    """List the modules that `tree`, parsed of the `text` of `path`, reaches, by place; `text` may carry them.

    Raises a ConfigError with all faults: a module that is missing, cannot be parsed, is there twice or imports a
    declared file, an import inside a function, and a file of a project that carries modules.
    """
    if path.parent.name in _DECLARED and (found := _CARRIED.search(text)):
        what = f"carries {found[1].decode()} of an earlier version, which would run instead of that file; remove all "
        what += "comments '# carries lib/...', and revert what has changed in lib/"
        raise ConfigError.one(path, what, line=text.count(b"\n", 0, found.start()) + 1)
    try:
        carried = _carried(text)
    except ValueError as error:
        what = f"has a comment '# carries lib/...' that is cut or changed ({error}); remove it, and mend lib/ instead"
        raise ConfigError.one(path, what) from error
    reach = _Reach(path.parent.parent, carried)
    reach.follow(tree, path, "")
    if reach.faults:
        raise ConfigError(list(dict.fromkeys(reach.faults)))
    return [module for _, module in sorted(reach.modules.items())]


@contextlib.contextmanager
def importable(path: Path, text: bytes) -> Iterator[list[Path]]:
    """Let the block import the modules that `text`, of the file `path`, carries; gives their files.

    After it they are in no list of modules, so that cloudpickle sends what is in them to Python workers by value.
    """
    carried, root = _carried(text), path.parent.parent
    if not carried:
        yield []
        return
    finder = _Finder(root, carried)
    with _IMPORTING:
        before = _taken_out()
        sys.meta_path.insert(0, finder)
        try:
            yield [root / place for place in carried]
        finally:
            sys.meta_path.remove(finder)
            for module in _taken_out().values():
                module.__spec__ = module.__loader__ = None  # of no use in a worker
            sys.modules.update(before)


def _taken_out() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == LIB}


def _carried(text: bytes) -> dict[str, str]:
    return {place.decode(): json.loads(content) for place, content in _CARRIED.findall(text)}


class _Reach:
    """Follows the imports of a file through `lib/` of the project `root`."""

    def __init__(self, root: Path, carried: Mapping[str, str]) -> None:
        self._root, self._carried = root, carried
        self.modules: dict[str, OwnModule] = {}
        self.faults: list[Fault] = []

    def follow(self, tree: ast.Module, path: Path, package: str) -> None:
        inside = {
            id(node) for outer in ast.walk(tree) if isinstance(outer, _Function) for node in ast.walk(outer)
        }  # fmt: skip
        for node in ast.walk(tree):
            for name, names in imports_in(node, package):
                root = name.partition(".")[0]
                if root in _DECLARED:
                    self._fault(path, node, f"imports {name}; what several files use belongs into a module of lib/")
                elif root == LIB and id(node) in inside:
                    self._fault(path, node, f"imports {name} inside a function; import it at the top of the file")
                elif root == LIB:
                    self._import(path, node, name, names)

    def _import(self, path: Path, node: ast.AST, name: str, names: Sequence[str]) -> None:
        parts = name.split(".")
        for count in range(1, len(parts)):  # Python runs the packages around it first
            self._module(path, node, ".".join(parts[:count]))
        module = self._module(path, node, name)
        for each in names:
            stem = f"{name}.{each}".replace(".", "/")
            if self._text(f"{stem}.py") is not None or self._is_folder(stem):
                self._import(path, node, f"{name}.{each}", ())
            elif module is not None and module.used is not None:
                module.used.add(each)
        if module is not None and (not names or "*" in names):
            module.used = None

    def _module(self, path: Path, node: ast.AST, name: str) -> OwnModule | None:
        if name in self.modules:
            return self.modules[name]
        stem = name.replace(".", "/")
        places = [place for place in (f"{stem}.py", f"{stem}/__init__.py") if self._text(place) is not None]
        if len(places) != 1:
            if places or not self._is_folder(stem):
                self._fault(path, node, *self._unclear(name, stem, places))
            return None
        file, text = self._root / places[0], self._text(places[0]) or b""
        try:
            tree = parse(text.decode(), str(file))
        except (SyntaxError, ValueError) as error:  # UnicodeDecodeError is one of the latter
            line = error.lineno if isinstance(error, SyntaxError) else None
            self.faults.append(Fault(str(file), f"is not Python 3.11: {error}", line=line))
            return None
        module = self.modules[name] = OwnModule(places[0], file, text.decode(), tree)
        self.follow(tree, file, name if file.name == "__init__.py" else name.rpartition(".")[0])
        return module

    def _unclear(self, name: str, stem: str, places: Sequence[str]) -> tuple[str, str | None]:
        if places:
            return f"imports {name}, of which there are two: {' and '.join(places)}; remove one", None
        package, _, own = name.rpartition(".")
        near = nearest(own, [each.stem for each in (self._root / LIB).glob("*.py")]) if package == LIB else None
        return f"imports {name}, and there is no file {self._root / stem}.py", near and f"{package}.{near}"

    def _text(self, place: str) -> bytes | None:
        if self._carried:
            return self._carried[place].encode() if place in self._carried else None
        file = self._root / place
        return file.read_bytes() if file.is_file() else None

    def _is_folder(self, stem: str) -> bool:
        if self._carried:
            return any(place.startswith(f"{stem}/") for place in self._carried)
        return (self._root / stem).is_dir()

    def _fault(self, path: Path, node: ast.AST, what: str, near: str | None = None) -> None:
        self.faults.append(Fault(str(path), what, line=getattr(node, "lineno", None), nearest=near))


def imports_in(node: ast.AST, package: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Name what `node`, of a module of `package`, imports: modules, each with the names that are imported from it."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, ()) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        around = parts[: len(parts) - node.level + 1] if node.level and package else []
        if name := ".".join([*around, *filter(None, [node.module])]):
            yield name, [alias.name for alias in node.names]


class _Finder(MetaPathFinder, Loader):
    def __init__(self, root: Path, carried: Mapping[str, str]) -> None:
        self._root, self._carried = root, carried

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        stem = name.replace(".", "/")
        is_package = any(place.startswith(f"{stem}/") for place in self._carried)
        if not is_package and f"{stem}.py" not in self._carried:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        stem = module.__name__.replace(".", "/")
        place = f"{stem}.py" if f"{stem}.py" in self._carried else f"{stem}/__init__.py"
        file = str(self._root / place)
        module.__file__ = file
        exec(compile_module(parse(self._carried.get(place, ""), file), file), module.__dict__)
