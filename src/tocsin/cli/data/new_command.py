"""`tocsin new`: a source, a flow, a view or a detector to begin with."""

from __future__ import annotations

import contextlib
import subprocess
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.output import counted, line
from tocsin.cli.project import load_project, load_settings
from tocsin.declare.model.names import valid_name

if TYPE_CHECKING:
    from tocsin.declare.scaffold import SampleSchema


class Kind(StrEnum):
    """Kinds of files that it writes."""

    SOURCE = "source"
    FLOW = "flow"
    VIEW = "view"
    DETECTOR = "detector"


_Kind = Annotated[Kind, typer.Argument(help="What to write.")]
_Name = Annotated[str, typer.Argument(help="The file name, and so the name.")]
_Source = Annotated[str | None, typer.Option(help="The source whose events it reads; with --sample a new one.")]
_To = Annotated[str | None, typer.Option(help="Of a flow: the source whose events it writes.")]
_Sample = Annotated[
    Path | None,
    typer.Option(help="A file with lines as they will come, to guess the source from."),
]
_Owner = Annotated[str | None, typer.Option(help="E-mail address of who answers for it; that of git when left out.")]


def new(
    kind: _Kind, name: _Name, source: _Source = None, to: _To = None, sample: _Sample = None, owner: _Owner = None
) -> None:
    """Write files to begin with: a source, a flow, a view or a detector; all but a source as drafts.

    A source is guessed from the lines of --sample: form, columns, types, key and event time. A flow passes the events
    of --source on to another. A view counts the events of each key in each minute. A detector does the same, with cases
    and a runbook; with --sample its source is written too, called as --source says or else as the file, and its limits
    are above what these lines have.
    """
    needs: dict[Kind, dict[str, object]] = {
        Kind.SOURCE: {"sample": sample},
        Kind.FLOW: {"source": source, "to": to},
        Kind.VIEW: {"source": source},
        Kind.DETECTOR: {"source": source or sample},
    }
    for option, value in needs[kind].items():
        if value is None:
            or_sample = ", or --sample FILE to write one" if kind is Kind.DETECTOR else ""
            raise typer.BadParameter(f"a {kind} needs it{or_sample}", param_hint=f"'--{option}'")
    own = owner or _own_address()
    if kind is Kind.DETECTOR:
        _detector(name, source, sample, own)
        return
    if kind is Kind.SOURCE and sample is not None:
        _source(name, sample, own)
    elif kind is Kind.FLOW:
        _flow(name, str(source), str(to), own)
    else:
        _view(name, str(source), own)
    _tell_next("say what it is in its first line, then run:", "tocsin check")


def _source(name: str, sample: Path, owner: str) -> None:
    from tocsin.declare.scaffold import source_text
    from tocsin.ingest.sampling.sample import read_schema

    schema = read_schema(sample)
    _write({f"sources/{name}.toml": source_text(name, schema, owner)})
    _tell_schema(schema, sample)


def _flow(name: str, source: str, to: str, owner: str) -> None:
    from tocsin.declare.scaffold import flow_text
    from tocsin.declare.source_file import read_source

    settings, catalog = load_project()
    file = settings.project / "sources" / f"{to}.toml"
    target = read_source(file) if file.exists() else catalog.source(to)  # no flow writes it yet, which is a fault
    _write({f"flows/{name}.py": flow_text(name, catalog.source(source), target, owner)})


def _view(name: str, source: str, owner: str) -> None:
    from tocsin.declare.scaffold import view_text

    _, catalog = load_project()
    _write({f"views/{name}.py": view_text(name, catalog.source(source), owner)})


def _detector(name: str, source: str | None, sample: Path | None, owner: str) -> None:
    from tocsin.declare.scaffold import detector_files, sampled_source, source_text
    from tocsin.ingest.sampling.sample import read_schema

    _, catalog = load_project()
    if sample is None:
        files = detector_files(name, catalog.source(str(source)), owner)
    else:
        schema, called = read_schema(sample), source or valid_name(sample.name.partition(".")[0] or "sample")
        files = {f"sources/{called}.toml": source_text(called, schema, owner)}
        files |= detector_files(name, sampled_source(called, schema), owner, schema.busiest)
    _write(files)
    if sample is not None:
        _tell_schema(schema, sample)
    _tell_next(
        f"say in detectors/{name}.py what is unusual, then run:",
        *("tocsin check", f"tocsin test {name}", f"tocsin run {name} {sample or 'FILE'}"),
    )


def _write(files: dict[str, str]) -> None:
    from tocsin.declare.scaffold import write_new

    write_new(load_settings().project, files)
    for place in files:
        line(f"written: {place}")


def _tell_schema(schema: SampleSchema, sample: Path) -> None:
    read = f"the first {counted(schema.lines, 'line')}" if schema.goes_on else f"all {counted(schema.lines, 'line')}"
    line(f"read {read} of {sample}: {schema.format}, key {schema.key}, "
         f"event time {schema.event_time} ({schema.event_time_format})")  # fmt: skip
    if schema.unread:
        line(f"{counted(schema.unread, 'line')} of them would go to quarantine: another form, or no time")
    if not schema.has_zone:
        line('its times name no zone and are read as UTC; otherwise write time_zone = "Europe/Berlin", for instance')


def _tell_next(what: str, *commands: str) -> None:
    line(f"next: {what}")
    for command in commands:
        line(f"  {command}")


def _own_address() -> str:
    """Read the address that git knows; a usage error if it knows none."""
    address = ""
    with contextlib.suppress(OSError):  # there is no git
        asked = subprocess.run(["git", "config", "user.email"], capture_output=True, text=True, check=False)
        address = asked.stdout.strip()
    if not address:
        raise typer.BadParameter("is needed: git knows no address", param_hint="'--owner'")
    return address
