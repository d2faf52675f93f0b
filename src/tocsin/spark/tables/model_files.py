"""The models of one detector: files by the hash of their contents, each with the facts of its training.

A pickle runs code when it is loaded. So a file is loaded only if its contents have the hash that the table of the
detector's models names: one that was cut, replaced, or put there by somebody is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import pickle
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.setting_blocks import S3
from tocsin.declare.settings import Settings, load_settings
from tocsin.platform import state_file
from tocsin.platform.storage.job_folders import folder_at
from tocsin.platform.storage.stored_path import StoredPath, find_all, modified_at

_FOLDER, _MOST_LOADED = "models", 8
_loaded: dict[str, Any] = {}


class UnusableModel(TocsinError):
    """A model's file is gone or is not what it was; a retry does not help, training or reverting does."""


class Findings(BaseModel, frozen=True):
    """What a model finds in the last days that it was trained on, beside the one before it.

    Attributes:
        days: so many days.
        new, old: windows above the lowest limit; `old` is None for the first model.
        appear, vanish: windows that only the new, or only the old model finds, some of them as text.
    """

    days: int
    new: int
    old: int | None = None
    appear: tuple[str, ...] = ()
    vanish: tuple[str, ...] = ()


class ModelFacts(BaseModel, frozen=True):
    """What a model was made of, and how its training went.

    Attributes:
        hash: SHA-256 of its file.
        day: the first day that it is for.
        first, last: of the `days` sealed days whose features it was trained on.
        rows: of features.
        code: of the functions and the declaration that it was trained by.
        packages: versions of what was imported.
        seconds, memory: that the training took; memory in bytes, at most.
        is_repeatable: a second training gave the same scores; None if none was tried.
        drifted: features that are not what they were.
    """

    hash: str
    day: date
    first: date
    last: date
    days: int
    rows: int
    code: str
    version: str
    packages: dict[str, str]
    seconds: float
    memory: int
    bytes: int
    is_repeatable: bool | None = None
    drifted: tuple[str, ...] = ()
    findings: Findings
    trained_at: datetime


@dataclass(frozen=True)
class ModelFiles:
    """The folder of the models of one detector, which may be sent to another process: `<state>/models/<detector>`.

    With `storage.history` they lie there, so that executors on other machines can read them.
    """

    place: str

    @classmethod
    def of(cls, settings: Settings, detector: str) -> ModelFiles:
        """Find that of `detector`."""
        return cls(f"{model_root(settings)}/{detector}")

    @property
    def _detector(self) -> str:
        return self.place.rpartition("/")[2]

    def add(self, content: bytes, digest: str, facts: ModelFacts | None = None) -> None:
        """Keep a model. TransientError if the disk or the store does not take it."""
        folder = self.folder()
        try:
            state_file.write_whole(folder / _name(digest), content)
            if facts is not None:
                state_file.write(folder / f"{digest}.json", ModelFacts, facts)
        except OSError as error:
            raise TransientError(f"{self.place}: {error}") from error

    def facts(self, digest: str) -> ModelFacts | None:
        """Read the facts of a model; None if they are gone."""
        with contextlib.suppress(OSError, ValidationError):
            return state_file.load(self.folder() / f"{digest}.json", ModelFacts)
        return None

    def read(self, digest: str) -> bytes:
        """Read the file of a model. UnusableModel if it is gone, or its contents are others."""
        path = self.folder() / _name(digest)
        own = self._detector
        remedy = f"train it again: tocsin model train {own}, or go back: tocsin model hold {own} --previous"
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise UnusableModel(f"{path}: the model's file is gone; {remedy}") from error
        except OSError as error:
            raise TransientError(f"{path}: {error}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise UnusableModel(f"{path}: the file is not the model that was trained, and is not loaded; {remedy}")
        return content

    def load(self, digest: str) -> Any:
        """Load a model, once in this process. UnusableModel as for `read`, and if it cannot be unpickled here."""
        if digest not in _loaded:
            content = self.read(digest)
            try:
                model = pickle.loads(content)
            except Exception as error:
                facts = self.facts(digest)
                packages = facts.packages if facts is not None else {}
                what = f"cannot be loaded here ({type(error).__name__}: {error}); it was trained with "
                what += ", ".join(_beside_ours(*one) for one in packages.items()) or "unknown packages"
                remedy = "install what it was trained with: tocsin packages; "
                remedy += f"or train again: tocsin model train {self._detector}"
                raise UnusableModel(f"{self.place}/{_name(digest)}: {what}; {remedy}") from error
            while len(_loaded) >= _MOST_LOADED:
                del _loaded[next(iter(_loaded))]
            _loaded[digest] = model
        return _loaded[digest]

    def forget(self, named: Collection[str], before: datetime) -> None:
        """Remove the files of models that are not `named` and were written before the moment `before`."""
        for path in find_all(self.folder(), "*"):
            if path.name.partition(".")[0] not in named and modified_at(path) < before.timestamp():
                path.unlink(missing_ok=True)

    def folder(self) -> StoredPath:
        """Name the folder."""
        return folder_at(load_settings(), self.place) if self.place.startswith(S3) else Path(self.place)


def model_root(settings: Settings) -> str:
    """Name the folder of the models of all detectors, as a path or a URI."""
    root = settings.storage.history
    return f"{settings.state if root is None else root.rstrip('/')}/{_FOLDER}"


def _beside_ours(package: str, version: str) -> str:
    try:
        ours = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        ours = "none"
    return f"{package} {version}" if ours == version else f"{package} {version} (here is {ours})"


def _name(digest: str) -> str:
    return f"{digest}.pickle"
