"""`tocsin new`: a source, a flow, a view or a detector to begin with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.output import counted, line

if TYPE_CHECKING:
    from tocsin.project.scaffold import SampleSchema

app = typer.Typer(help="Write files to begin with: a source, a flow, a view or a detector.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="The file name, and so the name.")]
_Source = Annotated[str, typer.Option(help="The source whose events it reads.")]
_To = Annotated[str, typer.Option(help="The source whose events it writes.")]
_Sample = Annotated[Path, typer.Option(help="A file with lines as they will come.")]
_OwnSource = Annotated[str | None, typer.Option(help="The source whose events it reads; with --sample a new one.")]
_OwnSample = Annotated[Path | None, typer.Option(help="Also write the source, guessed from the lines of this file.")]
_Owner = Annotated[str | None, typer.Option(help="E-mail address of who answers for it; that of git when left out.")]


@app.command()
def source(name: _Name, sample: _Sample, owner: _Owner = None) -> None:
    """Guess a source from the lines of a sample: form, columns, types, key and event time."""
    from tocsin.ingest.sampling.sample import read_schema
    from tocsin.project.scaffold import source_text

    schema = read_schema(sample)
    _write({f"sources/{name}.toml": source_text(name, schema, owner or _own_address())})
    _tell_schema(schema, sample)
    _tell_next("say what it is in its first line, then run:", "tocsin check")


@app.command()
def flow(name: _Name, source: _Source, to: _To, owner: _Owner = None) -> None:
    """Write a flow that passes the events of a source on to another, as a draft."""
    from tocsin.project.catalog import load_project
    from tocsin.project.scaffold import flow_text
    from tocsin.project.source_file import read_source

    settings, catalog = load_project()
    file = settings.project / "sources" / f"{to}.toml"
    target = read_source(file) if file.exists() else catalog.source(to)  # no flow writes it yet, which is a fault
    text = flow_text(name, catalog.source(source), target, owner or _own_address())
    _write({f"flows/{name}.py": text})
    _tell_next("say what it is in its first line, then run:", "tocsin check")


@app.command()
def view(name: _Name, source: _Source, owner: _Owner = None) -> None:
    """Write a view that counts the events of each key of a source in each minute, as a draft."""
    from tocsin.project.catalog import load_project
    from tocsin.project.scaffold import view_text

    _, catalog = load_project()
    _write({f"views/{name}.py": view_text(name, catalog.source(source), owner or _own_address())})
    _tell_next("say what it is in its first line, then run:", "tocsin check")


@app.command()
def detector(name: _Name, source: _OwnSource = None, sample: _OwnSample = None, owner: _Owner = None) -> None:
    """Write a detector that counts the events of each key in a minute, as a draft, with cases and a runbook.

    With --sample its source is written too, guessed from the lines of that file, and the limits are above what these
    have. The source is called as --source says, or else as the file.
    """
    from tocsin.ingest.sampling.sample import read_schema
    from tocsin.model.names import valid_name
    from tocsin.project.catalog import load_project
    from tocsin.project.scaffold import detector_files, sampled_source, source_text

    if sample is None and source is None:
        raise typer.BadParameter("give one, or --sample FILE to write one", param_hint="'--source'")
    _, catalog = load_project()
    own = owner or _own_address()
    if sample is None:
        files = detector_files(name, catalog.source(str(source)), own)
    else:
        schema, called = read_schema(sample), source or valid_name(sample.name.partition(".")[0] or "sample")
        files = {f"sources/{called}.toml": source_text(called, schema, own)}
        files |= detector_files(name, sampled_source(called, schema), own, schema.busiest)
    _write(files)
    if sample is not None:
        _tell_schema(schema, sample)
    _tell_next(
        f"say in detectors/{name}.py what is unusual, then run:",
        *("tocsin check", f"tocsin test {name}", f"tocsin run {name} {sample or 'FILE'}"),
    )


def _write(files: dict[str, str]) -> None:
    from tocsin.project.scaffold import write_new
    from tocsin.project.settings import load_settings

    write_new(load_settings().project, files)
    for place in files:
        line(f"written: {place}")


def _tell_schema(schema: SampleSchema, sample: Path) -> None:
    read = f"the first {counted(schema.lines, 'line')}" if schema.goes_on else f"all {counted(schema.lines, 'line')}"
    line(f"read {read} of {sample}: {schema.format}, key {schema.key}, "
         f"event time {schema.event_time} ({schema.event_time_format})")  # fmt: skip


def _tell_next(what: str, *commands: str) -> None:
    line(f"next: {what}")
    for command in commands:
        line(f"  {command}")


def _own_address() -> str:
    """Read the address that git knows.

    Raises:
        typer.BadParameter: it knows none.
    """
    try:
        asked = subprocess.run(["git", "config", "user.email"], capture_output=True, text=True, check=False)
    except OSError:
        asked = None
    if asked is None or not asked.stdout.strip():
        raise typer.BadParameter("is needed: git knows no address", param_hint="'--owner'")
    return asked.stdout.strip()
