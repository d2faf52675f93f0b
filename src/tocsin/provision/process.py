"""Run the programs that set-up needs, and turn their failure into an error that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tocsin.model.errors import TransientError

_TAIL_LINES = 40

Command: TypeAlias = list[str | Path]


def run(command: Command, what: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run `command` and return its standard output.

    Its progress (standard error) is shown on a terminal, and kept for the error otherwise.

    Raises:
        TransientError: when the command fails. Most often the network did, and a second run resumes.
    """
    shown = None if sys.stderr.isatty() else subprocess.PIPE
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=shown,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        output = "\n".join(((done.stdout or "") + (done.stderr or "")).splitlines()[-_TAIL_LINES:])
        raise TransientError(f"{what} failed (exit code {done.returncode}):\n{output}\nTo resume: make setup")
    return done.stdout
