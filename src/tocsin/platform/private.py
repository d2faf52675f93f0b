"""State is for the user who runs Tocsin alone: it holds events, findings and addresses of databases."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from tocsin.declare.model.errors import ConfigError

UMASK = 0o077
RESTORING = "restore.unfinished"
"""The file in a state folder that is being restored from a backup (docs/run/backups.md): no job may start there."""
MARKER = ".tocsin-state"
"""The file that marks a state folder as ours; nothing is ever wiped without it."""
_PINS = "supervision/pins.json"  # written by `tocsin rollback`, which releases up to 0.1.0 had
_PATTERNS = ("alerts.db*", "airflow/airflow.db*")


def begin(state: Path) -> None:
    """Make the folder `state` unless it is there, mark it as ours if it holds nothing yet, and `protect` it.

    Raises as `protect` does, and an OSError if it cannot be made or written.
    """
    state.mkdir(parents=True, exist_ok=True)
    if not any(state.iterdir()):
        mark(state)
    protect(state)


def mark(state: Path) -> None:
    """Mark the folder `state` as ours; an OSError if it cannot be written."""
    (state / MARKER).write_text("The state of a Tocsin installation.\n", encoding="utf-8")


def refuse_shared(path: Path, key: str | None = None) -> None:
    """Raise a ConfigError, of the setting `key`, if others can read the secret in `path`; an OSError without it."""
    if path.stat().st_mode & UMASK:
        raise ConfigError.one(path, f"can be read by others; run: chmod 600 {shlex.quote(str(path))}", key=key)


def protect(state: Path) -> None:
    """Let no other user read what this process and its children write, nor the folder `state` and the DBs in it.

    What belongs to another user stays as it is. Raises a ConfigError, and nothing may begin on the folder, if a restore
    has left it half filled, an earlier release has rolled detectors back, or a later release has written there.
    """
    from tocsin.platform.state_file import claim_form  # noqa: PLC0415 - `tocsin --help` needs no pydantic

    if (state / RESTORING).exists():
        what = "a restore broke off; move the state folder away and restore again (docs/run/backups.md)"
        raise ConfigError.one(state / RESTORING, what)
    if (pins := state / _PINS).exists() and pins.read_bytes().strip() != b"{}":
        what = "an earlier release ran other versions than those of the files it names; this one runs files as they are"
        where = f"{state}/checkpoints/<job>/versions/<version>/"
        raise ConfigError.one(pins, f"{what}: copy the file in {where} over each, or not; then delete this")
    os.umask(UMASK)
    databases = (path for pattern in _PATTERNS for path in state.glob(pattern))
    for path, mode in [(state, 0o700), *((path, 0o600) for path in databases)]:
        with contextlib.suppress(OSError):
            path.chmod(mode)
    claim_form(state)
