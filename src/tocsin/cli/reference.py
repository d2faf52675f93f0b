"""Write docs/run/cli.md from the command: `python -m tocsin.cli.reference > docs/run/cli.md`. A test compares."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from itertools import chain
from types import UnionType
from typing import Any, get_args

import typer
from pydantic import BaseModel

from tocsin.alerts.actions import ActionResult, Silence
from tocsin.alerts.evaluation.evaluation_run import Evaluation
from tocsin.alerts.evidence.finding_explanation import FindingExplanation
from tocsin.alerts.finding_merging import StoredFinding
from tocsin.alerts.store.alert_rows import Alert, AlertDetails, InvalidFinding, JobUsage
from tocsin.alerts.store.queries import DetectorDigest
from tocsin.cases.case_report import FileReport, TestReport
from tocsin.cli import json_shapes as shapes_module
from tocsin.cli.app import app
from tocsin.cli.json_shapes import (
    DetectorShape,
    FaultShape,
    JobPlanShape,
    ModelShape,
    ResentShape,
    RoutedShape,
    TableShape,
    VersionShape,
)
from tocsin.cli.settings_reference import ATTRIBUTE
from tocsin.detect.explanation import DetectorExplanation
from tocsin.dev.diagnosis import Diagnosis
from tocsin.history.backfill.backfill_status import BackfillDay
from tocsin.history.backfill.parity.parity_report import ParityReport
from tocsin.history.backfill.trial_report import Diff
from tocsin.history.day_status import DayStatus
from tocsin.history.day_versions import DayVersion
from tocsin.ingest.quarantined_record import QuarantinedRecord
from tocsin.ingest.replay.replay_run import ReplayReport
from tocsin.quality.day_profile import ProfileRow
from tocsin.quality.verdict import DaySummary, Verdict
from tocsin.supervise.job_status import JobStatus
from tocsin.views.row_query import RowShape
from tocsin.views.view_summary import ViewSummary

_INTRODUCTION = """# The command `tocsin`

Written by `python -m tocsin.cli.reference`; change the command, not this page.

Every verb reads its settings from `tocsin.toml`, from a running `tocsin dev up` and from `TOCSIN_*` variables; inside a
project it needs no options to find Kafka. Times are UTC. `NO_COLOR` switches colours off, `TOCSIN_DEBUG=1` shows
tracebacks.

**Exit codes**: 0 all well; 1 a problem was found, or something outside failed and a retry may help; 2
the call, a file or a setting is wrong and must be changed; 130 interrupted.

Verbs that [the shapes](#what---json-writes) name take `--json`.

"""
_ANY_NUMBER = re.compile(r"x<=10{18}; | \[x<=10{18}\]")  # what SQLite holds
_IN_SHORT = """## Verbs in short

Those with four options at most; all others have a section below.

| verb | what it does | options |
|---|---|---|"""

SHAPES: dict[str, Any] = {
    "tocsin status": list[JobStatus] | list[JobUsage],
    "tocsin detectors": list[DetectorShape],
    "tocsin findings": list[StoredFinding] | list[InvalidFinding],
    "tocsin alerts": list[Alert] | AlertDetails | list[DetectorDigest],
    "tocsin alerts resend": ResentShape,
    "tocsin alerts ack": list[ActionResult],
    "tocsin alerts resolve": list[ActionResult],
    "tocsin alerts silence": list[Silence],
    "tocsin alerts silences": list[Silence],
    "tocsin alerts route": RoutedShape,
    "tocsin quarantine": list[QuarantinedRecord],
    "tocsin history list": list[DayStatus] | list[DayVersion],
    "tocsin quality": list[DaySummary] | Verdict | list[ProfileRow],
    "tocsin view": list[ViewSummary] | list[RowShape],
    "tocsin table": list[TableShape],
    "tocsin model show": list[ModelShape],
    "tocsin backfill": list[BackfillDay],
    "tocsin check": list[FaultShape],
    "tocsin plan": list[JobPlanShape],
    "tocsin doctor": list[Diagnosis],
    "tocsin explain": DetectorExplanation | FindingExplanation | list[VersionShape],
    "tocsin evaluate": Evaluation | Diff,
    "tocsin parity": ParityReport,
    "tocsin test": TestReport,
    "tocsin run": FileReport,
    "tocsin replay": ReplayReport,
}
"""What each verb writes with `--json`; of several, which one follows from its arguments, in this order."""


def page() -> str:
    """The whole page."""
    command = typer.main.get_command(app)
    with command.make_context("tocsin", [], resilient_parsing=True) as context:
        verbs = "\n".join(_verbs(command, context, "tocsin"))
    shapes = _shapes()
    described = "\n".join(_shape(name, shapes, _writers(name)) for name in sorted(shapes))
    return f"{_INTRODUCTION}{verbs}\n## What `--json` writes\n\n{inspect.getdoc(shapes_module)}\n\n{described}\n"


def verbs_of(command: Any, context: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every verb that does something, with its whole name."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word in command.list_commands(context):
        yield from verbs_of(command.get_command(context, word), context, f"{name} {word}".strip())


def _verbs(command: Any, context: Any, name: str) -> Iterator[str]:
    """A row for each verb that a row has room for, then a section for each of the others."""
    rows, sections = [], []
    for whole, verb in verbs_of(command, context, name):
        text = inspect.cleandoc(verb.help or "")
        with verb.make_context(whole, [], resilient_parsing=True) as own:
            arguments = (_argument(piece) for piece in verb.collect_usage_pieces(own)[1:])
            records = list(_records(verb, own))
        if len(records) <= 4 and text.count("\n") < 4:
            cells = (f"`{' '.join([whole, *arguments])}`", " ".join(text.split()), "<br>".join(records))
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        else:
            sections += [f"## `{whole}`\n\n{text}\n", "\n".join([*map("- {}".format, records), ""])]
    yield "\n".join([_IN_SHORT, *rows, ""])
    yield from sections


def _argument(piece: str) -> str:
    """An argument as it stands in a call: in brackets if it may be left out."""
    plain = piece.replace("{", "").replace("}", "").replace("[[", "[").replace("]]", "]")
    return plain.replace("......", "...").upper()


def _records(verb: Any, own: Any) -> Iterator[str]:
    """Write each argument and option with its meaning, but for `--json` and for names that say it all."""
    for record in filter(None, (parameter.get_help_record(own) for parameter in verb.get_params(own))):
        written, meaning = (" ".join(part.split()) for part in record)
        is_plain = not written.startswith("--") and meaning == "Its name. [required]"
        if not is_plain and not written.startswith("--help") and meaning != "Write JSON.":
            yield f"`{written}`: {_ANY_NUMBER.sub('', meaning)}"


def _models(shape: Any) -> Iterator[tuple[bool, type[BaseModel]]]:
    for member in get_args(shape) if isinstance(shape, UnionType) else (shape,):
        many = get_args(member)
        yield bool(many), many[0] if many else member


def _shapes() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for _, shape in chain.from_iterable(map(_models, SHAPES.values())):
        schema = shape.model_json_schema(mode="serialization")
        inner = schema.get("$defs", {})
        found |= {shape.__name__: schema} | {name: model for name, model in inner.items() if "properties" in model}
    return found


def _writers(name: str) -> str:
    """The verbs that write this shape, and those that write an array of it."""
    found = [
        f"`{verb}`{': array' if is_array else ''}"
        for verb, shape in SHAPES.items()
        for is_array, model in _models(shape)
        if model.__name__ == name
    ]
    return f" ({', '.join(found)})" if found else ""


def _shape(name: str, shapes: dict[str, dict[str, Any]], writers: str) -> str:
    text, _, attributes = shapes[name].get("description", "").partition("\n\nAttributes:\n")
    meanings = {
        field: " ".join(meaning.split()).rstrip(".")
        for fields, meaning in ATTRIBUTE.findall(attributes + "\n")
        for field in fields.split(", ")
    }
    fields: dict[str, dict[str, list[str]]] = {}
    for field, kind in shapes[name]["properties"].items():
        written = f" ({_type(kind, shapes)})"
        meaning = f": {meanings[field]}" if field in meanings else ""
        fields.setdefault(meaning or written, {}).setdefault(written, []).append(f"`{field}`")
    described = "; ".join(
        ", ".join(", ".join(names) + written for written, names in kinds.items()) + (said if said not in kinds else "")
        for said, kinds in fields.items()
    )
    return f"- **{name}**{writers}. {' '.join(text.split())} {described}."


def _type(described: dict[str, Any], shapes: dict[str, Any]) -> str:
    """A JSON schema in words; `shapes` are those with an entry of their own, all others are enumerations."""
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        return name if name in shapes else "string"
    if "anyOf" in described:
        return " or ".join(_type(kind, shapes) for kind in described["anyOf"])
    if described.get("type") == "array":
        return f"array of {_type(described['items'], shapes)}" if described.get("items") else "array"
    return str(described.get("format", described.get("type", "any")))


if __name__ == "__main__":
    sys.stdout.write(page())
