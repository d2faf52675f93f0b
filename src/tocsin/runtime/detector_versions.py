"""The versions of a detector that ran here, and which one is in force: that of its file, or an earlier one.

Each version that runs leaves a copy of its file beside its checkpoints, so an operator can go back to it with one
action, whatever the file in `detectors/` holds by then. The next change of that file ends this.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from tocsin.model.detector import DetectorSpec
from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.model.names import detector_job
from tocsin.project.catalog import Catalog, read_catalog
from tocsin.project.declaration import read_spec
from tocsin.project.settings import Settings
from tocsin.runtime import state_file
from tocsin.runtime.state_file import Stamps, stamps, write_whole

KEPT = 5
"""So many versions are kept, those that were started last."""


class Version(BaseModel, frozen=True):
    """A version that ran here.

    Attributes:
        version: see `tocsin.project.declaration.version_of`.
        fingerprint: of the checkpoint that it continued; versions that differ in their limits alone share one.
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
    return [*project.glob("sources/*.toml"), *code, pins_file(settings)]


def kept_versions(settings: Settings, name: str) -> list[Version]:
    """The versions of the detector `name` that are kept, in the order in which they first ran."""
    return state_file.read(_folder(settings, name) / "versions.json", list[Version], [])


def keep_version(settings: Settings, spec: DetectorSpec, text: bytes, fingerprint: str) -> list[Version]:
    """Note that `spec` was started on the checkpoint `fingerprint`, and keep its file; returns what is kept now.

    Args:
        settings: of the installation.
        spec: what was started.
        text: its file, as it was when `spec` was read: by now it may be another.
        fingerprint: of its checkpoint.

    Raises:
        OSError: the folder cannot be written.
    """
    known = {one.version: one for one in kept_versions(settings, spec.name)}
    now = datetime.now(UTC)
    first = known[spec.version].first_at if spec.version in known else now
    known[spec.version] = Version(version=spec.version, fingerprint=fingerprint, first_at=first, last_at=now)
    recent = sorted(known.values(), key=lambda one: one.last_at)[-KEPT:]
    for gone in known.keys() - {one.version for one in recent}:
        _copy(settings, spec.name, gone).unlink(missing_ok=True)
        _copy(settings, spec.name, gone).parent.rmdir()
    write_whole(_copy(settings, spec.name, spec.version), text)
    recent.sort(key=lambda one: one.first_at)
    state_file.write(_folder(settings, spec.name) / "versions.json", list[Version], recent)
    return recent


def read_pins(settings: Settings) -> dict[str, Pin]:
    """The pins that hold, by detector: their file is still the one that they were put over."""
    return {name: pin for name, pin in _pins(settings).items() if pin.over == _digest(settings, name)}


def catalog_in_force(settings: Settings) -> Catalog:
    """All declared, each detector in the version that is in force.

    An earlier version computes; stage, owner, runbook and what else does not touch the findings is that of the file, as
    long as that can be read.
    """
    catalog = read_catalog(settings.project)
    for name, pin in read_pins(settings).items():
        try:
            spec = read_spec(_copy(settings, name, pin.version))
        except (ConfigError, OSError):
            continue
        if spec.version != pin.version or spec.source not in catalog.sources:
            continue
        if name in catalog.detectors:
            computes = ("path", "version", "source", "entity", "window", "slide", "levels", "score")
            spec = replace(catalog.detectors[name], **{key: getattr(spec, key) for key in computes})
        catalog.detectors[name] = spec
        catalog.broken.pop(f"detectors/{name}", None)
    return catalog


class FollowedCatalog:
    """All declared, as `catalog_in_force` reads it; read again only when a file has changed."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._catalog = settings, Catalog()
        self._stamps: Stamps | None = None

    def read(self) -> Catalog:
        """Read what has changed; the same object while nothing has."""
        now = stamps(declared_files(self._settings))
        if now != self._stamps:
            self._catalog, self._stamps = catalog_in_force(self._settings), now
        return self._catalog


def kept_spec(settings: Settings, name: str, version: str) -> DetectorSpec:
    """Read the detector `name` as it was in a stored `version`.

    Raises:
        ConfigError: no such version is kept, or its copy cannot be read any more. A retry does not help.
    """
    known = [one.version for one in kept_versions(settings, name)]
    if version not in known:
        what = f"no version '{version}' is kept ({', '.join(known) or 'none'})"
        raise ConfigError([Fault(name, what, nearest=nearest(version, known))])
    return read_spec(_copy(settings, name, version))


def version_in_force(settings: Settings, name: str) -> str:
    """The version of the detector `name` that is to run; empty when that is a file that cannot be read.

    Raises:
        ConfigError: there is no such detector.
    """
    catalog = catalog_in_force(settings)
    return "" if f"detectors/{name}" in catalog.broken else catalog.detector(name).version


def roll_back(settings: Settings, name: str, version: str | None = None) -> Version:
    """Put an earlier version of the detector `name` in force: `version`, else the one that first ran before this one.

    Raises:
        ConfigError: there is no such detector, or no such version is kept.
        OSError: the state folder cannot be written.
    """
    current = version_in_force(settings, name)
    known = {one.version: one for one in kept_versions(settings, name)}
    if version is None:
        since = known[current].first_at if current in known else datetime.max.replace(tzinfo=UTC)
        earlier = [one for one in known.values() if one.first_at < since]
        if not earlier:
            raise ConfigError.one(name, f"no version that ran before {current or 'the one in its file'} is kept")
        target = earlier[-1]
    elif version in known:
        target = known[version]
    else:
        there = ", ".join(known) or "none"
        raise ConfigError([Fault(name, f"no version '{version}' is kept ({there})", nearest=nearest(version, known))])
    pin = Pin(version=target.version, over=_digest(settings, name), at=datetime.now(UTC))
    state_file.write(pins_file(settings), dict[str, Pin], {**_pins(settings), name: pin})
    return target


def roll_forward(settings: Settings, name: str) -> bool:
    """Put the file of the detector `name` in force again; returns whether it was not.

    Raises:
        ConfigError: there is no such detector.
        OSError: the state folder cannot be written.
    """
    version_in_force(settings, name)
    was_rolled_back = name in read_pins(settings)
    state_file.write(
        pins_file(settings), dict[str, Pin], {one: pin for one, pin in _pins(settings).items() if one != name}
    )
    return was_rolled_back


def _folder(settings: Settings, name: str) -> Path:
    return settings.checkpoint(detector_job(name)) / "versions"


def _copy(settings: Settings, name: str, version: str) -> Path:
    """In a folder of its own, because the name of a detector's file is its name."""
    return _folder(settings, name) / version / f"{name}.py"


def _digest(settings: Settings, name: str) -> str:
    """Of the detector's file; empty when there is none."""
    try:
        return hashlib.sha256((settings.project / "detectors" / f"{name}.py").read_bytes()).hexdigest()
    except OSError:
        return ""


def _pins(settings: Settings) -> dict[str, Pin]:
    return state_file.read(pins_file(settings), dict[str, Pin], {})
