"""What supervision remembers between two calls, as a JSON file: it must outlive the process that supervises."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tocsin.supervision.model import History

_ADAPTER = TypeAdapter(History)


def read_history(path: Path) -> History:
    """What `path` remembers; nothing when there is no such file, or a broken one: a forgotten back-off does no harm."""
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return History()


def write_history(path: Path, history: History) -> None:
    """Remember `history` in `path`, at once or not at all.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(_ADAPTER.dump_json(history))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
