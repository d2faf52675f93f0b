"""`tocsin model`: the models of a detector, and what one does about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.options import Json
from tocsin.cli.output import counted, line, utc, write_list
from tocsin.cli.project import load_project
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.names import refresh_job

if TYPE_CHECKING:
    from tocsin.cli.json_shapes import ModelShape
    from tocsin.declare.catalog import Catalog
    from tocsin.declare.model.table import TableSpec
    from tocsin.declare.settings import Settings
    from tocsin.spark.tables.model_files import ModelFacts

app = typer.Typer(help="Show, compare and train the models of a detector; hold one, or go back.", no_args_is_help=True)

_Detector = Annotated[str, typer.Argument(metavar="DETECTOR", help="Its name.")]
_Model = Annotated[
    str, typer.Argument(metavar="[MODEL]", help="Show this one, as JSON: its day, how its hash begins, or `newest`.")
]
_Against = Annotated[
    str,
    typer.Option("--against", metavar="OLD", help="Show what has changed since this one, up to MODEL or the newest."),
]
_Accept = Annotated[
    bool, typer.Option("--accept", help="Also accept features that have drifted, few rows, and far other findings.")
]
_Previous = Annotated[bool, typer.Option("--previous", help="Go back to the one before it, from now on.")]
_Reason = Annotated[str, typer.Option("--reason", help="Why; shown by `tocsin model show`.")]


@app.command("show")
def show(detector: _Detector, model: _Model = "", against: _Against = "", json: Json = False) -> None:
    """List the models of a detector, since when each judges windows, and those that were refused.

    Of one MODEL show what it was made of, and what it finds in its last days.
    """
    if against:
        before, after = (_facts(detector, name).model_dump(mode="json") for name in (against, model))
        for key in after:
            if before[key] != after[key]:
                line(f"{key}: {before[key]} -> {after[key]}")
    elif model:
        line(_facts(detector, model).model_dump_json(indent=2))
    else:
        _list_models(detector, json=json)


def _list_models(detector: str, *, json: bool) -> None:
    from tocsin.cli.json_shapes import ModelShape
    from tocsin.history.model_versions import model_versions
    from tocsin.spark.tables.dated_versions import DatedVersions

    settings, _, table = _open(detector)
    versions = DatedVersions(settings, table)
    shown = [
        ModelShape(
            day=model.day, hash=model.hash, holds_from=model.since, holds_until=model.until, refused=None,
            rows=model.facts and model.facts.rows, seconds=model.facts and model.facts.seconds,
            findings=model.facts and model.facts.findings.new,
        )
        for model in model_versions(settings, table)
    ] + [ModelShape(day=one.day, refused=one.reason) for one in versions.refused()]  # fmt: skip

    def row(shape: ModelShape) -> tuple[object, ...]:
        digest = shape.hash and shape.hash[:12]
        return (shape.day, digest, utc(shape.holds_from), utc(shape.holds_until), shape.rows, shape.findings,
                shape.refused and f"refused: {shape.refused}")  # fmt: skip

    columns = ("DAY", "MODEL", "HOLDS FROM", "UNTIL", "ROWS", "FINDS IN 7 DAYS", "NOTE")
    write_list(
        shown, columns, row, json=json, empty="no model yet; train the first one: tocsin model train " + detector
    )
    if (held := versions.held) is not None and not json:
        line(f"held since {utc(held.at)}: {held.reason}; `tocsin model train {detector}` goes on")


@app.command("train")
def train(detector: _Detector, accept: _Accept = False) -> None:
    """Train a model on the newest sealed days; it judges windows that begin from now on, and a hold ends.

    This starts Spark. Exit code 1 if the gate refuses the model; the one before stays in force then.
    """
    from tocsin.history.model_versions import model_versions
    from tocsin.history.places import writing_history
    from tocsin.history.spark.table_versions import train_now
    from tocsin.platform.environments import go_on_by_its_python
    from tocsin.spark.batch_session import running_batch

    settings, catalog, table = _open(detector)
    go_on_by_its_python(settings, detector)
    with writing_history(settings), running_batch(settings, refresh_job(table.name)) as spark:
        made = train_now(spark, settings, table, catalog.source(str(table.history)), is_accepted=accept)
    for model in (known for known in model_versions(settings, table) if known.version in made):
        rows = counted(model.facts.rows if model.facts else 0, "row")
        line(f"model {model.text} of {rows} judges windows that begin from {utc(model.since)} on")


@app.command("hold")
def hold(detector: _Detector, previous: _Previous = False, reason: _Reason = "by hand") -> None:
    """Keep the model in force, or the one before it: train no other until `tocsin model train`."""
    from tocsin.history.model_versions import revert
    from tocsin.spark.tables.dated_versions import DatedVersions

    settings, _, table = _open(detector)
    if previous:
        model = revert(settings, table, reason)
        line(f"model {model.text} judges windows that begin from {utc(model.since)} on")
    elif (versions := DatedVersions(settings, table)).read():
        versions.hold(reason, datetime.now(UTC))
    else:
        raise ConfigError.one(detector, f"has no model yet; train the first one: tocsin model train {detector}")
    line(f"the model of {detector} stays in force until: tocsin model train {detector}")


def _open(detector: str) -> tuple[Settings, Catalog, TableSpec]:
    """Load the project, and find the table of the models of `detector`; ConfigError if it has none."""
    from tocsin.history.model_versions import models_of

    settings, catalog = load_project()
    return settings, catalog, models_of(catalog, detector)


def _facts(detector: str, name: str) -> ModelFacts:
    from tocsin.history.model_versions import model_versions

    settings, _, table = _open(detector)
    known = model_versions(settings, table)
    found = [model for model in known if str(model.day) == name or model.hash.startswith(name)]
    found = known if name in ("", "newest") else found
    if not found:
        what = f"has no model '{name}'" if name else "has no model"
        raise ConfigError.one(detector, f"{what} (there are: {', '.join(model.text for model in known) or 'none'})")
    newest = max(found, key=lambda model: model.since)
    if newest.facts is None:
        raise ConfigError.one(detector, f"the facts of model {newest.text} are gone; it still judges windows")
    return newest.facts
