"""`tocsin new`: a source, a flow or a view to begin with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.output import line

app = typer.Typer(help="Write a file to begin with: a source, a flow or a view.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="The file name, and so the name.")]
_Source = Annotated[str, typer.Option(help="The source whose events it reads.")]
_To = Annotated[str, typer.Option(help="The source whose events it writes.")]
_Sample = Annotated[Path, typer.Option(help="A file with lines as they will come.")]
_Owner = Annotated[str | None, typer.Option(help="E-mail address of who answers for it; that of git when left out.")]


@app.command()
def source(name: _Name, sample: _Sample, owner: _Owner = None) -> None:
    """Guess a source from the lines of a sample: form, columns, types, key and event time."""
    from tocsin.ingest.sample import read_schema
    from tocsin.project.scaffold import source_text

    schema = read_schema(sample)
    _write(f"sources/{name}.toml", source_text(name, schema, owner or _own_address()))
    line(f"{schema.format}, key {schema.key}, event time {schema.event_time} ({schema.event_time_format})")


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
    _write(f"flows/{name}.py", text)


@app.command()
def view(name: _Name, source: _Source, owner: _Owner = None) -> None:
    """Write a view that counts the events of each key of a source in each minute, as a draft."""
    from tocsin.project.catalog import load_project
    from tocsin.project.scaffold import view_text

    _, catalog = load_project()
    _write(f"views/{name}.py", view_text(name, catalog.source(source), owner or _own_address()))


def _write(place: str, text: str) -> None:
    from tocsin.project.scaffold import write_new
    from tocsin.project.settings import load_settings

    write_new(load_settings().project / place, text)
    line(f"written: {place}; say what it is in its first line, then run: tocsin check")


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
