"""docs/cli.md, written from the command: `python -m tocsin.cli.reference > docs/cli.md`. A test compares the two."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import typer
from pydantic import BaseModel

from tocsin.alerts.rows import Alert, AlertDetails, Notification, StoredFinding
from tocsin.cli.app import app
from tocsin.cli.shapes import DetectorShape, Diagnosis, FaultShape, JobStatus, QuarantinedShape
from tocsin.finding import Finding
from tocsin.metrics import JobReport

_INTRODUCTION = """# The command `tocsin`

Written by `python -m tocsin.cli.reference`; change the command, not this page.

Every verb reads its settings from `tocsin.toml`, from a running `tocsin dev up` and from `TOCSIN_*` variables; inside a
project it needs no options to find Kafka. Times are UTC. `NO_COLOR` switches colours off, `TOCSIN_DEBUG=1` shows
tracebacks.

**Exit codes**: 0 it worked and all is well; 1 a problem was found, or something outside failed and a retry may help; 2
the call, a file or a setting is wrong and must be changed; 130 interrupted.

"""

LISTS: dict[str, type[BaseModel]] = {
    "tocsin status": JobStatus,
    "tocsin findings": StoredFinding,
    "tocsin alerts list": Alert,
    "tocsin quarantine list": QuarantinedShape,
    "tocsin detectors": DetectorShape,
    "tocsin check": FaultShape,
    "tocsin doctor": Diagnosis,
}
ONES: dict[str, type[BaseModel]] = {
    "tocsin alerts show": AlertDetails,
    "tocsin quarantine show": QuarantinedShape,
}
_SHAPES: tuple[type[BaseModel], ...] = (
    *(JobReport, JobStatus, Finding, StoredFinding, Alert, Notification, AlertDetails),
    *(QuarantinedShape, DetectorShape, FaultShape, Diagnosis),
)


def page() -> str:
    """The whole page."""
    command = typer.main.get_command(app)
    with typer.Context(command, info_name="tocsin") as context:
        verbs = "\n".join(_verbs(command, context, "tocsin"))
    shapes = "\n".join(_shape(shape) for shape in _SHAPES)
    return f"{_INTRODUCTION}{verbs}\n## What `--json` writes\n\n{inspect.getdoc(_shapes_module())}\n\n{shapes}"


def verbs_of(command: Any, context: typer.Context, name: str) -> Iterator[tuple[str, Any]]:
    """Every verb that does something, with its whole name."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word in command.list_commands(context):
        yield from verbs_of(command.get_command(context, word), context, f"{name} {word}")


def _verbs(command: Any, context: typer.Context, name: str) -> Iterator[str]:
    for whole, verb in verbs_of(command, context, name):
        with typer.Context(verb, info_name=whole) as own:
            yield f"## `{whole}`\n\n{inspect.cleandoc(verb.help or '')}\n"
            yield f"```console\n$ {whole} {' '.join(verb.collect_usage_pieces(own))}\n```\n"
            records = [parameter.get_help_record(own) for parameter in verb.get_params(own)]
            rows = [f"| `{written}` | {_cell(meaning)} |" for written, meaning in filter(None, records)]
            yield "\n".join(["| | |", "|---|---|", *rows, ""])
        if whole in LISTS:
            yield f"`--json` writes an array of [{LISTS[whole].__name__}](#{LISTS[whole].__name__.lower()}).\n"
        if whole in ONES:
            yield f"`--json` writes one [{ONES[whole].__name__}](#{ONES[whole].__name__.lower()}).\n"


def _shape(shape: type[BaseModel]) -> str:
    described = inspect.cleandoc(shape.__doc__ or "")
    fields = "\n".join(f"  {line}" for line in _fields(shape))
    return f"### {shape.__name__}\n\n```text\n{described}\n\nFields:\n{fields}\n```\n"


def _fields(shape: type[BaseModel]) -> Iterator[str]:
    """Fields and their types, those of a parent shape by its name."""
    parents = [parent for parent in shape.__mro__[1:] if parent in _SHAPES]
    inherited = {name for parent in parents for name in parent.model_fields}
    own = [f"{name}: {_type(field.annotation)}" for name, field in shape.model_fields.items() if name not in inherited]
    if parents:
        yield f"all of {parents[0].__name__}"
    yield from textwrap.wrap(", ".join(own), 112)


def _type(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not hasattr(annotation, "__args__")
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", annotation.__name__ if plain else str(annotation))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _shapes_module() -> object:
    from tocsin.cli import shapes

    return shapes


if __name__ == "__main__":
    sys.stdout.write(page())
