"""`tocsin quarantine`: what could not be used and why, and how to feed it in again once that is mended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, note, table, utc

if TYPE_CHECKING:
    from tocsin.ingest.quarantine import ReplayResult, Selection
    from tocsin.ingest.quarantined_record import QuarantinedRecord
    from tocsin.project.catalog import Catalog
    from tocsin.project.settings import Settings

app = typer.Typer(help="What could not be used, and why; feed it in again.", no_args_is_help=True)

_SHOWN = 80
_Source = Annotated[str | None, typer.Option(help="Of this source; of all when left out.")]
_Reason = Annotated[
    str | None, typer.Option(metavar="REASON", help="With this reason, such as missing or missing:user_id.")
]
_Id = Annotated[str, typer.Argument(metavar="ID", help="From the list, such as logins/0/42.")]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Records from the list.")]
_All = Annotated[bool, typer.Option("--all", help="All that the options choose, instead of named ones.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be replayed, and do nothing.")]


@app.command("list")
def list_(
    source: _Source = None,
    reason: _Reason = None,
    since: options.Since = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    exit_code: options.FailIfAny = False,
) -> None:
    """List quarantined records, the newest first, and count them all. What was replayed stays in the list."""
    from tocsin.ingest.quarantine import Selection

    settings, catalog = _project()
    wanted = Selection(reason=reason, since=options.since(since), limit=limit)
    if json:
        found = _chosen(settings, catalog, source, wanted)
        as_json(found)
    else:
        found = _list_and_count(settings, catalog, source, wanted)
    if exit_code and found:
        raise typer.Exit(1)


@app.command()
def show(record: _Id, json: options.Json = False) -> None:
    """Show one record: its reasons, where it came from, and its bytes. Exit code 2 when there is none with this id."""
    settings, catalog = _project()
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
    cut = f", of which only the beginning of {' and '.join(found.cut)} was kept" if found.cut else ""
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
    """Feed records through the stream again, by the rules of now; they keep their time and their identity.

    Replaying twice makes one event. Exit code 1 when a record could not be replayed.
    """
    from tocsin.ingest.quarantine import Selection

    if bool(records) == every:
        raise typer.BadParameter("name records, or choose with --all and its options", param_hint="'ID'")
    settings, catalog = _project()
    if records:
        found = [_named(settings, catalog, record) for record in records]
    else:
        wanted = Selection(reason=reason, since=options.since(since), limit=limit)
        found = _chosen(settings, catalog, source, wanted)
    if dry_run:
        table(("ID", "QUARANTINED", "REASONS", "BYTES", "REPLAYS", "RECORD"), map(_row, found), empty="nothing")
        return
    if _replay(settings, catalog, found).skipped:
        raise typer.Exit(1)


def _replay(settings: Settings, catalog: Catalog, found: Sequence[QuarantinedRecord]) -> ReplayResult:
    """Replay, and say what was done."""
    from tocsin.ingest.quarantine import ReplayResult
    from tocsin.ingest.quarantine import replay as send_again

    whole = ReplayResult()
    for name in sorted({record.source for record in found}):
        own = send_again(settings, catalog.source(name), [record for record in found if record.source == name])
        whole.replayed += own.replayed
        whole.skipped |= own.skipped
        whole.changed |= own.changed
    line(f"replayed {counted(len(whole.replayed), 'record')}")
    for record, why in whole.skipped.items():
        note(f"not {record}: it {why}" if why.startswith("had") else f"not {record}: {why}", style="yellow")
    if whole.changed:
        line(f"since they were quarantined, these parts of the rules have changed: {', '.join(sorted(whole.changed))}")
    elif whole.replayed:
        line("the rules are the same as when they were quarantined, so they will most likely come back", style="yellow")
    return whole


def _project() -> tuple[Settings, Catalog]:
    from tocsin.project.catalog import read_catalog
    from tocsin.project.settings import load_settings

    settings = load_settings()
    return settings, read_catalog(settings.project)


def _chosen(settings: Settings, catalog: Catalog, source: str | None, wanted: Selection) -> list[QuarantinedRecord]:
    """The newest records of one source or of all."""
    from tocsin.ingest.quarantine import list_quarantined

    names = [source] if source else sorted(catalog.sources)
    found = [record for name in names for record in list_quarantined(settings, catalog.source(name), wanted)]
    return _newest(found, wanted)


def _newest(found: Iterable[QuarantinedRecord], wanted: Selection) -> list[QuarantinedRecord]:
    return sorted(found, key=lambda record: record.quarantined_at, reverse=True)[: wanted.limit]


def _list_and_count(
    settings: Settings, catalog: Catalog, source: str | None, wanted: Selection
) -> list[QuarantinedRecord]:
    """Print the newest records, and how many there are of each reason, whether or not they are shown."""
    from tocsin.ingest.quarantine import all_quarantined, by_reason

    found: list[QuarantinedRecord] = []
    total = 0

    def every() -> Iterator[QuarantinedRecord]:
        nonlocal total
        for name in [source] if source else sorted(catalog.sources):
            for number, record in enumerate(all_quarantined(settings, catalog.source(name), wanted)):
                total += 1
                if number < wanted.limit:
                    found.append(record)
                yield record

    reasons = ", ".join(f"{why} {count}" for why, count in by_reason(every()))
    shown = _newest(found, wanted)
    columns = ("ID", "QUARANTINED", "REASONS", "BYTES", "REPLAYS", "RECORD")
    table(columns, map(_row, shown), empty="nothing is in quarantine")
    if shown:
        many = f"{len(shown)} of {counted(total, 'record')} shown" if len(shown) < total else counted(total, "record")
        line(f"\n{many}; by reason: {reasons}")
    return shown


def _named(settings: Settings, catalog: Catalog, record: str) -> QuarantinedRecord:
    from tocsin.ingest.quarantine import find_quarantined

    return find_quarantined(settings, catalog.source(record.partition("/")[0]), record)


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
