"""Run the programs that set-up needs, and turn their failure into an error that says what to do."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tocsin.declare.model.errors import ConfigError, TransientError

DISK_FULL = "the disk is full; set-up takes 3 GB, and as much again if uv's cache lies on another disk"
READABLE = 0o022
"""The umask of set-up: what it installs is no secret, and the jobs may be those of another user than installs them."""
_TAIL_LINES = 40
_FULL = os.strerror(errno.ENOSPC)

Command: TypeAlias = list[str | Path]


def run(command: Command, what: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run `command` and return its standard output.

    ConfigError if the disk is full, TransientError if it fails otherwise: most often the network did, and a second run
    resumes.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        umask=READABLE,
    )
    if not done.returncode:
        return done.stdout
    output = "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:])
    if _FULL in output:
        raise ConfigError.one(what, f"{DISK_FULL}; free some, then run: make setup\n{output}")
    raise TransientError(f"{what} failed (exit code {done.returncode}):\n{output}\nTo resume: make setup")
