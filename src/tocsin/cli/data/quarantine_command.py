"""`tocsin quarantine`: list and show records that could not be used, and replay them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, note, table, utc

if TYPE_CHECKING:
    from tocsin.ingest.quarantine import QuarantineCount, ReplayResult
    from tocsin.ingest.quarantined_record import QuarantinedRecord
    from tocsin.model.source import Source
    from tocsin.project.catalog import Catalog
    from tocsin.project.settings import Settings

app = typer.Typer(help="List unusable records with their reasons, and replay them.", no_args_is_help=True)

_SHOWN = 80
_Source = Annotated[str | None, typer.Option(help="Only of this source.")]
_Reason = Annotated[
    str | None, typer.Option(metavar="REASON", help="With this reason, such as missing or missing:user_id.")
]
_Id = Annotated[str, typer.Argument(metavar="ID", help="From the list, such as logins/0/42.")]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Records from the list.")]
_All = Annotated[bool, typer.Option("--all", help="All records that the options select.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be replayed.")]


@app.command("list")
def list_(
    source: _Source = None,
    reason: _Reason = None,
    since: options.Since = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    exit_code: options.FailIfAny = False,
) -> None:
    """List quarantined records, the newest first, and count them all. Replayed records stay in the list."""
    from tocsin.ingest.quarantine import Selection, count_quarantined, newest_quarantined
    from tocsin.project.catalog import load_project

    settings, catalog = load_project()
    wanted = Selection(reason=reason, since=options.since(since), limit=limit)
    if json:
        found = newest_quarantined(settings, _sources(catalog, source), wanted)
        as_json(found)
    else:
        count = count_quarantined(settings, _sources(catalog, source), wanted)
        found = count.newest
        _show_count(count)
    if exit_code and found:
        raise typer.Exit(1)


@app.command()
def show(record: _Id, json: options.Json = False) -> None:
    """Show one record: its reasons, origin and bytes. Exit code 2 when there is none with this id."""
    from tocsin.project.catalog import load_project

    settings, catalog = load_project()
    found = _named(settings, catalog, record)
    if json:
        as_json(found)
        return
    line(f"{found.id}, quarantined {utc(found.quarantined_at)}", style="bold")
    line(f"reasons   {', '.join(found.reasons)}{f': {found.error}' if found.error else ''}")
    line(f"came from {found.origin}, appended {utc(found.origin.timestamp)}")
    line(f"read as   {found.source}, schema version {found.schema_version}, rules {found.rules_version}")
    line(f"replayed  {counted(found.replays, 'time')}")
    what = "no value" if found.payload_length is None else counted(found.payload_length, "byte")
    cut = f", only the beginning of {' and '.join(found.cut)} was kept" if found.cut else ""
    line(f"record    {what}{cut}\n")
    line(found.text.replace("\r", "\\r"))


@app.command()
def replay(
    records: _Ids = None,
    every: _All = False,
    source: _Source = None,
    reason: _Reason = None,
    since: options.Since = None,
    limit: options.Limit = 1000,
    dry_run: _DryRun = False,
) -> None:
    """Feed records through the stream again, by the current rules; they keep their time and their identity.

    Replaying twice makes one event. Exit code 1 when a record could not be replayed.
    """
    from tocsin.ingest.quarantine import Selection, newest_quarantined, replay_all
    from tocsin.project.catalog import load_project

    if bool(records) == every:
        raise typer.BadParameter("name records, or select them with --all and options", param_hint="'ID'")
    settings, catalog = load_project()
    if records:
        found = [_named(settings, catalog, record) for record in records]
    else:
        wanted = Selection(reason=reason, since=options.since(since), limit=limit)
        found = newest_quarantined(settings, _sources(catalog, source), wanted)
    if dry_run:
        table(("ID", "QUARANTINED", "REASONS", "BYTES", "REPLAYS", "RECORD"), map(_row, found), empty="nothing")
        return
    done = replay_all(settings, catalog, found)
    _show_replay(done)
    if done.skipped:
        raise typer.Exit(1)


def _show_replay(done: ReplayResult) -> None:
    line(f"replayed {counted(len(done.replayed), 'record')}")
    for record, why in done.skipped.items():
        note(f"not {record}: it {why}" if why.startswith("had") else f"not {record}: {why}", style="yellow")
    if done.changed:
        line(f"changed in the rules since they were quarantined: {', '.join(sorted(done.changed))}")
    elif done.replayed:
        line("the rules have not changed since they were quarantined, so they will probably return", style="yellow")


def _sources(catalog: Catalog, source: str | None) -> list[Source]:
    names = sorted(name for name, one in catalog.sources.items() if not one.is_derived)
    return [catalog.recorded_source(name) for name in ([source] if source else names)]


def _show_count(found: QuarantineCount) -> None:
    """Print the newest records, and how many there are of each reason, whether or not they are shown."""
    columns = ("ID", "QUARANTINED", "REASONS", "BYTES", "REPLAYS", "RECORD")
    table(columns, map(_row, found.newest), empty="the quarantine is empty")
    if found.newest:
        all_records, shown = counted(found.total, "record"), len(found.newest)
        many = f"{shown} of {all_records} shown" if shown < found.total else all_records
        line(f"\n{many}; by reason: {', '.join(f'{why} {count}' for why, count in found.reasons)}")


def _named(settings: Settings, catalog: Catalog, record: str) -> QuarantinedRecord:
    from tocsin.ingest.quarantine import find_quarantined

    return find_quarantined(settings, catalog.recorded_source(record.partition("/")[0]), record)


def _row(record: QuarantinedRecord) -> tuple[object, ...]:
    text = record.text if len(record.text) <= _SHOWN else f"{record.text[:_SHOWN]}..."
    return (
        record.id,
        utc(record.quarantined_at),
        ", ".join(record.reasons),
        record.payload_length,
        record.replays,
        text,
    )
