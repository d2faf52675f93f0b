"""Run the code of a detector, a flow or a view by the Python of the environment that its file names."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tocsin.declare.catalog import Catalog
from tocsin.declare.code.outside_code import file_imports
from tocsin.declare.declaration import read_flow, read_spec, read_view
from tocsin.declare.keywords import Spec
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.settings import Settings
from tocsin.platform import child_process
from tocsin.setup.paths import here
from tocsin.setup.project_packages import REQUIREMENTS, asked_for, faults_of, python_of

_Spec = TypeVar("_Spec", bound=Spec)

_GATEWAY = "PYSPARK_GATEWAY"
"""How the variables begin by which a program of spark-submit finds its JVM."""
READERS: Mapping[str, Callable[[Path], Spec]] = {"detectors": read_spec, "flows": read_flow, "views": read_view}
"""By the folders of files that may name an environment."""


def by_their_pythons(
    settings: Settings,
    names: Sequence[str],
    command: Callable[[Sequence[str]], Sequence[str]],
    folder: str = "detectors",
) -> tuple[Sequence[str], int]:
    """Let those of `names` that have another environment run there; returns the others, and the worst exit code.

    `command` gives the arguments of Python for some of them. If all have one other environment, this process becomes
    that command. Raises a ConfigError if an environment is not installed as its lock says.
    """
    groups: dict[Path | None, list[str]] = {}
    for name in names:
        groups.setdefault(python_for(settings, name, folder), []).append(name)
    own, code = groups.pop(None, []), 0
    for python, some in groups.items():
        assert python is not None
        if not own and len(groups) == 1:
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # libraries of C may have opened files
            os.execve(python, [str(python), *command(some)], os.environ | _variables(python))
        code = max(code, run_by(python, command(some)))
    return own, code


def go_on_by_its_python(settings: Settings, name: str, folder: str = "detectors") -> None:
    """Let this command of `tocsin` go on by the Python of what the file declares; errors as `by_their_pythons`."""
    by_their_pythons(settings, [name], lambda _: ["-m", "tocsin.cli", *sys.argv[1:]], folder)


def python_for(settings: Settings, name: str, folder: str = "detectors") -> Path | None:
    """Find the Python by which `name` runs; None if it is that of this process. Errors as `by_their_pythons`."""
    try:
        environment = READERS[folder](settings.project / folder / f"{name}.py").environment
    except (ConfigError, OSError):  # whoever runs it says what is wrong
        return None
    return python_in(settings.project, environment)


def python_in(project: Path, environment: str) -> Path | None:
    """Find the Python of an environment of `project`; None and errors as for `python_for`."""
    if not is_elsewhere(environment):
        return None
    paths = here()
    return python_of(paths, project, environment) if environment else paths.venv / "bin" / "python"


def package_faults(settings: Settings, catalog: Catalog) -> list[Fault]:
    """Find locks that are missing or old, and imports of packages that are not installed where the code runs."""
    project, imported = settings.project.absolute(), dict[str, dict[str, list[tuple[Path, int]]]]()
    for spec in (*catalog.flows.values(), *catalog.detectors.values(), *catalog.views.values()):
        assert isinstance(spec, Spec)
        for file, line, name in file_imports(spec.path):
            imported.setdefault(spec.environment, {}).setdefault(name, []).append((file, line))
    faults = faults_of(here(), asked_for(project).values())
    for environment, names in imported.items():
        try:
            python = python_in(project, environment)
        except ConfigError as error:
            faults += error.faults
            continue
        asked = f"environments/{environment}.in" if environment else REQUIREMENTS
        remedy = f"name its package in {asked}, then run: tocsin packages"
        for name in _not_found(sorted(names), python):
            what = f"imports {name}, which is not installed; {remedy}"
            faults += [Fault(str(path), what, line=line) for path, line in names[name]]
    return list(dict.fromkeys(faults))


def _not_found(names: Sequence[str], python: Path | None) -> list[str]:
    """List those of `names` that cannot be imported by `python`; None is the Python of this process."""
    if python is None:
        return [name for name in names if importlib.util.find_spec(name) is None]
    code = "import sys; from importlib.util import find_spec; print(*filter(find_spec, sys.argv[1:]))"
    found = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=False).stdout.split()
    return [name for name in names if name not in found]


def run_by(python: Path, arguments: Sequence[str]) -> int:
    """Run another program of Python, and give its exit code."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_GATEWAY)}
    command = [*child_process.prefix(), str(python), *arguments]
    return subprocess.run(command, env=variables | _variables(python), check=False).returncode


def is_elsewhere(environment: str) -> bool:
    """Return whether this process does not run in `environment`."""
    folder = Path(sys.prefix)
    return environment != (folder.name if folder.parent == here().environment("").resolve() else "")


def without_elsewhere(specs: Mapping[str, _Spec]) -> dict[str, _Spec]:
    """Leave out of `specs` those whose code this process cannot import, since it runs in another environment."""
    return {name: spec for name, spec in specs.items() if not is_elsewhere(spec.environment)}


def _variables(python: Path) -> dict[str, str]:
    """Tell Spark by which Python its workers run."""
    return {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
