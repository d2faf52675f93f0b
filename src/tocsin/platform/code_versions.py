"""The versions of a detector or a flow that ran here; each leaves a copy of its file beside its checkpoints."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.code.outside_code import lock_files
from tocsin.declare.code.own_modules import lib_files
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.names import JobName, detector_job
from tocsin.declare.routes import ROUTES_FILE
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.state_file import Followed, write_whole

KEPT = 5
"""So many versions are kept, those that were started last."""


class Version(BaseModel, frozen=True):
    """A version that ran here.

    Attributes:
        fingerprint: of the checkpoint that it continued; versions of a detector that differ in their limits alone
            share one, and so do all of a flow.
    """

    version: str
    fingerprint: str
    first_at: datetime
    last_at: datetime


def declared_files(settings: Settings) -> list[Path]:
    """List the files whose change may change the catalog; not all of them need be there."""
    project = settings.project
    code = [path for folder in ("flows", "detectors", "views") for path in project.glob(f"{folder}/*.py")]
    code += lib_files(project) + lock_files(project)
    data = (path for folder in ("sources", "tables") for path in project.glob(f"{folder}/*.toml"))
    return [*data, *project.glob("sources/*.csv"), *code, project / ROUTES_FILE]


def kept_versions(settings: Settings, job: str) -> list[Version]:
    """The versions of what `job` runs that are kept, in the order in which they first ran."""
    return state_file.read(_folder(settings, job) / "versions.json", list[Version], [])


def keep_version(settings: Settings, job: str, version: str, text: bytes, fingerprint: str) -> list[Version]:
    """Note that `job` was started with `version` on the checkpoint `fingerprint`, and keep the file; returns all kept.

    `text` is that file as it was when `version` was read: by now it may be another. Raises an OSError if the folder
    cannot be written.
    """
    known = {entry.version: entry for entry in kept_versions(settings, job)}
    now = datetime.now(UTC)
    first = known[version].first_at if version in known else now
    known[version] = Version(version=version, fingerprint=fingerprint, first_at=first, last_at=now)
    recent = sorted(known.values(), key=lambda entry: entry.last_at)[-KEPT:]
    for gone in known.keys() - {entry.version for entry in recent}:
        shutil.rmtree(kept_file(settings, job, gone).parent, ignore_errors=True)
    write_whole(kept_file(settings, job, version), text)
    recent.sort(key=lambda entry: entry.first_at)
    state_file.write(_folder(settings, job) / "versions.json", list[Version], recent)
    return recent


class FollowedCatalog(Followed[Catalog]):
    """All declared, read again when a file of it has changed."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(lambda: declared_files(settings), lambda: read_catalog(settings.project))


def kept_detector(settings: Settings, name: str, version: str) -> DetectorSpec:
    """Read the detector `name` as it was in a stored `version`. ConfigError if that is not kept, or cannot be read."""
    job = detector_job(name)
    known = {entry.version: entry for entry in kept_versions(settings, job)}
    kept = _known(name, known, version).version
    return replace(read_spec(kept_file(settings, job, kept)), version=kept)  # packages may be others by now


def _known(job: str, known: dict[str, Version], version: str) -> Version:
    if version not in known:
        what = f"no version '{version}' is kept ({', '.join(known) or 'none'})"
        raise ConfigError([Fault(job, what, nearest=nearest(version, known))])
    return known[version]


def _folder(settings: Settings, job: str) -> Path:
    return settings.checkpoint(job) / "versions"


def kept_file(settings: Settings, job: str, version: str) -> Path:
    """Name the copy of a kept version, in a folder of its own: the name of such a file is that of what it declares."""
    return _folder(settings, job) / version / f"{JobName.parse(job).name}.py"
