"""`tocsin skip-backlog`, and the list of the versions of a detector or flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.output import line, utc, write_list

if TYPE_CHECKING:
    from tocsin.cli.json_shapes import VersionShape

_Detector = Annotated[str, typer.Argument(help="Its name.")]


def list_versions(name: str, *, json: bool) -> None:
    """List the versions of a detector or flow that ran here, in the order of first runs."""
    from tocsin.cli.json_shapes import VersionShape
    from tocsin.declare.catalog import load_project
    from tocsin.platform.code_versions import kept_file, kept_versions

    settings, catalog = load_project()
    job = catalog.versioned_job(name)
    current = catalog.version_of(job)
    found = [
        VersionShape(
            **version.model_dump(),
            in_force=version.version == current,
            file=str(kept_file(settings, job, version.version)),
        )
        for version in kept_versions(settings, job)
    ]
    columns = ("VERSION", "FIRST RAN", "STARTED LAST", "CHECKPOINT", "COPY", "NOTE")
    write_list(found, columns, _row, json=json, empty=f"no version of {name} has run here yet")


def _row(version: VersionShape) -> tuple[object, ...]:
    note = "in the file" if version.in_force else None
    return (version.version, utc(version.first_at), utc(version.last_at), version.fingerprint, version.file, note)


def skip_backlog(detector: _Detector) -> None:
    """Let a detector skip all events that it has not read yet.

    A running job does so within seconds, another one at its next start. The gap is recorded in `gaps.json` beside its
    checkpoint, for a backfill; windows that had begun by then are not reported.
    """
    from tocsin.declare.catalog import load_project
    from tocsin.declare.model.names import detector_job
    from tocsin.spark.query import gaps

    settings, catalog = load_project()
    job = detector_job(catalog.detector(detector).name)
    gaps.ask_to_skip(settings.checkpoint(job))
    line(f"{job} will skip its backlog: within seconds if it runs, else at its next start")
