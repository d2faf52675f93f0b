"""Build programs of published Go modules, for tests against servers that no other package brings."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


def build(folder: Path, module: str, version: str, packages: Sequence[str], *, tags: str = "") -> None:
    """Build `packages` of a module into `folder`, unless they are there: minutes of all cores, and GB of Go's caches.

    Args:
        folder: takes the programs, by the last word of their packages.
        module: its path.
        version: without the "v".
        packages: paths below the module's.
        tags: of the build, with commas.

    Raises:
        CalledProcessError: a module cannot be had, or does not compile.
    """
    if all((folder / Path(package).name).exists() for package in packages):
        return
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    found = json.loads(_go(source, "mod", "download", "-json", f"{module}@v{version}"))
    asked = json.loads(_go(source, "mod", "edit", "-json", found["GoMod"]))
    (source / "go.mod").write_text("\n".join(_lines(asked, module, version)), encoding="utf-8")
    names = [f"{module}/{package}" for package in packages]
    _go(source, "build", "-mod=mod", f"-tags={tags}", "-o", f"{folder}/", *names)


def _lines(asked: dict[str, list[dict[str, str]]], module: str, version: str) -> list[str]:
    """Write a module that needs `module` and, as Go asks only the main module, all that it excludes and replaces."""
    lines = ["module programs", f"go {asked['Go']}", f"require {module} v{version}"]
    for one in asked["Require"] or ():
        path, needed = one["Path"], one["Version"]
        if needed == "v0.0.0":  # in the tree of Kubernetes, and published as v0.<minor>.<patch>
            lines.append(f"replace {path} => {path} v0.{version.partition('.')[2]}")
        else:
            lines.append(f"require {path} {needed}")
    lines += [f"exclude {one['Path']} {one['Version']}" for one in asked["Exclude"] or ()]
    return [*lines, ""]


def _go(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(["go", *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()
