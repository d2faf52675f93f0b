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

app = typer.Typer(no_args_is_help=True, help="Lock and install the packages of detectors, flows and views.")
_Upgrade = Annotated[bool, typer.Option("--upgrade", help="Take the newest versions that may be had.")]


@app.command("lock")
def lock(upgrade: _Upgrade = False) -> None:
    """Lock requirements.in, and each environments/NAME.in, with hashes beside it.

    Versions fit those of Tocsin; those that are locked stay unless --upgrade. Exit code 2 if they clash with Tocsin's.
    """
    from tocsin.setup import project_packages

    begun = time.monotonic()
    changed = project_packages.lock(here(), load_settings().project.absolute(), upgrade=upgrade)
    for path in changed:
        line(f"{path} is written; to install it: tocsin packages install")
    line(f"{'locked' if changed else 'nothing to do'}, in {time.monotonic() - begun:.1f} s")


@app.command("install")
def install() -> None:
    """Install what is locked: requirements.txt where Tocsin is, each environments/NAME.txt in a folder of its own.

    From then on `make setup` installs it too. Jobs of an environment that has changed are replaced.
    """
    variables = {"PYTHONPATH": str(here().root / "src"), "TOCSIN_PROJECT": str(load_settings().project.absolute())}
    # By the Python that the environments are made of: what this command runs in may be made anew.
    command = [getattr(sys, "_base_executable", sys.executable), "-m", "tocsin.setup", "packages"]
    if code := subprocess.run(command, env=os.environ | variables, check=False).returncode:
        raise typer.Exit(code)
