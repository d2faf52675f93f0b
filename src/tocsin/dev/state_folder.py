"""The state folder: one place for everything that runs, marked as ours before anything in it is ever removed."""

from __future__ import annotations

import shutil
from pathlib import Path

from tocsin.declare.model.errors import ConfigError
from tocsin.platform import private
from tocsin.platform.private import MARKER
from tocsin.platform.state_file import FORM_FILE

LOCK = "launcher.lock"
_ROOM_BYTES = 500 * 1024 * 1024


def prepare(state: Path) -> None:
    """Make and mark the folder; raises ConfigError if it is not ours or not writable, or the disk is nearly full."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        if not (state / MARKER).exists() and not _is_ours(state):
            what = f"is not empty and not a state folder of Tocsin; choose an empty one, or create {MARKER} in it"
            raise ConfigError.one(state, what, key="state")
        private.protect(state)
        private.mark(state)
    except OSError as error:
        raise ConfigError.one(state, f"cannot be used as state folder: {error.strerror}", key="state") from error
    free = shutil.disk_usage(state).free
    if free < _ROOM_BYTES:
        needed, left = _ROOM_BYTES // 2**20, free // 2**20
        raise ConfigError.one(state, f"the disk has {left} MB left; at least {needed} MB are needed", key="state")


def wipe(state: Path) -> None:
    """Remove all that the folder holds, but for the lock of whoever calls.

    Raises ConfigError if it is not marked as ours, and touches nothing then, or if it cannot be removed.
    """
    if not state.exists():
        return
    if not (state / MARKER).exists() and any(path.name != LOCK for path in state.iterdir()):
        raise ConfigError.one(state, f"is not marked as a state folder of Tocsin ({MARKER}); not wiped", key="state")
    try:
        for path in state.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
    except OSError as error:
        raise ConfigError.one(error.filename or state, f"cannot be removed: {error.strerror}", key="state") from error


def _is_ours(state: Path) -> bool:
    """Return whether an unmarked folder holds nothing, or only what jobs and commands put there without the stack."""
    ours = (
        "alerts.db",
        "checkpoints",
        "heartbeats",
        "history",
        "logs",
        "parity",
        "quality",
        "supervision",
        FORM_FILE,
        LOCK,
    )
    return all(path.name.startswith(ours) for path in state.iterdir())
