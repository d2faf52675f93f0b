"""Small files that are there whole or not at all, whenever the machine stops."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Put `text` in the place of what `path` held; the folder is made when it is missing.

    Raises:
        OSError: the disk is full or the folder cannot be written; `path` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
