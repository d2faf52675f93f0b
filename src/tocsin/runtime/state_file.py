"""What must outlive a process, as small JSON files that are replaced whole."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from tocsin.runtime.durable import write_whole

_Kept = TypeVar("_Kept")


def read(path: Path, kind: TypeAdapter[_Kept], otherwise: _Kept) -> _Kept:
    """What `path` keeps; `otherwise` when there is no such file, or a broken one."""
    try:
        return kind.validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return otherwise


def write(path: Path, kind: TypeAdapter[_Kept], value: _Kept) -> None:
    """Keep `value` in `path`.

    Raises:
        OSError: the disk is full or the folder cannot be written; what was kept before is still there.
    """
    write_whole(path, kind.dump_json(value, indent=1))
