"""Java archives: locked one by one in locks/jars.toml, fetched through the Ivy that ships with PySpark, checked by us.

Nothing is resolved: Spark's parent POM names repositories that may not be reachable, and what moves is no lock.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.setup import install_stamp
from tocsin.setup.java import find_java
from tocsin.setup.paths import Paths
from tocsin.setup.process import Command, run

LOCK = "jars.toml"
CONFIGURATIONS = ("spark", "broker", "bench", "s3")

# One resolver, with no address: Ivy then asks the public repository of Maven artifacts.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="artifacts"/>
  <resolvers><ibiblio name="artifacts" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_COORDINATES = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+", re.ASCII)


@dataclass(frozen=True, order=True)
class Jar:
    """One locked archive; `sha256` is in hexadecimal, and empty when it was never locked."""

    group: str
    artifact: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file(self) -> str:
        """Name of the archive's file."""
        return f"{self.artifact}-{self.version}.jar"


def read_lock(path: Path) -> dict[str, list[Jar]]:
    """The locked archives of each configuration; ConfigError names every section and coordinate that cannot be read."""
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError.one(path, f"cannot be read: {error}") from error
    faults = [Fault(str(path), "no such configuration", key=name) for name in sections.keys() - set(CONFIGURATIONS)]
    locked: dict[str, list[Jar]] = {}
    for name in CONFIGURATIONS:
        for coordinates, sha256 in sections.get(name, {}).items():
            if not _COORDINATES.fullmatch(coordinates) or not re.fullmatch("[0-9a-f]{64}|", str(sha256)):
                faults.append(Fault(str(path), 'must be "group:artifact:version" = "sha256"', key=coordinates))
            else:
                group, artifact, version = coordinates.split(":")
                locked.setdefault(name, []).append(Jar(group, artifact, version, sha256))
    if faults:
        raise ConfigError(faults)
    return locked


def install(paths: Paths, configurations: Iterable[str]) -> list[str]:
    """Bring the archives of these configurations into their folders; returns the configurations that had to change.

    Raises:
        ConfigError: an archive has no sha256 in the lock, or another one than it.
        TransientError: a download failed; a second run resumes.
    """
    locked = read_lock(paths.locks / LOCK)
    made_from = {name: _digest(locked[name]) for name in configurations}
    stale = {name: locked[name] for name in made_from if not _is_current(paths, name, locked[name], made_from[name])}
    if not stale:
        return []
    unlocked = [jar for jars in stale.values() for jar in jars if not jar.sha256]
    if unlocked:
        where, what = str(paths.locks / LOCK), "has no sha256; run: make lock"
        raise ConfigError([Fault(where, what, key=str(jar)) for jar in unlocked])
    fetched = fetch(paths, stale)
    check(paths, {jar: fetched / name / jar.file for name, jars in stale.items() for jar in jars})
    for name, jars in stale.items():
        with install_stamp.replacing(paths.jars(name), made_from[name]) as folder:
            for jar in jars:
                (fetched / name / jar.file).rename(folder / jar.file)
    return sorted(stale)


def fetch(paths: Paths, wanted: dict[str, list[Jar]]) -> Path:
    """Download with one run of Ivy, or from its cache; returns the folder that holds one folder per configuration."""
    paths.ivy.mkdir(parents=True, exist_ok=True)
    settings, module, out = paths.ivy / "settings.xml", paths.ivy / "ivy.xml", paths.ivy / "fetched"
    settings.write_text(_SETTINGS, encoding="utf-8")
    module.write_text(ivy_module(wanted), encoding="utf-8")
    ivy = sorted((paths.package("pyspark") / "jars").glob("ivy-*.jar"))
    command: Command = [find_java(paths).executable, f"-Divy.home={paths.ivy}", "-jar", ivy[-1]]
    command += ["-settings", settings, "-cache", paths.ivy / "cache", "-novalidate", "-ivy", module]
    command += ["-confs", *wanted, "-overwriteMode", "always", "-retrieve", f"{out}/[conf]/[artifact]-[revision].[ext]"]
    run(command, "download of Java archives")
    return out


def ivy_module(wanted: dict[str, list[Jar]]) -> str:
    """The module file that makes Ivy fetch exactly these archives."""
    lines = ['<ivy-module version="2.0">', '  <info organisation="tocsin" module="jars"/>', "  <configurations>"]
    lines += [f'    <conf name="{name}"/>' for name in wanted]
    lines += ["  </configurations>", "  <dependencies>"]
    for name, jars in wanted.items():
        lines += [
            f"    <dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)}"
            f' transitive="false" conf="{name}->default"/>'
            for jar in jars
        ]
    # Spark's connector and the broker need different versions of kafka-clients; Ivy would keep the newer one alone.
    lines += ['    <conflict manager="all"/>', "  </dependencies>", "</ivy-module>"]
    return "\n".join(lines) + "\n"


def check(paths: Paths, files: dict[Jar, Path]) -> None:
    """Refuse archives that are not what was locked, and remove them, from Ivy's cache too.

    ConfigError names every such archive, with both hashes.
    """
    faults = []
    for jar, path in files.items():
        found = sha256_of(path)
        if found == jar.sha256:
            continue
        what = f"is not what was locked: sha256 {found}, expected {jar.sha256}; it was removed"
        faults.append(Fault(str(paths.locks / LOCK), what, key=str(jar)))
        for copy in [path, *paths.ivy.glob(f"cache/{jar.group}/{jar.artifact}/jars/{jar.file}")]:
            copy.unlink(missing_ok=True)
    if faults:
        raise ConfigError(faults)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(jars: list[Jar]) -> str:
    return install_stamp.digest(*(f"{jar} {jar.sha256}" for jar in jars))


def _is_current(paths: Paths, configuration: str, jars: list[Jar], made_from: str) -> bool:
    folder = paths.jars(configuration)
    return install_stamp.is_current(folder, made_from) and all((folder / jar.file).is_file() for jar in jars)
