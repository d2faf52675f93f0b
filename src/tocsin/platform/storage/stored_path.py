"""Files and folders that lie on a disk or in an object store, with the few operations that checkpoints need.

On a disk they are `Path`s. An `ObjectPath` has the same names for the same operations, so that what reads and writes
notes need not know which it has; where a `Path` has no such name, there is a function here for both. In a store each
raises a ConfigError if the store refuses, and a TransientError if it cannot be reached or is too slow.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeVar

from tocsin.platform.storage.s3_store import S3Store

_AT_ONCE = 16
_PART_BYTES = 8 * 1_048_576
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ObjectPath:
    """A file or a folder in an object store. Its text is its URI, as Spark takes it."""

    store: S3Store = field(repr=False, compare=False)
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

    def info(self) -> Any:
        """Ask for pyarrow's `FileInfo`; None if there is no such file or folder."""
        from pyarrow.fs import FileType

        with self.store.answering(self.key):
            (info,) = self.store.files.get_file_info([self.key])
        return None if info.type is FileType.NotFound else info

    def listing(self) -> list[Any]:
        """List what lies in it, as pyarrow's `FileInfo`; nothing if there is no such folder."""
        from pyarrow.fs import FileSelector

        with self.store.answering(self.key):
            return list(self.store.files.get_file_info(FileSelector(self.key, allow_not_found=True)))

    def exists(self) -> bool:
        """Return whether there is such a file or folder."""
        return self.info() is not None

    def is_dir(self) -> bool:
        """Return whether it is a folder that holds something."""
        info = self.info()
        return info is not None and not info.is_file

    def is_file(self) -> bool:
        """Return whether it is a file."""
        info = self.info()
        return info is not None and bool(info.is_file)

    def iterdir(self) -> Iterator[ObjectPath]:
        """List what lies in it."""
        return (self / info.base_name for info in self.listing())

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """List what lies in it and below by the parts of `pattern`, such as `*/start.json`."""
        first, _, rest = pattern.partition("/")
        for info in self.listing():
            if fnmatch.fnmatchcase(info.base_name, first):
                if not rest:
                    yield self / info.base_name
                elif not info.is_file:
                    yield from (self / info.base_name).glob(rest)

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open a file to read it in the block, from any place of it; a FileNotFoundError if there is none."""
        with self.store.answering(self.key), self.store.files.open_input_file(self.key) as file:
            yield file

    def read_bytes(self) -> bytes:
        """Read all of a file; a FileNotFoundError if there is none."""
        with self.opened() as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Read all of a file as text."""
        return self.read_bytes().decode(encoding)

    def write_whole(self, content: bytes) -> None:
        """Put `content` in the place of what it held; it is kept when this returns, and whole whatever happens."""
        with self.store.answering(self.key), self.store.files.open_output_stream(self.key) as stream:
            stream.write(content)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file."""
        if not missing_ok and not self.exists():
            raise FileNotFoundError(str(self))
        with self.store.answering(self.key), contextlib.suppress(FileNotFoundError):
            self.store.files.delete_file(self.key)


StoredPath = Path | ObjectPath


def remove_tree(folder: StoredPath) -> None:
    """Remove `folder` with all in it; what a disk does not let go stays, as does nothing else."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with folder.store.answering(folder.key), contextlib.suppress(FileNotFoundError):
        folder.store.files.delete_dir(folder.key)


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
    """Open a file to read it in the block, from any place of it; a FileNotFoundError if there is none."""
    if not isinstance(path, Path):
        return path.opened()
    import pyarrow as pa

    path.open("rb").close()  # whose errors are those that people know
    # What pyarrow 26 reads of a file of Python's its threads may give back when the process ends, and abort it: 5 times
    # of 100 in a program that ends at once.
    opened: AbstractContextManager[BinaryIO] = pa.OSFile(str(path))
    return opened


def move_in(file: StoredPath, target: StoredPath) -> None:
    """Move a `file` to `target`, from a disk or within a store, whole or not at all. OSError if the disk is full."""
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(file), target)
        with target.open("rb") as moved:
            os.fsync(moved.fileno())  # a ledger that names it must not outlive it in a power cut
        return
    files, key = target.store.files, target.key
    with open_stored(file) as content, target.store.answering(key), files.open_output_stream(key) as stream:
        shutil.copyfileobj(content, stream, _PART_BYTES)
    file.unlink()


def size_of(path: StoredPath) -> int:
    """Read how many bytes a file has; a FileNotFoundError if there is none."""
    if isinstance(path, Path):
        return path.stat().st_size
    info = path.info()
    if info is None or not info.is_file:
        raise FileNotFoundError(str(path))
    return int(info.size)


def modified_at(path: StoredPath) -> float:
    """Read when `path`, or the newest file in it in a store, changed: seconds since 1970, or FileNotFoundError."""
    if isinstance(path, Path):
        return path.stat().st_mtime
    info = path.info()
    if info is None:
        raise FileNotFoundError(str(path))
    files = [info] if info.is_file else path.listing()
    return max((float(file.mtime.timestamp()) for file in files if file.mtime is not None), default=0.0)
