"""The Python environments: for Tocsin and its jobs, for Airflow, and for the peers of `make bench`."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from tocsin.model.errors import ConfigError
from tocsin.provision import install_stamp
from tocsin.provision.paths import Paths
from tocsin.provision.process import Command, run

_STARTED = ".tocsin-started"
_NO_PIP = "has neither pip nor venv; on Debian and Ubuntu: apt install python3-venv"


def install(paths: Paths) -> bool:
    """Make `.venv` hold exactly what locks/python.txt and locks/dev.txt say, and Tocsin; returns whether it changed.

    Raises:
        ConfigError: `.venv` is somebody else's, or this Python has no pip.
        TransientError: a download failed or a package is not what was locked; a second run resumes from uv's cache.
    """
    return _install(paths, paths.venv, ["python.txt", "dev.txt"])


def install_bare(paths: Paths) -> bool:
    """Make `.venv` hold exactly what locks/python.txt says, and Tocsin, for an image; returns whether it changed.

    Raises:
        ConfigError, TransientError: as `install`.
    """
    return _install(paths, paths.venv, ["python.txt"])


def install_airflow(paths: Paths) -> bool:
    """Make `.venv-airflow` hold exactly what locks/airflow.txt says, and Tocsin; returns whether it changed.

    Raises:
        ConfigError, TransientError: as `install`.
    """
    return _install(paths, paths.airflow_venv, ["airflow.txt"])


def install_bench(paths: Paths) -> bool:
    """Make the environment of the peers that `make bench` measures; returns whether it changed.

    Raises:
        ConfigError, TransientError: as `install`.
    """
    folder, lock = paths.bench / "venv", paths.locks / "bench.txt"
    made_from = install_stamp.digest(sys.version, lock, paths.locks / "uv.txt")
    if install_stamp.is_current(folder, made_from):
        return False
    _fill(paths, install_uv(paths), folder, [lock])
    install_stamp.mark_current(folder, made_from)
    return True


def install_uv(paths: Paths) -> Path:
    """The pinned uv, installed with pip into a folder of its own; returns its executable.

    Raises:
        ConfigError: this Python has no pip and cannot make an environment that has.
        TransientError: the download failed or is not what was locked.
    """
    lock = paths.locks / "uv.txt"
    made_from = install_stamp.digest(lock)
    if not install_stamp.is_current(paths.uv, made_from):
        with install_stamp.replacing(paths.uv, made_from) as folder, tempfile.TemporaryDirectory() as scratch:
            command: Command = [_with_pip(Path(scratch)), "-m", "pip", "install", "--quiet"]
            command += ["--disable-pip-version-check", "--require-hashes", "--no-deps", "--target", folder, "-r", lock]
            run(command, "installation of uv")
    return paths.uv / "bin" / "uv"


def _install(paths: Paths, folder: Path, names: list[str]) -> bool:
    """Make `folder` hold what the locks `names` say, and Tocsin without what it asks for: that is in the locks."""
    locks = [paths.locks / name for name in names]
    made_from = install_stamp.digest(
        sys.version, *locks, paths.locks / "build.txt", paths.locks / "uv.txt", _package(paths)
    )
    if install_stamp.is_current(folder, made_from):
        return False
    uv = install_uv(paths)
    _fill(paths, uv, folder, locks)
    command: Command = [uv, "pip", "install", "--quiet", "--python", _python(folder), "--no-deps"]
    command += ["--build-constraints", paths.locks / "build.txt", "--editable", paths.root]
    run(command, "installation of Tocsin")
    install_stamp.mark_current(folder, made_from)
    return True


def _with_pip(scratch: Path) -> Path:
    """A Python that has pip: this one, or a passing environment of it."""
    if importlib.util.find_spec("pip"):
        return Path(sys.executable)
    if not importlib.util.find_spec("ensurepip"):
        raise ConfigError.one(sys.executable, _NO_PIP)
    run([sys.executable, "-m", "venv", scratch / "venv"], "making of an environment with pip")
    return _python(scratch / "venv")


def _fill(paths: Paths, uv: Path, folder: Path, locks: list[Path]) -> None:
    """Make `folder` an environment with exactly the packages of these locks.

    One that was broken off in the middle is made anew, because uv cannot tell a package that was copied in part; one of
    another Python too. That takes seconds: the packages are in uv's cache.
    """
    started = folder / _STARTED
    if (folder / install_stamp.STAMP).exists() and started.read_text(encoding="utf-8") == sys.version:
        (folder / install_stamp.STAMP).unlink()
    else:
        if folder.exists() and not started.exists():
            raise ConfigError.one(folder, "was not made by this set-up, which would replace it; move it away first")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        started.write_text(sys.version, encoding="utf-8")
        make: Command = [uv, "venv", "--quiet", "--no-project", "--allow-existing", "--python", sys.executable, folder]
        run(make, "making of a Python environment")
    command: Command = [uv, "pip", "sync", "--python", _python(folder), "--require-hashes"]
    command += ["--build-constraints", paths.locks / "build.txt", *locks]
    run(command, "installation of Python packages")


def _package(paths: Paths) -> str:
    """Take from pyproject.toml what an installation of Tocsin needs: not the settings of the tools."""
    project = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))
    return json.dumps([project["project"], project["build-system"], (paths.locks / "python.in").read_text()])


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"
