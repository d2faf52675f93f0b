"""`tocsin backup` and `tocsin restore`: what an installation cannot make anew, in a folder, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.output import counted, line, utc

if TYPE_CHECKING:
    from tocsin.recovery.manifest import Manifest


def backup(folder: Annotated[Path, typer.Argument(help="That does not exist yet, on another disk.")]) -> None:
    """Write alerts DB, places of all jobs, ledgers, switches and history to FOLDER, while the jobs run.

    FOLDER appears whole or not at all. What Kafka holds is not in it, nor Airflow's metadata DB, nor a history folder
    outside the state folder. A landing, seal or backfill that runs is waited for, a minute at most; none begins
    meanwhile.
    """
    from tocsin.project.catalog import load_project
    from tocsin.recovery.backup import make_backup

    settings, catalog = load_project()
    _tell("backed up to", folder, make_backup(settings, catalog, folder))


def restore(folder: Annotated[Path, typer.Argument(help="That `tocsin backup` has written.")]) -> None:
    """Put back what FOLDER holds into an empty installation on the same Kafka; then start the jobs.

    They read what came since the backup, and compute it again. Nothing is changed if the backup is not whole, or of
    another installation or Tocsin, or if jobs run or state is there already.
    """
    from tocsin.project.settings import load_settings
    from tocsin.recovery.restore import restore as put_back

    _tell("restored from", folder, put_back(load_settings(), folder))


def _tell(what: str, folder: Path, manifest: Manifest) -> None:
    size = sum(mark.size for mark in manifest.files.values()) / 1e6
    line(f"{what} {folder}: {counted(len(manifest.files), 'file')}, {size:,.1f} MB, as of {utc(manifest.made_at)}")
