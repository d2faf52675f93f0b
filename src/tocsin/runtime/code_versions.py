"""The versions of a detector or a flow that ran here, and which is in force: that of its file, or an earlier one.

Each version that runs leaves a copy of its file beside its checkpoints, so an operator can go back to it with one
action, whatever the file in `detectors/` or `flows/` holds by then. The next change of that file ends this.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import structlog
from pydantic import BaseModel

from tocsin.model.detector import DetectorSpec
from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.model.names import JobName, detector_job
from tocsin.project.catalog import Catalog, read_catalog
from tocsin.project.code.versioned_kinds import VERSIONED
from tocsin.project.declaration import read_spec
from tocsin.project.feeding import faults_of_joins
from tocsin.project.settings import Settings
from tocsin.runtime import state_file
from tocsin.runtime.state_file import Stamps, stamps, write_whole

log = structlog.get_logger()
KEPT = 5
"""So many versions are kept, those that were started last."""


class Version(BaseModel, frozen=True):
    """A version that ran here.

    Attributes:
        version: see `tocsin.project.declaration.version_of`.
        fingerprint: of the checkpoint that it continued; versions of a detector that differ in their limits alone
            share one, and so do all of a flow.
        first_at, last_at: when it was started first, and last; UTC.
    """

    version: str
    fingerprint: str
    first_at: datetime
    last_at: datetime


class Pin(BaseModel, frozen=True):
    """An earlier version in force.

    Attributes:
        version: which.
        over: digest of the file that it is in force instead of; another file ends it.
        at: since when, UTC.
    """

    version: str
    over: str
    at: datetime


def pins_file(settings: Settings) -> Path:
    """Changes whenever a version is put in force or no longer is."""
    return settings.state / "supervision" / "pins.json"


def declared_files(settings: Settings) -> list[Path]:
    """List the files whose change may change `catalog_in_force`; not all of them need be there."""
    project = settings.project
    code = (path for folder in ("flows", "detectors", "views") for path in project.glob(f"{folder}/*.py"))
    data = (path for folder in ("sources", "tables") for path in project.glob(f"{folder}/*.toml"))
    return [*data, *project.glob("sources/*.csv"), *code, pins_file(settings)]


def kept_versions(settings: Settings, job: str) -> list[Version]:
    """The versions of what `job` runs that are kept, in the order in which they first ran."""
    return state_file.read(_folder(settings, job) / "versions.json", list[Version], [])


def keep_version(settings: Settings, job: str, version: str, text: bytes, fingerprint: str) -> list[Version]:
    """Note that `job` was started with `version` on the checkpoint `fingerprint`, and keep the file; returns all kept.

    Args:
        settings: of the installation.
        job: that was started.
        version: of its file.
        text: that file, as it was when `version` was read: by now it may be another.
        fingerprint: of its checkpoint.

    Raises:
        OSError: the folder cannot be written.
    """
    known = {one.version: one for one in kept_versions(settings, job)}
    now = datetime.now(UTC)
    first = known[version].first_at if version in known else now
    known[version] = Version(version=version, fingerprint=fingerprint, first_at=first, last_at=now)
    recent = sorted(known.values(), key=lambda one: one.last_at)[-KEPT:]
    for gone in known.keys() - {one.version for one in recent}:
        shutil.rmtree(kept_file(settings, job, gone).parent, ignore_errors=True)
    write_whole(kept_file(settings, job, version), text)
    recent.sort(key=lambda one: one.first_at)
    state_file.write(_folder(settings, job) / "versions.json", list[Version], recent)
    return recent


def read_pins(settings: Settings) -> dict[str, Pin]:
    """The pins that hold, by job: their file is still the one that they were put over."""
    return {job: pin for job, pin in _pins(settings).items() if pin.over == _digest(settings, job)}


def catalog_in_force(settings: Settings) -> Catalog:
    """All declared, each detector and flow in the version that is in force.

    An earlier version computes; stage, owner, runbook and what else does not touch the results is that of the file, as
    long as that can be read.
    """
    catalog = read_catalog(settings.project)
    for job, pin in read_pins(settings).items():
        own, kind = JobName.parse(job), VERSIONED[JobName.parse(job).kind]
        try:
            spec = kind.read(kept_file(settings, job, pin.version))
        except (ConfigError, OSError):
            continue
        if spec.version != pin.version or faults_of_joins(spec, catalog.tables) or not kind.fits(spec, catalog):
            continue
        declared = kind.declared(catalog)
        if own.name in declared:
            spec = replace(declared[own.name], **{key: getattr(spec, key) for key in kind.computes})
        declared[own.name] = spec
        catalog.broken.pop(kind.place(own.name), None)
    return catalog


def rolled_back_sentence(settings: Settings, path: Path, version: str) -> str:
    """Say that `path` holds an earlier version, to put before a job's reason; empty for a file of the project."""
    return "" if path.parent.parent == settings.project else f"rolled back to version {version}; "


class FollowedCatalog:
    """All declared, as `catalog_in_force` reads it; read again only when a file has changed."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._catalog = settings, Catalog()
        self._stamps: Stamps | None = None

    def read(self) -> Catalog:
        """Read what has changed; the same object while nothing has, and while it is not known which versions hold.

        Raises:
            ConfigError: that is so at the first reading.
        """
        now = stamps(declared_files(self._settings))
        if now != self._stamps:
            try:
                self._catalog = catalog_in_force(self._settings)
            except ConfigError as error:
                if self._stamps is None:
                    raise
                log.error("what is declared stays as it was", error=str(error))
            self._stamps = now
        return self._catalog


def kept_detector(settings: Settings, name: str, version: str) -> DetectorSpec:
    """Read the detector `name` as it was in a stored `version`.

    Raises:
        ConfigError: no such version is kept, or its copy cannot be read any more. A retry does not help.
    """
    job = detector_job(name)
    known = {one.version: one for one in kept_versions(settings, job)}
    return read_spec(kept_file(settings, job, _known(name, known, version).version))


def version_in_force(settings: Settings, job: str) -> str:
    """The version that `job` is to run; empty when that is a file that cannot be read.

    Raises:
        ConfigError: nothing of that name is declared.
    """
    own, catalog = JobName.parse(job), catalog_in_force(settings)
    kind = VERSIONED[own.kind]
    return "" if kind.place(own.name) in catalog.broken else kind.one(catalog, own.name).version


def roll_back(settings: Settings, job: str, version: str | None = None) -> Version:
    """Put an earlier version of what `job` runs in force: `version`, else the one that first ran before this one.

    Raises:
        ConfigError: nothing of that name is declared, no such version is kept, or it cannot run any more.
        OSError: the state folder cannot be written.
    """
    current = version_in_force(settings, job)
    known = {one.version: one for one in kept_versions(settings, job)}
    if version is None:
        since = known[current].first_at if current in known else datetime.max.replace(tzinfo=UTC)
        earlier = [one for one in known.values() if one.first_at < since]
        if not earlier:
            raise ConfigError.one(job, f"no version that ran before {current or 'the one in its file'} is kept")
        target = earlier[-1]
    else:
        target = _known(job, known, version)
    pins = _pins(settings)
    pin = Pin(version=target.version, over=_digest(settings, job), at=datetime.now(UTC))
    state_file.write(pins_file(settings), dict[str, Pin], {**pins, job: pin})
    if version_in_force(settings, job) != target.version:
        state_file.write(pins_file(settings), dict[str, Pin], pins)
        what = f"version {target.version} cannot run any more: it reads or joins something that is gone, or it is of a "
        raise ConfigError.one(job, f"{what}flow that read or wrote another source")
    return target


def roll_forward(settings: Settings, job: str) -> bool:
    """Put the file behind `job` in force again; returns whether it was not.

    Raises:
        ConfigError: nothing of that name is declared.
        OSError: the state folder cannot be written.
    """
    version_in_force(settings, job)
    was_rolled_back = job in read_pins(settings)
    pins = {one: pin for one, pin in _pins(settings).items() if one != job}
    state_file.write(pins_file(settings), dict[str, Pin], pins)
    return was_rolled_back


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


def _digest(settings: Settings, job: str) -> str:
    """Of the file behind `job`; empty when there is none."""
    own = JobName.parse(job)
    try:
        return hashlib.sha256((settings.project / f"{VERSIONED[own.kind].place(own.name)}.py").read_bytes()).hexdigest()
    except OSError:
        return ""


def _pins(settings: Settings) -> dict[str, Pin]:
    path = pins_file(settings)
    try:
        pins = state_file.load(path, dict[str, Pin])
    except FileNotFoundError:
        return {}
    except ValueError as error:
        what = "is broken, so it is not known which jobs were rolled back; restore it from a backup, or remove it"
        raise ConfigError.one(path, f"{what}: then each job runs the version of its file") from error
    return {job: pin for job, pin in pins.items() if JobName.parse(job).kind in VERSIONED}
