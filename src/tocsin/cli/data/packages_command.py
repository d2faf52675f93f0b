"""`tocsin packages`: lock and install the packages that a project asks for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Annotated

import typer

from tocsin.cli.output import line
from tocsin.cli.project import load_settings
from tocsin.setup.paths import here

_Upgrade = Annotated[bool, typer.Option("--upgrade", help="Lock the newest versions that may be had.")]
_LockOnly = Annotated[bool, typer.Option("--lock-only", help="Write the locks, and install nothing.")]


def packages(upgrade: _Upgrade = False, lock_only: _LockOnly = False) -> None:
    """Lock requirements.in, and each environments/NAME.in, with hashes beside it; then install what is locked.

    Versions fit those of Tocsin; those that are locked stay unless --upgrade. Exit code 2 if they clash with Tocsin's.
    requirements.txt is installed where Tocsin is, each environments/NAME.txt in a folder of its own; from then on
    `make setup` installs it too. Jobs of an environment that has changed are replaced.
    """
    from tocsin.setup import project_packages

    begun = time.monotonic()
    project = load_settings().project.absolute()
    changed = project_packages.lock(here(), project, upgrade=upgrade)
    for path in changed:
        line(f"{path} is written")
    line(f"{'locked' if changed else 'nothing to lock'}, in {time.monotonic() - begun:.1f} s")
    if lock_only:
        return
    variables = {"PYTHONPATH": str(here().root / "src"), "TOCSIN_PROJECT": str(project)}
    # By the Python that the environments are made of: what this command runs in may be made anew.
    command = [getattr(sys, "_base_executable", sys.executable), "-m", "tocsin.setup", "packages"]
    if code := subprocess.run(command, env=os.environ | variables, check=False).returncode:
        raise typer.Exit(code)
