"""Packages of a project: `requirements.in`, and for detectors of an environment of their own `environments/<name>.in`.

Each is locked beside itself as `.txt`, with hashes, to the versions that Tocsin itself is locked to. The first are
installed where Tocsin is, each other with Tocsin in an environment of its own.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from tocsin.declare.model.errors import ConfigError, Fault, TransientError
from tocsin.setup import python_env
from tocsin.setup.paths import Paths
from tocsin.setup.process import Command

REQUIREMENTS, ENVIRONMENTS = "requirements.in", "environments"
_MARK = "# Made by `tocsin packages` of what has the sha256 "
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)
_NAMED = re.compile(r"([a-z0-9][a-z0-9._-]*)(?:==|<|>|!=|~=)")
_WHOSE = re.compile(r"^    # via((?: .+)|(?:\n    #   .+)+)", re.MULTILINE)


def asked_for(project: Path) -> dict[str, Path]:
    """Find the files that ask for packages, by the name of their environment; "" is where Tocsin is installed."""
    files = {path.stem: path for path in sorted((project / ENVIRONMENTS).glob("*.in"))}
    return ({"": project / REQUIREMENTS} if (project / REQUIREMENTS).is_file() else {}) | files


def lock_of(asked: Path) -> Path:
    """Name the lock of what `asked` asks for."""
    return asked.with_suffix(".txt")


def lock(paths: Paths, project: Path, *, upgrade: bool = False) -> list[Path]:
    """Write the locks of `project`; versions that a lock has stay unless `upgrade`. Returns those that changed.

    Raises:
        ConfigError: there is nothing to lock, or what is asked for clashes with what Tocsin is locked to.
        TransientError: a package cannot be found, or the network failed.
    """
    files, changed = asked_for(project), []
    if not files:
        raise ConfigError.one(project / REQUIREMENTS, "is missing: name there the packages to lock, one a line")
    ours = paths.locks / "python.txt"
    for asked in files.values():
        target = lock_of(asked)
        before = target.read_text(encoding="utf-8") if target.exists() else ""
        options: Command = [*python_env.LOCKING, *(["--upgrade"] if upgrade else []), "--constraints", ours]
        try:
            python_env.run_uv(paths, ["pip", "compile", *options, asked, "-o", target], f"locking of {asked}", project)
        except TransientError as error:
            if "unsatisfiable" in str(error):
                raise ConfigError.one(asked, f"cannot be fulfilled: {_clash(str(error), ours)}") from error
            raise
        written = target.read_text(encoding="utf-8").replace(str(ours), "Tocsin").replace(f"{project}/", "")
        text = f"{_MARK}{_sha256(asked)}\n{written}"
        target.write_text(text, encoding="utf-8")
        shutil.copymode(asked, target)  # uv makes it readable for its user alone, who is not that of an image
        changed += [target] if text != before else []
    return changed


def faults_of(paths: Paths, files: Collection[Path]) -> list[Fault]:
    """Find what of `files` has no lock, one that is older than itself, or one that is not of this Tocsin."""
    ours, faults = _pins(paths.locks / "python.txt") if files else {}, []
    for asked in files:
        target = lock_of(asked)
        if not target.is_file():
            faults.append(Fault(str(asked), f"has no {target.name}; run: tocsin packages"))
            continue
        if not target.read_text(encoding="utf-8").startswith(_MARK + _sha256(asked)):
            faults.append(Fault(str(target), f"is older than {asked.name}; run: tocsin packages"))
        for name, versions in _pins(target).items():
            if name in ours and versions != ours[name]:
                both = f"{' and '.join(sorted(versions))} here, {' and '.join(sorted(ours[name]))} for Tocsin"
                faults.append(Fault(str(target), f"locks {name} to {both}; run: tocsin packages", key=name))
    return faults


def install(paths: Paths, *, with_tools: bool = True) -> bool:
    """Install what `paths.project` has locked, and all that Tocsin needs; returns whether anything changed.

    Raises:
        ConfigError: a lock is missing, or older than what it locks, or not of this Tocsin; otherwise as
            `python_env.install`.
    """
    if faults := faults_of(paths, (files := asked_for(paths.project)).values()):
        python_env.install(paths, with_tools=with_tools)  # what mends the locks must run
        raise ConfigError(faults)
    done = [python_env.install(paths, [lock_of(files.pop(""))] if "" in files else [], with_tools=with_tools)]
    done += [python_env.install_environment(paths, name, lock_of(asked)) for name, asked in files.items()]
    return any(done)


def python_of(paths: Paths, project: Path, name: str) -> Path:
    """Find the Python of the environment `name`; ConfigError if it is not installed as its lock says."""
    asked = project / ENVIRONMENTS / f"{name}.in"
    if not asked.is_file():
        raise ConfigError.one(asked, "is missing: it names the packages of this environment, one a line")
    if faults := faults_of(paths, [asked]):
        raise ConfigError(faults)
    if not python_env.has_environment(paths, name, lock_of(asked)):
        raise ConfigError.one(lock_of(asked), "is not installed here; run: tocsin packages")
    return paths.environment(name) / "bin" / "python"


def _clash(error: str, ours: Path) -> str:
    """Say what uv found, and for whom Tocsin has the versions that are in the way."""
    found = re.search(r"Because .+?(?=\n\n|\nhint|\nTo resume|\Z)", error, re.DOTALL)
    said = " ".join(found[0].split()) if found else error
    text, notes = ours.read_text(encoding="utf-8"), []
    for name in dict.fromkeys(_NAMED.findall(said)):
        begin = re.search(rf"^{re.escape(name)}==(\S+)", text, re.MULTILINE)
        if begin and (via := _WHOSE.search(text, begin.end())):
            whose = ", ".join(part.strip("# ") for part in via[1].splitlines() if part.strip("# "))
            notes.append(f"Tocsin has {name} {begin[1]} for {whose.replace('-r python.in', 'PySpark and itself')}")
    return ". ".join([said.rstrip("."), *notes])


def _pins(lock_file: Path) -> dict[str, set[str]]:
    pins: dict[str, set[str]] = {}
    for name, version in _PIN.findall(lock_file.read_text(encoding="utf-8")):
        pins.setdefault(name.lower(), set()).add(version)
    return pins


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
