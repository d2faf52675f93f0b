"""The Python environments: for Tocsin and its jobs, for Airflow, and for the peers of `make bench`, all made by uv."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tocsin.declare.model.errors import ConfigError
from tocsin.setup import install_stamp
from tocsin.setup.paths import Paths
from tocsin.setup.process import Command, run

LOCKING: Command = [
    *("--generate-hashes", "--universal", "--python-version", "3.11", "--quiet"),
    *("--no-emit-index-url", "--no-emit-find-links", "--no-header"),
]
"""How uv is told to write a lock."""
_STARTED = ".tocsin-started"
_NO_VENV = "has no venv; on Debian and Ubuntu: apt install python3-venv"
# PySpark comes as source. What it is built of is compressed already: to compress it again takes 10 s of CPU time.
_BUILD_STORED = "pyspark:--build-option=--compression=stored"
# What pip is told, and the variable that tells uv; uv reads no file of pip's.
_SAME_IN_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
_OURS = "python.txt"
_SECTIONS = ("global", "install", ":env:")  # what a later one says goes before what an earlier one does


def install(paths: Paths, project: Sequence[Path] = (), *, with_tools: bool = True) -> bool:
    """Make `.venv` hold exactly what locks/python.txt says and the locks of a `project`, and Tocsin.

    Returns whether it changed. `with_tools` adds what locks/dev.txt says; an image has no use for that.

    Raises:
        ConfigError: `.venv` is somebody else's, this Python has no venv, or the disk is full.
        TransientError: a download failed or a package is not what was locked; a second run resumes from uv's cache.
    """
    return _install(paths, paths.venv, [_OURS, *(["dev.txt"] if with_tools else []), *map(str, project)])


def install_environment(paths: Paths, name: str, lock: Path) -> bool:
    """Make the environment `name` of a project hold what locks/python.txt and `lock` say, as `install`."""
    return _install(paths, paths.environment(name), [_OURS, str(lock)])


def has_environment(paths: Paths, name: str, lock: Path) -> bool:
    """Return whether `install_environment` would have nothing to do."""
    return _is_current(paths.environment(name), _made_from(paths, [_OURS, str(lock)]))


def install_airflow(paths: Paths) -> bool:
    """Make `.venv-airflow` hold exactly what locks/airflow.txt says, and Tocsin; otherwise as `install`."""
    return _install(paths, paths.airflow_venv, ["airflow.txt"])


def install_bench(paths: Paths) -> bool:
    """Make the environment of the peers that `make bench` measures; otherwise as `install`."""
    return _install(paths, paths.bench / "venv", ["bench.txt"], with_tocsin=False)


def install_uv(paths: Paths) -> bool:
    """Install the pinned uv, with the pip of an environment of its own; returns whether it changed.

    Raises:
        ConfigError: this Python cannot make such an environment, or the disk is full.
        TransientError: the download failed or is not what was locked.
    """
    lock = paths.locks / "uv.txt"
    made_from = install_stamp.digest(sys.version, lock)
    if install_stamp.is_current(paths.uv, made_from):
        return False
    if not importlib.util.find_spec("ensurepip"):
        raise ConfigError.one(sys.executable, _NO_VENV)
    with install_stamp.replacing(paths.uv, made_from) as folder:
        run([sys.executable, "-m", "venv", folder], "making of an environment for uv")
        options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
        run([folder / "bin" / "python", "-m", "pip", "install", *options, "-r", lock], "installation of uv")
    return True


def run_uv(paths: Paths, arguments: Command, what: str, folder: Path | None = None) -> None:
    """Run the pinned uv in `folder`, else that of the locks, from pip's sources unless uv has its own.

    Errors as `install`.
    """
    install_uv(paths)
    run([paths.uv / "bin" / "uv", *arguments], what, folder or paths.locks, _told_by_pip(paths.uv / "bin" / "python"))


@functools.cache
def _told_by_pip(python: Path) -> dict[str, str]:
    """Give the variables that tell uv what pip's files and variables say; what uv's own say goes first."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "uv", "uv.toml")
    if "UV_CONFIG_FILE" in os.environ or config.exists() or Path("/etc/uv/uv.toml").exists():
        return {}
    return variables_for_uv(run([python, "-m", "pip", "config", "list"], "reading of pip's configuration"))


def variables_for_uv(listed: str) -> dict[str, str]:
    """Translate what `pip config list` prints; leave out what the environment says to uv already."""
    variables: dict[str, str] = {}
    for section in _SECTIONS:
        for key, value in re.findall(rf"^{section}\.([\w-]+)='(.+)'$", listed, re.MULTILINE):
            if key in _SAME_IN_UV:
                variables[_SAME_IN_UV[key]] = value.replace("\\n", " ").strip()
    if "UV_INDEX" in variables:
        # pip looks into all of them, uv into the first that has the package; by the hashes it is the same package.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    places = variables.pop("UV_FIND_LINKS", "").split()
    if present := [place for place in places if "://" in place or Path(place).exists()]:  # of others uv makes an error
        variables["UV_FIND_LINKS"] = ",".join(present)
    if os.environ.keys() & {"UV_INDEX_URL", "UV_DEFAULT_INDEX"}:
        variables.pop("UV_DEFAULT_INDEX", None)
    return {name: value for name, value in variables.items() if name not in os.environ}


def _install(paths: Paths, folder: Path, names: list[str], *, with_tocsin: bool = True) -> bool:
    """Make `folder` hold what the locks `names` say, and Tocsin without what it asks for: that is in the locks.

    `names` are those of locks/, or whole paths.
    """
    locks = [paths.locks / name for name in names]
    made_from = _made_from(paths, names, with_tocsin=with_tocsin)
    if _is_current(folder, made_from):
        return False
    _open(paths, folder)
    options: Command = ["--python", _python(folder), "--build-constraints", paths.locks / "build.txt"]
    options += ["--config-settings-package", _BUILD_STORED]
    sync: Command = ["pip", "sync", *options, "--require-hashes", *locks]
    run_uv(paths, sync, "installation of Python packages", paths.project)  # where the paths in its locks begin
    if with_tocsin:
        run_uv(paths, ["pip", "install", *options, "--no-deps", "--editable", paths.root], "installation of Tocsin")
    install_stamp.mark_current(folder, made_from)
    return True


def _made_from(paths: Paths, names: list[str], *, with_tocsin: bool = True) -> str:
    own = _package(paths) if with_tocsin else ""
    return install_stamp.digest(sys.version, *(paths.locks / name for name in [*names, "build.txt", "uv.txt"]), own)


def _is_current(folder: Path, made_from: str) -> bool:
    return install_stamp.is_current(folder, made_from) and _python(folder).exists()


def _open(paths: Paths, folder: Path) -> None:
    """Make `folder` an environment that uv may change, without a stamp until it has.

    One that was broken off, is of another Python or has lost its own is made anew from uv's cache, in seconds: uv
    cannot tell a package that was copied in part.
    """
    started, stamp = folder / _STARTED, folder / install_stamp.STAMP
    if stamp.exists() and _python(folder).exists() and started.read_text(encoding="utf-8") == sys.version:
        stamp.unlink()
        return
    if folder.exists() and not started.exists():
        raise ConfigError.one(folder, "was not made by this set-up, which would replace it; move it away first")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started.write_text(sys.version, encoding="utf-8")
    command: Command = ["venv", "--no-project", "--allow-existing", "--python", sys.executable, folder]
    run_uv(paths, command, "making of a Python environment")


def _package(paths: Paths) -> str:
    """Take from pyproject.toml what an installation of Tocsin needs: not the settings of the tools."""
    project = tomllib.loads((paths.root / "pyproject.toml").read_text(encoding="utf-8"))
    return json.dumps([project["project"], project["build-system"], (paths.locks / "python.in").read_text()])


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"
