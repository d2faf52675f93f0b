"""`tocsin history`: seal, publish, list, verify and take back the days that are kept beyond Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.data.import_command import import_, seal_and_tell, withdraw
from tocsin.cli.output import as_json, counted, line, table, utc
from tocsin.cli.project import load_project

if TYPE_CHECKING:
    from tocsin.declare.model.source import Source
    from tocsin.declare.settings import Settings
    from tocsin.history.day_status import DayStatus
    from tocsin.history.day_versions import DayVersion

app = typer.Typer(help="Keep days of events beyond Kafka: seal, inspect, publish.", no_args_is_help=True)

_Source = Annotated[str, typer.Option("--source", help="Its name.")]
_Sources = Annotated[str | None, typer.Option("--source", help="Only of this source.")]
_Days = Annotated[
    list[datetime] | None, options.day("--day", "Seal this day even if it is not ready; may be repeated.")
]
_VersionsOf = Annotated[datetime | None, options.day("--day", "With --source: list the versions of this day.")]
_Version = Annotated[
    str | None, typer.Option("--version", metavar="VERSION", help="This earlier one; `previous`: the one before.")
]
_Checksums = Annotated[bool, typer.Option("--checksums", help="Compare checksums; reads all files.")]


@app.command()
def seal(source: _Source, days: _Days = None) -> None:
    """Read a source's new events from Kafka, then seal and publish all days that need it, or the named ones.

    Starts Spark. If Kafka cannot be read, seals what has landed before, such as imports. Exit code 1 when a day is not
    published, or there was nothing to seal but what Kafka holds.
    """
    settings, declared = _project(source)
    if not seal_and_tell(settings, declared, [day.date() for day in days or ()]):
        raise typer.Exit(1)


app.command("import")(import_)
app.command("withdraw")(withdraw)


@app.command()
def publish(
    source: Annotated[str, typer.Argument(help="Its name.")],
    day: Annotated[datetime, options.day("--day", "The UTC day.")],
    version: _Version = None,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who accepts what is refused; it is recorded.")] = "",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why it is good as it is; recorded.")] = "",
) -> None:
    """Let another version of a day count: the latest though the quality gate refuses it, or an earlier one.

    Of what was refused, who, when and why stay in `history list` and on the quality page. Events that land later make a
    new version of the day, which is judged as any other. Backfills of the version before stay until they run again.
    """
    from tocsin.history.care import accept, roll_back
    from tocsin.history.places import writing_history

    by, reason = by.strip(), reason.strip()
    if bool(version) == bool(by and reason) or bool(by) != bool(reason):
        raise typer.BadParameter("give --by and --reason to accept what was refused, or --version to go back")
    settings, catalog = load_project()
    declared = catalog.source(source)
    with writing_history(settings):
        if version:
            to = None if version == "previous" else version
            found = roll_back(settings, declared, day.date(), to)
        else:
            found = accept(settings, declared, day.date(), by, reason)
    accepted = "" if version else f", accepted by {by}"
    line(f"{found.version} counts for {day:%Y-%m-%d}: {counted(found.facts.rows, 'event')}{accepted}")
    if detectors := [spec.name for spec in catalog.backfilled_of(source)]:
        names = " --detector ".join(detectors)
        line(f"the next night runs the detectors over it; at once: tocsin backfill --detector {names}")


@app.command("list")
def list_(source: _Sources = None, day: _VersionsOf = None, json: options.Json = False) -> None:
    """List the days of one source or all, the newest first: which version counts, and what a day waits for.

    With --day list the versions of that day, the newest first: contents, verdict, and which one counts.
    """
    from tocsin.history.day_status import list_days

    if day is not None:
        if source is None:
            raise typer.BadParameter("needs --source", param_hint="'--day'")
        _list_versions(source, day.date(), json=json)
        return
    settings, declared = _sources(source)
    found = [day for each in declared for day in reversed(list_days(settings, each))]
    if json:
        as_json(found)
        return
    columns = ("SOURCE", "DAY", "STATE", "EVENTS", "LANDED", "BYTES", "VERDICT", "VERSION", "NOTE")
    table(columns, _rows(found), empty="no history yet; run: tocsin history seal --source NAME")


def _list_versions(source: str, day: date, *, json: bool) -> None:
    from tocsin.history.day_status import known
    from tocsin.history.day_table import DayTable

    settings, declared = _project(source)
    with DayTable(settings, declared) as days:
        facts = known(settings, declared, days)
    versions = list(reversed(facts.versions.get(day, ())))
    if json:
        as_json(versions)
        return
    for version in versions:
        _show(version, counts=facts.published.get(day) == version.version)
    if not versions:
        line(f"{day:%Y-%m-%d} has no sealed version; {len(facts.ledger.runs(day))} runs landed events for it")


@app.command()
def verify(source: _Sources = None, checksums: _Checksums = False) -> None:
    """Check that ledger, landed files, catalogue and sealed files agree. Exit code 1 when they do not."""
    from tocsin.history.care import verify as faults_of

    settings, declared = _sources(source)
    found = [f"{each.name}: {what}" for each in declared for what in faults_of(settings, each, checksums=checksums)]
    for what in found:
        line(what, style="red")
    line(f"{counted(len(found), 'fault')} in the history of {counted(len(declared), 'source')}")
    if found:
        raise typer.Exit(1)


def _sources(only: str | None) -> tuple[Settings, list[Source]]:
    settings, catalog = load_project()
    return settings, [catalog.source(only)] if only else list(catalog.sources.values())


def _project(source: str) -> tuple[Settings, Source]:
    settings, (declared,) = _sources(source)
    return settings, declared


def _rows(days: Sequence[DayStatus]) -> Iterator[tuple[object, ...]]:
    for _, group in groupby(enumerate(days), key=lambda pair: _together(*pair)):
        own = [day for _, day in group]
        newest, oldest = _row(own[0]), own[-1].day
        if len(own) > 1:
            source, day, *rest, note = newest
            newest = (source, f"{oldest} to {day}", *rest, f"{counted(len(own), 'day')}: {note}")
        yield newest


def _together(number: int, day: DayStatus) -> tuple[object, ...]:
    """Equal for missing days that follow one another: the further down the list, the earlier the day."""
    return (day.source, day.day.toordinal() + number) if day.state == "missing" else (number,)


def _row(day: DayStatus) -> tuple[object, ...]:
    size = None if day.bytes is None else f"{day.bytes / 1e6:,.1f} MB"
    rows = None if day.rows is None else f"{day.rows:,}"
    return (day.source, day.day, day.state, rows, f"{day.landed:,}", size, day.severity, day.version, day.note)


def _show(version: DayVersion, *, counts: bool) -> None:
    facts = version.facts
    line(f"{version.version}  {version.state}{', counts' if counts else ''}", style="bold")
    rows = f"{counted(facts.rows, 'event')} of {facts.landed:,} landed, {facts.duplicates:,} of them twice"
    refused = "unknown how many" if facts.quarantined is None else f"{facts.quarantined:,}"
    line(f"  sealed     {utc(version.sealed_at)} by {version.code}")
    line(f"  holds      {rows}; {facts.late:,} late, {facts.imported:,} imported; {refused} to quarantine")
    line(f"  files      {len(version.files)} in {version.buckets} buckets of {version.key}, {version.bytes:,} bytes")
    line(f"  from       {counted(len(version.runs), 'run')} of landing{f', on {version.base}' if version.base else ''}")
    line(f"  verdict    {version.severity or 'none'}{f': {version.report}' if version.report else ''}")
    if version.accepted:
        line(f"  accepted   {version.accepted.text}", style="yellow")
    if facts.holes:
        line(f"  missing    {counted(facts.holes, 'offset')} that never landed", style="yellow")
