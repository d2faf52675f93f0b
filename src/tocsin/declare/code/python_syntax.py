"""Parse Python, and compile what was parsed, in one thread at a time.

CPython 3.11 counts the depth of a tree for all threads together: two that build one at once may each end with
"SystemError: AST constructor recursion depth mismatch" (seen with 3.11.7).
"""

from __future__ import annotations

import ast
import threading
from types import CodeType

_ONE_AT_A_TIME = threading.RLock()


def parse(code: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Parse a module; `name` is its file. SyntaxError if it is not Python, ValueError if it holds a null byte."""
    with _ONE_AT_A_TIME:
        return ast.parse(code, name)  # noqa: TID251 - here it is safe


def parse_expression(text: str) -> ast.expr:
    """Parse an expression; raises as `parse` does."""
    with _ONE_AT_A_TIME:
        return ast.parse(text, mode="eval").body  # noqa: TID251 - here it is safe


def compile_module(tree: ast.Module, name: str) -> CodeType:
    """Compile what `parse` gave; `name` is its file."""
    with _ONE_AT_A_TIME:
        return compile(tree, name, "exec")
