"""Hash the code that a job runs, without what cannot change its behaviour: docstrings, comments and layout."""

from __future__ import annotations

import ast
import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from tocsin.declare.code.python_syntax import parse
from tocsin.platform import state_file

_FILE = "code.json"
# Some 400 files are hashed for all kinds of jobs; those of the releases before are forgotten at last.
_MOST = 4000
_PARSED: dict[str, str] = {}
"""The hash of the statements, by the hash of the file: of what this process has parsed or read."""


def code_identity(files: Sequence[Path], root: Path, state: Path) -> str:
    """Hash the names below `root` and the statements of `files`.

    To parse them all takes 1.2 s, so the hash of each file's statements is kept in `state` by the hash of the file, for
    the next process. Without that note, or if it cannot be written, the result is the same. Raises OSError if a file of
    the code cannot be read.
    """
    note, digest = state / _FILE, hashlib.sha256()
    known = state_file.read(note, dict[str, str], {})
    _PARSED.update(known)
    contents = [(path, path.read_bytes()) for path in files]
    owns = [hashlib.sha256(content).hexdigest() for _, content in contents]
    for (path, content), own in zip(contents, owns, strict=True):
        if own not in _PARSED:
            _PARSED[own] = _statements(content)
        digest.update(f"{path.relative_to(root)}\0{_PARSED[own]}\0".encode())
    if state.is_dir() and not known.keys() >= {*owns}:
        with contextlib.suppress(OSError):
            others = known if len(known) < _MOST else {}
            state_file.write(note, dict[str, str], others | {own: _PARSED[own] for own in owns})
    return digest.hexdigest()


def _statements(content: bytes) -> str:
    """Hash the statements of a file of Python, or the file if it is none."""
    try:
        tree = parse(content)
    except (SyntaxError, ValueError):
        return hashlib.sha256(content).hexdigest()
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, field, None), list):
                # A text alone is a docstring, of a module, function or class or of the name above it: it does nothing.
                setattr(node, field, [statement for statement in block if not _is_text(statement)])
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
