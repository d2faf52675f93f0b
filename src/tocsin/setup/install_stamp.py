"""Remember what is installed: a stamp in each folder names the locks it was made from.

Written last, and inside: an interrupted step leaves no stamp, and deleting a folder deletes its stamp.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

STAMP = ".tocsin-stamp"


def digest(*parts: Path | str) -> str:
    """Hash of texts and of the contents of files."""
    hashed = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part.encode()
        hashed.update(len(content).to_bytes(8, "big") + content)
    return hashed.hexdigest()


def is_current(folder: Path, made_from: str) -> bool:
    """Return whether `folder` is complete and was made from the locks with this digest."""
    return stamp_of(folder) == made_from


def stamp_of(folder: Path) -> str | None:
    """Read the digest of what `folder` was made from; None if it is not complete."""
    try:
        return (folder / STAMP).read_text(encoding="utf-8")
    except OSError:
        return None


def mark_current(folder: Path, made_from: str) -> None:
    """Record that `folder` is complete."""
    (folder / STAMP).write_text(made_from, encoding="utf-8")


@contextlib.contextmanager
def replacing(folder: Path, made_from: str) -> Iterator[Path]:
    """An empty folder beside `folder`, which takes its place when the block ends well; leftovers are removed first."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    mark_current(partial, made_from)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Keep a second set-up waiting until this one is done; the kernel frees the lock of a killed one."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
