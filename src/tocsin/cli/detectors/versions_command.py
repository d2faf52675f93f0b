"""`tocsin versions`, `rollback` and `skip-backlog`: which version of a detector or flow runs, what a detector skips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import line, utc, write_list

if TYPE_CHECKING:
    from tocsin.cli.json_shapes import VersionShape

_Detector = Annotated[str, typer.Argument(help="Its name.")]
_Name = Annotated[str, typer.Argument(help="Of a detector or a flow; flow:NAME if a detector is called so too.")]


def versions(name: _Name, json: options.Json = False) -> None:
    """List the versions of a detector or flow that ran here and can be rolled back to, in the order of first runs."""
    from tocsin.cli.json_shapes import VersionShape
    from tocsin.project.catalog import load_project
    from tocsin.project.code.versioned_kinds import versioned_job
    from tocsin.runtime.code_versions import kept_versions, read_pins, version_in_force

    settings, catalog = load_project()
    job = versioned_job(catalog, name)
    current, pinned = version_in_force(settings, job), job in read_pins(settings)
    found = [
        VersionShape(**one.model_dump(), in_force=one.version == current, rolled_back=one.version == current and pinned)
        for one in kept_versions(settings, job)
    ]
    columns = ("VERSION", "FIRST RAN", "STARTED LAST", "CHECKPOINT", "NOTE")
    write_list(found, columns, _row, json=json, empty=f"no version of {name} has run here yet")


def _row(one: VersionShape) -> tuple[object, ...]:
    note = "rolled back to" if one.rolled_back else "in force" if one.in_force else None
    return (one.version, utc(one.first_at), utc(one.last_at), one.fingerprint, note)


def rollback(
    name: _Name,
    to: Annotated[str | None, typer.Option(help="The version to go back to; default: the one before.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Run what is in the file again.")] = False,
) -> None:
    """Run an earlier version of a detector or a flow until its file changes.

    The running version keeps running until the earlier one can take over. That of a detector goes on from the
    checkpoint that it left: it reads what it missed since it was replaced; findings that exist already notify nobody
    again. That of a flow goes on where the running one is; what is written stays as it is.
    """
    from tocsin.project.catalog import load_project
    from tocsin.project.code.versioned_kinds import versioned_job
    from tocsin.runtime.code_versions import roll_back, roll_forward

    settings, catalog = load_project()
    job = versioned_job(catalog, name)
    if undo:
        was_rolled_back = roll_forward(settings, job)
        line(f"{job}: the version in its file runs" + (" again" if was_rolled_back else " already"))
        return
    version = roll_back(settings, job, to)
    line(f"{job}: rolled back to version {version.version}, which first ran {utc(version.first_at)},")
    line(f"until its file changes; `tocsin rollback {name} --undo` ends that sooner")


def skip_backlog(detector: _Detector) -> None:
    """Let a detector skip all events that it has not read yet.

    A running job does so within seconds, another one at its next start. The gap is recorded in `gaps.json` beside its
    checkpoint, for a backfill; windows that had begun by then are not reported.
    """
    from tocsin.model.names import detector_job
    from tocsin.project.catalog import load_project
    from tocsin.sparkjob.query import gaps

    settings, catalog = load_project()
    job = detector_job(catalog.detector(detector).name)
    gaps.ask_to_skip(settings.checkpoint(job))
    line(f"{job} will skip its backlog: within seconds if it runs, else at its next start")
