"""Keep small state in files that are replaced whole or not at all, whenever process or machine stop.

All of them together have a form. A release refuses that of a later one, which it would read wrongly, or take for none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Callable, Hashable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from pydantic import BaseModel, TypeAdapter, ValidationError

from tocsin.declare.model.errors import ConfigError

FORM = 2
"""Of the small files in a state folder and in checkpoints. A change that the release before cannot read raises it."""
FORM_FILE = "form.json"
_Value = TypeVar("_Value")
Stamps = frozenset[tuple[str, int, int]]
"""Path, time of the last change and size of files."""


class StoredFile(Protocol):
    """A file that may lie elsewhere than on a disk: see `tocsin.platform.storage.stored_path.ObjectPath`."""

    def read_bytes(self) -> bytes:
        """Read all of it; a FileNotFoundError if there is none."""

    def write_whole(self, content: bytes) -> None:
        """Put `content` in the place of what it held, whole or not at all."""


class StateForm(BaseModel, frozen=True):
    """The form of what was written, and the release that first wrote so; as of 0.1.0 where nothing says it."""

    form: int = 1
    tocsin: str = ""


@overload
def read(path: Path | StoredFile, kind: type[_Value], default: None) -> _Value | None: ...
@overload
def read(path: Path | StoredFile, kind: type[_Value], default: _Value) -> _Value: ...
def read(path: Path | StoredFile, kind: type[_Value], default: _Value | None) -> _Value | None:
    """Read the `kind` in `path` as JSON; `default` if the file is missing or broken. OSError if it cannot be read."""
    try:
        return load(path, kind)
    except (FileNotFoundError, ValidationError):
        return default


def load(path: Path | StoredFile, kind: type[_Value]) -> _Value:
    """Read the value of type `kind` in `path`, as JSON. OSError if it cannot be read, ValueError if it is broken."""
    value: _Value = _adapter(cast(Hashable, kind)).validate_json(path.read_bytes())
    return value


def write(path: Path | StoredFile, kind: type[_Value], value: _Value) -> None:
    """Write `value` of type `kind` to `path` as JSON; errors as for `write_whole`."""
    write_whole(path, _adapter(cast(Hashable, kind)).dump_json(value, indent=1))


@functools.cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    # Building one costs more than reading a file.
    return TypeAdapter(cast(Any, kind))


def stamps(paths: Iterable[Path]) -> Stamps:
    """Stamp each of `paths` that is there: equal stamps mean that no file was changed, added or removed."""
    found = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.add((str(path), status.st_mtime_ns, status.st_size))
    return frozenset(found)


class Followed(Generic[_Value]):
    """A value that is read from files, again only when one of them was changed, added or removed."""

    def __init__(self, files: Callable[[], Iterable[Path]], reader: Callable[[], _Value]) -> None:
        self._files, self._reader = files, reader
        self._last: tuple[Stamps, _Value] | None = None

    def read(self) -> _Value:
        """Read what has changed; the same object while nothing has. Raises as its reader does."""
        now = stamps(self._files())
        if self._last is None or self._last[0] != now:
            self._last = now, self._reader()
        return self._last[1]


def write_whole(path: Path | StoredFile, content: str | bytes, *, mode: int = 0o666) -> None:
    """Put `content` (text as UTF-8) in the place of what `path` held; it is on the disk when this returns.

    Any number of processes and threads may do so at once: the last one wins. The folder is made when it is missing.
    `mode` are the permissions on a disk, less those that the umask takes away.

    Raises an OSError if the disk is full or the folder cannot be written; `path` is as it was, and nothing else is left
    behind. A retry helps once there is room.
    """
    data = content.encode() if isinstance(content, str) else content
    if not isinstance(path, Path):
        path.write_whole(data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


def read_or_make_secret(path: Path) -> str:
    """Read the secret in `path`; the first of all processes that ask makes it, for its user alone. OSError if not."""
    if not path.exists():
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            write_whole(draft, f"{secrets.token_urlsafe(24)}\n", mode=0o600)
            with contextlib.suppress(FileExistsError):  # another one has made it: unlike a rename, this leaves it
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    return path.read_text(encoding="utf-8").strip()


def _sync(folder: Path) -> None:
    """Until its folder is on the disk, a new name for a file is not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def claim_form(state: Path) -> None:
    """Note in the folder `state` that its files have the form of this release, which reads those of earlier ones.

    Raises a ConfigError if a later release has written there; nothing was changed.
    """
    path = state / FORM_FILE
    there = read(path, StateForm, None)
    if there is not None:
        _refuse_later(path, there, "restore a backup that this one has made")
    if state.is_dir() and (there is None or there.form < FORM):
        with contextlib.suppress(OSError):  # whatever writes there next says that it cannot
            write(path, StateForm, StateForm(form=FORM, tocsin=version("tocsin")))


def load_formed(path: Path | StoredFile, kind: type[_Value], advice: str) -> _Value:
    """Read the JSON object in `path`, whose `form` says how it is written, as a value of type `kind`.

    Raises an OSError if the file is not there or cannot be read, and a ConfigError with `advice` if a later release has
    written it, or it is broken.
    """
    try:
        _refuse_later(path, load(path, StateForm), advice)
        return load(path, kind)
    except ValidationError as error:
        raise ConfigError.one(str(path), f"cannot be read ({error.error_count()} faults in it); {advice}") from error


def _refuse_later(path: Path | StoredFile, written: StateForm, advice: str) -> None:
    if written.form > FORM:
        who = f"Tocsin {written.tocsin}" if written.tocsin else "a later Tocsin"
        what = f"was written by {who} in form {written.form}; this Tocsin, {version('tocsin')}, reads up to form {FORM}"
        raise ConfigError.one(str(path), f"{what}; start the later one again, or {advice}")
