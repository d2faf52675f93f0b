"""`tocsin quarantine`: list and show records that could not be used, and replay them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, note, table, utc
from tocsin.cli.project import load_project

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tocsin.declare.catalog import Catalog
    from tocsin.declare.model.source import Source
    from tocsin.declare.settings import Settings
    from tocsin.ingest.quarantine import QuarantineCount, ReplayResult, Selection
    from tocsin.ingest.quarantined_record import QuarantinedRecord

_SHOWN = 80
_COLUMNS = ("ID", "QUARANTINED", "REASONS", "BYTES", "REPLAYS", "RECORD")
_Source = Annotated[str | None, typer.Option(help="Only of this source.")]
_Reason = Annotated[
    str | None, typer.Option(metavar="REASON", help="With this reason, such as missing or missing:user_id.")
]
_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="From the list, such as logins/0/42.")]
_All = Annotated[bool, typer.Option("--all", help="With --replay: all records that the options select.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="With --replay: only show what would be replayed.")]
_Replay = Annotated[bool, typer.Option("--replay", help="Feed the records through the stream again.")]
_MOST = 100_000  # to replay: they are in memory, and most are below 1 KB
_Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, max=10 * _MOST, help="At most this many; default: 100, to replay 100,000."),
]


def quarantine(
    records: _Ids = None,
    source: _Source = None,
    reason: _Reason = None,
    since: options.Since = None,
    limit: _Limit = None,
    replay: _Replay = False,
    every: _All = False,
    dry_run: _DryRun = False,
    json: options.Json = False,
    exit_code: options.FailIfAny = False,
) -> None:
    """List quarantined records, the newest first, and count them all; show those that are named; or replay them.

    Records are replayed by the current rules; they keep their time and their identity, so replaying twice makes one
    event, and they stay in the list. Exit code 1 when a record could not be replayed, 2 when there is none with an ID.
    """
    from tocsin.ingest.quarantine import Selection, count_quarantined, find_quarantined

    chosen = {"source": source, "reason": reason, "since": since, "limit": limit}
    _check_call(records, chosen, replay=replay, every=every, dry_run=dry_run)
    settings, catalog = load_project()
    wanted = Selection(reason=reason, since=options.since(since), limit=limit or (_MOST if replay else 100))
    if records:
        found = [find_quarantined(settings, catalog.recorded_source(id.partition("/")[0]), id) for id in records]
    elif json or replay:
        found = _newest(settings, _sources(catalog, source), wanted)
    if replay:
        _replay(settings, catalog, found, dry_run=dry_run)
    elif json:
        as_json(found)
    elif records:
        for record in found:
            _show(record)
    else:
        count = count_quarantined(settings, _sources(catalog, source), wanted)
        found = count.newest
        _show_count(count)
    if exit_code and found and not replay:
        raise typer.Exit(1)


def _check_call(
    records: Sequence[str] | None, chosen: Mapping[str, object], *, replay: bool, every: bool, dry_run: bool
) -> None:
    if (every or dry_run) and not replay:
        raise typer.BadParameter("needs --replay", param_hint="'--all'" if every else "'--dry-run'")
    if replay and bool(records) == every:
        raise typer.BadParameter("name records, or select them with --all and options", param_hint="'ID'")
    if records:
        options.refuse_beside("with an ID", **chosen)


def _newest(settings: Settings, sources: Sequence[Source], wanted: Selection) -> list[QuarantinedRecord]:
    from tocsin.ingest.quarantine import newest_quarantined

    found = newest_quarantined(settings, sources, wanted)
    if len(found) >= wanted.limit:
        note(f"the newest {wanted.limit:,} are taken; --limit takes more", style="yellow")
    return found


def _replay(settings: Settings, catalog: Catalog, found: Sequence[QuarantinedRecord], *, dry_run: bool) -> None:
    from tocsin.ingest.quarantine import replay_all

    if dry_run:
        table(_COLUMNS, map(_row, found), empty="nothing")
        return
    done = replay_all(settings, catalog, found)
    _show_replay(done)
    if done.skipped:
        raise typer.Exit(1)


def _show(found: QuarantinedRecord) -> None:
    line(f"{found.id}, quarantined {utc(found.quarantined_at)}", style="bold")
    line(f"reasons   {', '.join(found.reasons)}{f': {found.error}' if found.error else ''}")
    line(f"came from {found.origin}, appended {utc(found.origin.timestamp)}")
    line(f"read as   {found.source}, schema version {found.schema_version}, rules {found.rules_version}")
    line(f"replayed  {counted(found.replays, 'time')}")
    what = "no value" if found.payload_length is None else counted(found.payload_length, "byte")
    cut = f", only the beginning of {' and '.join(found.cut)} was kept" if found.cut else ""
    line(f"record    {what}{cut}\n")
    line(found.text.replace("\r", "\\r"))


def _show_replay(done: ReplayResult) -> None:
    line(f"replayed {counted(len(done.replayed), 'record')}")
    for record, why in done.skipped.items():
        note(f"not {record}: it {why}" if why.startswith("has") else f"not {record}: {why}", style="yellow")
    if done.changed:
        line(f"changed in the rules since they were quarantined: {', '.join(sorted(done.changed))}")
    elif done.replayed:
        line("the rules have not changed since they were quarantined, so they will probably return", style="yellow")


def _sources(catalog: Catalog, source: str | None) -> list[Source]:
    names = sorted(name for name, source in catalog.sources.items() if not source.is_derived)
    return [catalog.recorded_source(name) for name in ([source] if source else names)]


def _show_count(found: QuarantineCount) -> None:
    table(_COLUMNS, map(_row, found.newest), empty="no quarantined records")
    if found.newest:
        all_records, shown = counted(found.total, "record"), len(found.newest)
        many = f"{shown} of {all_records} shown" if shown < found.total else all_records
        line(f"\n{many}; by reason: {', '.join(f'{why} {count}' for why, count in found.reasons)}")


def _row(record: QuarantinedRecord) -> tuple[object, ...]:
    text = record.text if len(record.text) <= _SHOWN else f"{record.text[:_SHOWN]}..."
    facts = (record.id, utc(record.quarantined_at), ", ".join(record.reasons))
    return (*facts, record.payload_length, record.replays, text)
