"""The state folder: one place for everything that runs, marked as ours before anything in it is ever removed."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import RUNNING_FILE
from tocsin.dev.servers.ports import LOOPBACK
from tocsin.platform import private, state_file
from tocsin.platform.private import MARKER
from tocsin.platform.state_file import FORM_FILE, write_whole

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
        *("alerts.db", "batches", "checkpoints", "code.json", "drains", "engines", "heartbeats", "history"),
        *("job_servers", "logs", "models", "parity", "quality", "replays", "supervision", "tables", "views"),
        *(FORM_FILE, LOCK),
    )
    return all(path.name.startswith(ours) for path in state.iterdir())


_ABOUT_FILE = "stack.json"


@dataclass(frozen=True)
class Running:
    """A stack that runs.

    Attributes:
        sinks: files with the addresses of servers that keep views, by kind; each runs once a view names it.
    """

    pid: int
    kafka_port: int
    smtp_port: int
    drain_port: int
    web_port: int
    metrics_port: int
    mail_url: str
    airflow_url: str | None = None
    sinks: dict[str, Path] = field(default_factory=dict)


def announce(state: Path, running: Running) -> None:
    """Write what the settings and `read_running` read into the state folder; raises OSError if that is not writable."""
    settings = (
        f'[kafka]\nbootstrap_servers = "{LOOPBACK}:{running.kafka_port}"\n\n'
        f'[smtp]\nhost = "{LOOPBACK}"\nport = {running.smtp_port}\n\n'
        f"[drain]\nport = {running.drain_port}\n\n[web]\nport = {running.web_port}\n\n"
        f"[metrics]\nport = {running.metrics_port}\n\n"
        "[views]\n" + "".join(f"{kind}_file = {json.dumps(str(path))}\n" for kind, path in running.sinks.items())
    )
    state_file.write(state / _ABOUT_FILE, Running, running)
    write_whole(state / RUNNING_FILE, settings)


def withdraw(state: Path) -> None:
    """Take back what a stack announced that has ended."""
    for name in (RUNNING_FILE, _ABOUT_FILE):
        (state / name).unlink(missing_ok=True)


def read_running(state: Path) -> Running | None:
    """The stack that runs on this state folder, as far as it announced itself; None when there is none."""
    return state_file.read(state / _ABOUT_FILE, Running, None)
