"""The versions of a detector or a flow that ran here; each leaves a copy of its file beside its checkpoints."""

from __future__ import annotations

import hashlib
import shutil
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.names import DETECTOR, FLOW, JobName, detector_job
from tocsin.declare.routes import ROUTES_FILE
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.state_file import Followed, write_whole

_FOLDERS = {DETECTOR: "detectors", FLOW: "flows"}
KEPT = 5
"""So many versions are kept, those that were started last."""


class Version(BaseModel, frozen=True):
    """A version that ran here.

    Attributes:
        version: see `tocsin.declare.declaration.version_of`.
        fingerprint: of the checkpoint that it continued; versions of a detector that differ in their limits alone
            share one, and so do all of a flow.
        first_at, last_at: when it was started first, and last; UTC.
    """

    version: str
    fingerprint: str
    first_at: datetime
    last_at: datetime


def declared_files(settings: Settings) -> list[Path]:
    """List the files whose change may change `installed_catalog`; not all of them need be there."""
    project = settings.project
    code = (path for folder in ("flows", "detectors", "views") for path in project.glob(f"{folder}/*.py"))
    data = (path for folder in ("sources", "tables") for path in project.glob(f"{folder}/*.toml"))
    return [*data, *project.glob("sources/*.csv"), *code, project / ROUTES_FILE, _pins_file(settings)]


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


def installed_catalog(settings: Settings) -> Catalog:
    """Read all declared, as supervision and pages see it: a file over which an earlier release put a pin is broken.

    Such a release ran an older version in the place of that file. Nobody has asked for the version in the file yet, so
    it starts only when a person has decided: a changed file counts, and so does every file once the pins are removed.
    Raises a ConfigError if the file of the pins cannot be read.
    """
    refused = {}
    for job, pin in _pins(settings).items():
        own = JobName.parse(job)
        place = f"{_FOLDERS[own.kind]}/{own.name}" if own.kind in _FOLDERS else ""
        file = settings.project / f"{place}.py"
        if not place or not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != pin["over"]:
            continue  # the file has changed since, which always ended a pin
        copy, version = kept_file(settings, job, pin["version"]), pin["version"]
        what = f"was rolled back to version {version} by an earlier release, and this one runs files as they are: copy"
        what = f"{what} {copy} over it; or, to run what it says, delete {_pins_file(settings)}"
        refused[place] = ConfigError.one(file, what)
    return read_catalog(settings.project, refused)


class FollowedCatalog(Followed[Catalog]):
    """All declared, as `installed_catalog` reads it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(lambda: declared_files(settings), lambda: installed_catalog(settings))


def kept_detector(settings: Settings, name: str, version: str) -> DetectorSpec:
    """Read the detector `name` as it was in a stored `version`. ConfigError if that is not kept, or cannot be read."""
    job = detector_job(name)
    known = {entry.version: entry for entry in kept_versions(settings, job)}
    return read_spec(kept_file(settings, job, _known(name, known, version).version))


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


def _pins_file(settings: Settings) -> Path:
    return settings.state / "supervision" / "pins.json"


def _pins(settings: Settings) -> dict[str, dict[str, str]]:
    path = _pins_file(settings)
    try:
        return state_file.load(path, dict[str, dict[str, str]])
    except FileNotFoundError:
        return {}
    except ValueError as error:
        what = "is broken, so it is not known which jobs an earlier release had rolled back; remove it"
        raise ConfigError.one(path, f"{what}: then each job runs the version of its file") from error
