"""Files and folders that lie on a disk or in an object store, with the few operations that checkpoints need.

On a disk they are `Path`s. An `ObjectPath` has the same names for the same operations, so that what reads and writes
notes need not know which it has; where a `Path` has no such name, there is a function here for both.
"""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

_AT_ONCE = 16
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class StoredEntry(NamedTuple):
    """One thing in a folder.

    Attributes:
        name: without the folder.
        is_folder: whether it is one.
        modified: when it was written, in seconds since 1970; 0 for a folder.
        size: bytes; 0 for a folder.
    """

    name: str
    is_folder: bool
    modified: float
    size: int


class ObjectStore(Protocol):
    """Keeps objects under keys, `bucket/prefix/name`. An object is replaced whole or not at all.

    Each method raises a ConfigError if the store refuses, and a TransientError if it cannot be reached or is too slow.
    """

    def entries(self, key: str) -> list[StoredEntry]:
        """List what lies in the folder `key`; nothing if there is none."""

    def find(self, key: str) -> StoredEntry | None:
        """Find the object or folder `key`; None if there is none."""

    def read(self, key: str) -> bytes:
        """Read the object `key`; a FileNotFoundError if there is none."""

    def opened(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Open the object `key` to read parts of it in the block; a FileNotFoundError if there is none."""

    def write(self, key: str, content: bytes) -> None:
        """Put `content` in the place of the object `key`."""

    def upload(self, key: str, file: BinaryIO) -> None:
        """Put what is left of `file`, perhaps more than memory holds, in the place of the object `key`.

        If `file` cannot be read, there may be a part of it.
        """

    def remove(self, key: str) -> None:
        """Remove the object `key`; nothing happens if there is none."""

    def remove_folder(self, key: str) -> None:
        """Remove the folder `key` with all in it; nothing happens if there is none."""

    def answering(self, key: str) -> AbstractContextManager[None]:
        """Turn the errors of another client, which uses the store in the block about `key`, into those of this one."""


@dataclass(frozen=True)
class ObjectPath:
    """A file or a folder in an object store. Its text is its URI, as Spark takes it."""

    store: ObjectStore = field(repr=False, compare=False)
    key: str

    def __str__(self) -> str:
        return f"s3a://{self.key}"

    def __truediv__(self, name: str | PurePath) -> ObjectPath:
        return ObjectPath(self.store, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """The last part of it."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The folder that it lies in."""
        return ObjectPath(self.store, self.key.rpartition("/")[0])

    def exists(self) -> bool:
        """Return whether there is such a file or folder."""
        return self.store.find(self.key) is not None

    def is_dir(self) -> bool:
        """Return whether it is a folder that holds something."""
        found = self.store.find(self.key)
        return found is not None and found.is_folder

    def is_file(self) -> bool:
        """Return whether it is a file."""
        found = self.store.find(self.key)
        return found is not None and not found.is_folder

    def iterdir(self) -> Iterator[ObjectPath]:
        """List what lies in it."""
        return (self / entry.name for entry in self.store.entries(self.key))

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """List what lies in it and below by the parts of `pattern`, such as `*/start.json`."""
        first, _, rest = pattern.partition("/")
        for entry in self.store.entries(self.key):
            if fnmatch.fnmatchcase(entry.name, first):
                if not rest:
                    yield self / entry.name
                elif entry.is_folder:
                    yield from (self / entry.name).glob(rest)

    def read_bytes(self) -> bytes:
        """Read all of a file; a FileNotFoundError if there is none."""
        return self.store.read(self.key)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Read all of a file as text."""
        return self.read_bytes().decode(encoding)

    def write_whole(self, content: bytes) -> None:
        """Put `content` in the place of what it held; it is kept when this returns, and whole whatever happens."""
        self.store.write(self.key, content)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file."""
        if not missing_ok and not self.exists():
            raise FileNotFoundError(str(self))
        self.store.remove(self.key)


StoredPath = Path | ObjectPath


def remove_tree(folder: StoredPath) -> None:
    """Remove `folder` with all in it; what a disk does not let go stays, as does nothing else."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.store.remove_folder(folder.key)


def find_all(folder: StoredPath, pattern: str) -> list[StoredPath]:
    """List what lies in `folder` by `pattern`, in the order of the names."""
    return sorted(folder.glob(pattern), key=str)


def read_each(read: Callable[[_Item], _Result], items: Sequence[_Item], place: StoredPath) -> list[_Result]:
    """Give what `read` finds in `place` for each of `items`, in their order; the first error ends it.

    In a store several are read at once: each takes as long as the way there and back, on a disk next to nothing.
    """
    if isinstance(place, Path):
        return [read(item) for item in items]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="store") as threads:
        return list(threads.map(read, items))


def open_stored(path: StoredPath) -> AbstractContextManager[BinaryIO]:
    """Open a file to read it in the block, from any place of it.

    Raises:
        FileNotFoundError: there is none.
        OSError: the disk cannot be read; a store gives a ConfigError or a TransientError, in the block too.
    """
    return path.open("rb") if isinstance(path, Path) else path.store.opened(path.key)


def move_in(file: StoredPath, target: StoredPath) -> None:
    """Move a `file` to `target`, from a disk or within a store; a store has it whole or not at all.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(file), target)
    else:
        with open_stored(file) as content:
            target.store.upload(target.key, content)
        file.unlink()


def size_of(path: StoredPath) -> int:
    """Read how many bytes a file has.

    Raises:
        FileNotFoundError: there is none.
    """
    if isinstance(path, Path):
        return path.stat().st_size
    found = path.store.find(path.key)
    if found is None or found.is_folder:
        raise FileNotFoundError(str(path))
    return found.size


def modified_at(path: StoredPath) -> float:
    """Read when `path` changed last, in seconds since 1970; a folder in a store with the newest file in it.

    Raises:
        FileNotFoundError: there is no such file or folder.
    """
    if isinstance(path, Path):
        return path.stat().st_mtime
    found = path.store.find(path.key)
    if found is None:
        raise FileNotFoundError(str(path))
    if not found.is_folder:
        return found.modified
    return max((entry.modified for entry in path.store.entries(path.key)), default=0.0)
