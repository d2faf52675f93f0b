"""A program: runs commands of `tocsin` in one process, so that they share a JVM, and tells of each as a line of JSON.

`run_commands.py STATE` reads a list of lists of words. Each line has `code`, `out`, `err`, and `changed`: the files of
the folder STATE that the command has made, changed or removed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from typer.testing import CliRunner

from tocsin.cli.app import app


def files(state: Path) -> dict[str, str]:
    """The content of each file, as a digest."""
    found = (path for path in state.rglob("*") if path.is_file())
    return {str(path.relative_to(state)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def main() -> None:
    state, before = Path(sys.argv[1]), files(Path(sys.argv[1]))
    for words in json.load(sys.stdin):
        result = CliRunner().invoke(app, words)
        after = files(state)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        error = "" if isinstance(result.exception, SystemExit) or result.exception is None else str(result.exception)
        told = {"code": result.exit_code, "out": result.stdout, "err": result.stderr + error, "changed": changed}
        print(json.dumps(told), flush=True)
        before = after


if __name__ == "__main__":
    main()
