"""`tocsin skip-backlog`: a detector goes on with the events of now."""

from __future__ import annotations

from typing import Annotated

import typer

from tocsin.cli.output import line


def skip_backlog(detector: Annotated[str, typer.Argument(help="Its name.")]) -> None:
    """Let a detector leave out all events that it has not read yet, and go on with those of now.

    A running job does so within seconds, another one when it starts next. What it leaves out is written to `gaps.json`
    beside its checkpoint, for a backfill; windows that had begun by then are not told.
    """
    from tocsin.model.names import detector_job
    from tocsin.project.catalog import read_catalog
    from tocsin.project.settings import load_settings
    from tocsin.sparkjob.query import gaps

    settings = load_settings()
    job = detector_job(read_catalog(settings.project).detector(detector).name)
    gaps.ask_to_skip(settings.checkpoint(job))
    line(f"{job} leaves out its backlog: within seconds if it runs, else when it starts next")
