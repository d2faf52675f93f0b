"""Read the packages in the locks, with their hashes, and their licences as far as lock or package name one."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tocsin.model.errors import ConfigError
from tocsin.provision import jars

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_ALGORITHMS = {"sha1": "SHA-1", "sha256": "SHA-256", "sha384": "SHA-384", "sha512": "SHA-512"}

Licence = Callable[[str, str], str]
"""Names the licence of a Python package of a version, as an SPDX expression; "" where it is not known."""


@dataclass(frozen=True)
class LockedPackage:
    """One package of one lock.

    Attributes:
        purl: its package URL, such as `pkg:pypi/numpy@2.1.0`.
        group, name, version: of it; a group only where its kind of packages has them.
        hashes: algorithm, in CycloneDX's word, and hexadecimal digest, of each file that the lock admits.
        licence: SPDX expression; "" where neither lock nor package names one.
    """

    purl: str
    group: str
    name: str
    version: str
    hashes: frozenset[tuple[str, str]]
    licence: str = ""


def python_packages(lock: Path, licence: Licence) -> Iterator[LockedPackage]:
    """Read a requirements file with hashes; one that is for other systems only is there too."""
    for entry in re.split(r"\n(?=\S)", _text(lock)):
        if (found := _REQUIREMENT.match(entry)) is None:
            continue
        name, version = re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]
        hashes = frozenset(("SHA-256", digest) for digest in _HASH.findall(entry))
        yield LockedPackage(f"pkg:pypi/{name}@{version}", "", name, version, hashes, licence(name, version))


def java_archives(lock: Path, configuration: str) -> Iterator[LockedPackage]:
    """Read the archives of one configuration of `jars.toml`; the lock names no licences."""
    for jar in jars.read_lock(lock)[configuration]:
        purl, hashes = f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}", frozenset({("SHA-256", jar.sha256)})
        yield LockedPackage(purl, jar.group, jar.artifact, jar.version, hashes)


def node_packages(lock: Path) -> Iterator[LockedPackage]:
    """Read a package-lock of npm, of version 2 or 3."""
    for place, entry in json.loads(_text(lock))["packages"].items():
        if not place:
            continue
        full = place.rpartition("node_modules/")[2]
        group, _, name = full.rpartition("/")
        algorithm, _, digest = entry["integrity"].partition("-")
        hashes = frozenset({(_ALGORITHMS[algorithm], base64.b64decode(digest).hex())})
        purl = f"pkg:npm/{quote(full)}@{entry['version']}"
        yield LockedPackage(purl, group, name, entry["version"], hashes, entry.get("license", ""))


def installed_licences(site_packages: Path) -> Licence:
    """Ask the packages that are installed in `site_packages`, which need not be there."""
    found = {}
    for package in importlib.metadata.distributions(path=[str(site_packages)]):
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        if "License-Expression" in package.metadata:
            found[name, package.version] = package.metadata["License-Expression"]
    return lambda name, version: found.get((name, version), "")


def _text(lock: Path) -> str:
    try:
        return lock.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError.one(lock, f"cannot be read: {error.strerror}; run: make lock") from error
