"""`tocsin table`: list the tables, and refresh those that are made of history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.options import Json
from tocsin.cli.output import counted, line, note, utc, write_list

if TYPE_CHECKING:
    from tocsin.cli.json_shapes import TableShape

_Table = Annotated[str | None, typer.Argument(metavar="[TABLE]", help="With --refresh: only this one.")]
_Refresh = Annotated[bool, typer.Option("--refresh", help="Make the versions that are due of tables made of history.")]


def table(name: _Table = None, refresh: _Refresh = False, json: Json = False) -> None:
    """List the tables: what each is made of, its rows in force, and until when they are known. Or refresh them.

    Airflow refreshes each night, after sealing; that starts Spark. Exit code 1 when one could not be made; what was in
    force then stays.
    """
    if refresh:
        _refresh_tables(name)
    else:
        _list(json=json)


def _list(*, json: bool) -> None:
    from tocsin.cli.json_shapes import TableShape
    from tocsin.declare.catalog import load_project
    from tocsin.spark.tables.published_table import TableFolder

    settings, catalog = load_project()
    shown = []
    for spec in catalog.tables.values():
        if spec.trains:
            continue  # see `tocsin model`
        rows = TableFolder(settings, spec).current()
        made_of = next((kind, value) for kind in ("source", "view", "topic", "file", "history")
                       if (value := getattr(spec, kind)) is not None)  # fmt: skip
        shown.append(
            TableShape(
                name=spec.name,
                made_of=" ".join(made_of),
                rows=None if rows is None else rows.rows,
                complete_until=None if rows is None else rows.complete_at,
                owner=spec.owner,
                title=spec.title,
            )
        )

    def row(shape: TableShape) -> tuple[object, ...]:
        return shape.name, shape.made_of, shape.rows, utc(shape.complete_until), shape.owner, shape.title

    columns = ("TABLE", "MADE OF", "ROWS", "COMPLETE UNTIL", "OWNER", "WHAT")
    write_list(shown, columns, row, json=json, empty="no tables are declared; they are files in tables/")


def _refresh_tables(name: str | None) -> None:
    from tocsin.declare.catalog import load_project
    from tocsin.declare.model.errors import ConfigError
    from tocsin.history.places import writing_history
    from tocsin.history.table_refresh import refresh_tables

    settings, catalog = load_project()
    wanted = catalog.history_tables() if name is None else [catalog.table(name)]
    for spec in wanted:
        if spec.history is None:
            what = f"is kept by its job table:{spec.name}; only a table with history = ... is refreshed"
            raise ConfigError.one(settings.project / "tables" / f"{spec.name}.toml", what)
    with writing_history(settings):
        outcome = refresh_tables(settings, catalog, wanted)
    for made, versions in outcome.made.items():
        for version in versions:
            line(f"{made} {version.day}: {counted(version.rows, 'row')} of {counted(len(version.made_of), 'day')}")
        if not versions:
            line(f"{made}: up to date")
    for failed, why in outcome.failed.items():
        note(f"{failed}: {why}", style="red")
    if outcome.failed:
        raise typer.Exit(1)
    if not wanted:
        line("no table is made of history")
