"""`tocsin view` and `tocsin rebuild`: read views, and compute one anew."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.options import Json, moment, refuse_beside
from tocsin.cli.output import as_text, counted, line, note, table, utc, write, write_list
from tocsin.cli.project import load_project
from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.model.sizes import number

if TYPE_CHECKING:
    from tocsin.cli.json_shapes import TableShape
    from tocsin.declare.settings import Settings
    from tocsin.views.rebuild.rebuild_status import RebuildLook
    from tocsin.views.row_query import RowShape, ViewReader
    from tocsin.views.spark.view_rebuild import RebuiltDays
    from tocsin.views.view_summary import ViewSummary


_View = Annotated[str, typer.Argument(metavar="VIEW", help="Name of the view.")]
_AnyView = Annotated[str | None, typer.Argument(metavar="[VIEW]", help="Show rows of this one; without it list all.")]
_Key = Annotated[str | None, typer.Argument(metavar="[KEY]", help="Only its row; colons join several columns.")]
_Prefix = Annotated[str, typer.Option("--prefix", help="List only rows whose key begins like this.")]
_Window = Annotated[str | None, typer.Option("--window", metavar="TIME", help="Start of the window, in UTC.")]
_KafkaOnly = Annotated[bool, typer.Option("--kafka-only", help="Read what Kafka keeps, and no history.")]
_Incomplete = Annotated[bool, typer.Option("--incomplete", help="Leave out days that are nowhere.")]
_Plan = Annotated[bool, typer.Option("--plan", help="Only show what would be read.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="List at most this many rows.")]


def view(
    view: _AnyView = None,
    key: _Key = None,
    prefix: _Prefix = "",
    window: _Window = None,
    limit: _Limit = 20,
    json: Json = False,
) -> None:
    """List the views, how fresh they are, and where a page and REST serve them; of one VIEW show rows.

    The row of a KEY is that of its last window unless one is given; exit code 1 without such a row.
    """
    if view is None:
        refuse_beside("without VIEW", prefix=prefix, window=window)
        _list(json=json)
    elif key is not None:
        refuse_beside("with KEY", prefix=prefix)
        write([_row_of(view, key, window)], _table, json=json)
    else:
        _show(view, prefix, window, limit, json=json)


def _list(*, json: bool) -> None:
    from tocsin.views.view_summary import summarise

    settings, catalog = load_project()
    found = [summarise(settings, spec) for spec in catalog.views.values()]

    def row(view: ViewSummary) -> tuple[object, ...]:
        fresh = view.freshness
        return (
            view.name,
            view.stage,
            view.sink,
            *(("", "", "") if fresh is None else (utc(fresh.watermark), fresh.lag_records, number(fresh.lag_seconds))),
            view.reason,
        )

    columns = ("view", "stage", "sink", "watermark", "behind", "seconds", "")
    write_list(found, columns, row, json=json, empty="no views are declared; they are files in views/")
    if found and not json:
        _tell_addresses(settings)


def _tell_addresses(settings: Settings) -> None:
    from tocsin.dev.servers.ports import accepts
    from tocsin.web.server import page_address, token_file

    if not accepts(settings.web.port, settings.web.local_host):
        note(f"nothing serves them on port {settings.web.port}; start it: tocsin dev up, or python -m tocsin.job web")
        return
    line(f"\npage   {page_address(settings)}")
    token = shlex.quote(str(token_file(settings)))
    line(f'REST   curl -H "Authorization: Bearer $(cat {token})" {settings.local_web_address}/views')


def _show(view: str, prefix: str, window: str | None, limit: int, *, json: bool) -> None:
    from tocsin.views.row_query import RowShape
    from tocsin.views.stored_row import name_of

    reader, at = _reader(view), _moment(window)
    page = reader.page(prefix, at, limit)
    if prefix and not page.rows:  # as values are shown here, not as names are written
        page = reader.page(name_of([prefix]), at, limit)
    write([RowShape.of(row) for row in page.rows], _table, json=json)
    if page.cursor is not None and not json:
        line(f"there are more than {counted(limit, 'row')}; --limit and --prefix choose others")


def _row_of(view: str, key: str, window: str | None) -> RowShape:
    from tocsin.views.row_query import RowShape

    reader, at = _reader(view), _moment(window)
    row = reader.get(key, at)
    if row is None and at is not None and reader.get(key) is not None:
        raise TocsinError(f"{view} has no row '{key}' of a window that starts at {utc(at)}, but of others")
    if row is None:
        near = reader.nearest(key)
        raise TocsinError(f"{view} has no row '{key}'" + (f"; did you mean '{near}'?" if near else ""))
    return RowShape.of(row)


def rebuild(
    view: _View,
    kafka_only: _KafkaOnly = False,
    incomplete: _Incomplete = False,
    plan: _Plan = False,
    yes: _Yes = False,
) -> None:
    """Compute a view anew; readers see the old rows until all new ones are there. Starts Spark if days are sealed.

    Sealed days are computed here, and the rest by the job of the view from the events that Kafka keeps. A rebuild that
    was interrupted goes on where it stopped. Exit code 1 if days are missing that it needs.
    """
    from tocsin.platform.environments import go_on_by_its_python
    from tocsin.views.rebuild.rebuild_status import look_at, rebuild_by_kafka

    settings, catalog = load_project()
    name = catalog.view(view).name
    go_on_by_its_python(settings, name, "views")
    look = None if kafka_only else look_at(settings, name)
    if look is None:
        line("computed from the events that Kafka keeps")
    else:
        _show_plan(look)
    if plan:
        return
    if look is None or not look.plan.days:
        rebuild_by_kafka(settings, name)
    else:
        if look.plan.lacking and not incomplete:
            note("rebuild it by Kafka alone (--kafka-only), or without these days (--incomplete)", style="red")
            raise typer.Exit(1)
        if not yes:
            typer.confirm("Run it?", abort=True)
        from tocsin.views.spark.view_rebuild import rebuild_from_history

        rebuild_from_history(settings, name, _tell_days, incomplete=incomplete)
    line(f"asked for; `tocsin view` shows when {name} has switched")


def _show_plan(look: RebuildLook) -> None:
    found, events = look.plan, sum(look.rows.values())
    if not found.days:
        line(f"computed from the events that Kafka keeps: {found.why_none}")
    else:
        days = list(found.days)
        line(f"from history: {counted(len(days), 'day')}, {days[0]} to {days[-1]}, {counted(events, 'event')}")
        line(f"from Kafka: {'windows' if look.spec.window else 'events'} from {utc(found.since)} on")
    for day, why in found.lacking.items():
        note(f"{day}: {why}", style="yellow")


def _tell_days(now: RebuiltDays) -> None:
    line(f"{now.first} to {now.last}: {counted(now.events, 'event')}; {now.done} of {counted(now.total, 'day')}")


def _reader(view: str) -> ViewReader:
    from tocsin.views.row_query import ViewReader
    from tocsin.views.row_store import store_path
    from tocsin.views.view_summary import reason_of

    settings, catalog = load_project()
    name = catalog.view(view).name
    try:
        return ViewReader(store_path(settings, name))
    except FileNotFoundError:
        raise TransientError(f"{name} has no rows yet: {reason_of(settings, name)}") from None


def _moment(text: str | None) -> datetime | None:
    return None if text is None else moment(text, "--window", datetime.now(UTC))


def _table(rows: list[RowShape]) -> None:
    values = list(dict.fromkeys(column for row in rows for column in row.values))
    keys = list(dict.fromkeys(column for row in rows for column in row.key))
    windowed = any(row.window_start is not None for row in rows)
    columns = (*keys, *(("window", "final") if windowed else ()), *values)
    cells = [
        (
            *(row.key.get(column) for column in keys),
            *((utc(row.window_start), "final" if row.final else "") if windowed else ()),
            *(None if (value := row.values.get(column)) is None else as_text(value) for column in values),
        )
        for row in rows
    ]
    table(columns, cells, empty="no rows")


_Table = Annotated[str | None, typer.Argument(metavar="[TABLE]", help="With --refresh: only this one.")]
_Refresh = Annotated[bool, typer.Option("--refresh", help="Make the versions that are due of tables made of history.")]


def tables(name: _Table = None, refresh: _Refresh = False, json: Json = False) -> None:
    """List the tables: what each is made of, versions of its rows, and until when these are known. Or refresh them.

    Airflow refreshes each night, after sealing; that starts Spark. Exit code 1 when one could not be made; what was in
    force then stays.
    """
    if refresh:
        refuse_beside("with --refresh", json=json)
        _refresh_tables(name)
    else:
        refuse_beside("without --refresh", TABLE=name)
        _list_tables(json=json)


def _list_tables(*, json: bool) -> None:
    from tocsin.cli.json_shapes import TableShape
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

    columns = ("TABLE", "MADE OF", "VERSIONS", "COMPLETE UNTIL", "OWNER", "WHAT")
    write_list(shown, columns, row, json=json, empty="no tables are declared; they are files in tables/")


def _refresh_tables(name: str | None) -> None:
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
