"""Change the stage in a detector's file: that literal, and nothing else of the file."""

from __future__ import annotations

import ast
import re
import stat
from pathlib import Path

from tocsin.model.detector import Stage
from tocsin.model.errors import ConfigError, TransientError
from tocsin.project.code.python_syntax import parse
from tocsin.runtime.state_file import write_whole

_LINE_END = re.compile(rb"\r\n|\r|\n")


def with_stage(content: bytes, stage: Stage) -> bytes:
    """Return `content`, a detector's file that can be read, with another stage.

    Raises:
        ValueError: the literal is not where Python says, as in a file that is not UTF-8.
    """
    tree = parse(content)
    node = _stage(tree)
    starts = [0, *(found.end() for found in _LINE_END.finditer(content))]
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    quote = content[first : first + 1] if content[first : first + 1] in (b'"', b"'") else b'"'
    changed = content[:first] + quote + stage.encode() + quote + content[last:]
    node.value = stage.value
    if ast.dump(parse(changed)) != ast.dump(tree):
        raise ValueError("the literal of 'stage' is not where Python says")
    return changed


def set_stage(path: Path, seen: bytes, stage: Stage) -> None:
    """Replace the file of a detector, whose content was `seen`, by one `with_stage`; a link stays one.

    Raises:
        TransientError: it has changed meanwhile, or cannot be written; it is as it was.
        ConfigError: the literal cannot be found; change it by hand.
    """
    target = path.resolve()
    try:
        if target.read_bytes() != seen:
            raise TransientError(f"{path} has changed meanwhile; run this again")
        write_whole(target, with_stage(seen, stage), mode=stat.S_IMODE(target.stat().st_mode))
    except OSError as error:
        raise TransientError(f"{path} cannot be written: {error.strerror or error}; it is as it was") from error
    except (ValueError, SyntaxError) as error:
        raise ConfigError.one(path, f"{error}; change it by hand", key="stage") from error


def _stage(tree: ast.Module) -> ast.Constant:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    calls = [call for function in functions for call in function.decorator_list if isinstance(call, ast.Call)]
    own = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "detector"]
    values = [keyword.value for call in own for keyword in call.keywords if keyword.arg == "stage"]
    if len(values) != 1 or not isinstance(values[0], ast.Constant):
        raise ValueError("there is no literal 'stage'")
    return values[0]
