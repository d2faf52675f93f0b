"""`tocsin history import`: bring past events in, and seal and backfill their days if asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.detectors.backfill_command import run_due
from tocsin.cli.output import counted, line, note, progress
from tocsin.cli.project import load_project
from tocsin.declare.model.durations import days_text
from tocsin.declare.model.errors import ConfigError
from tocsin.ingest.files.past_rows import FileForm, list_files

if TYPE_CHECKING:
    from tocsin.declare.catalog import Catalog
    from tocsin.declare.model.source import Source
    from tocsin.declare.settings import Settings
    from tocsin.history.spark.import_files import Imported

_Source = Annotated[str, typer.Option("--source", help="Its name.")]
_Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE|DIR...", help="Such as logins-2026-01-31.jsonl.gz, or a folder of files."),
]
_Form = Annotated[FileForm | None, typer.Option("--form", help="The format of the files; default: by their names.")]
_Day = Annotated[datetime | None, options.day("--day", "All imported rows of this UTC day.")]
_File = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="An imported file, or its name or run if it is gone.")
]
_SealToo = Annotated[bool, typer.Option("--seal", help="Then seal and publish the days.")]
_BackfillToo = Annotated[
    bool, typer.Option("--backfill", help="Then seal, and run the detectors of the source over the days that need it.")
]


def import_(
    source: _Source,
    files: _Files = None,
    form: _Form = None,
    records: options.Records = "",
    seal: _SealToo = False,
    backfill: _BackfillToo = False,
) -> None:
    """Import past events of a source from files: lines as sent, CSV or Parquet; lines and CSV may be gzipped.

    The rules of ingest apply. If flows make the events of the source, the files hold records of the source with which
    they begin; without files, the flows are computed over its sealed days. Importing a file again changes nothing. All
    files share a Spark session; an unreadable file does not stop the others. Exit code 1 when a file or a row cannot be
    used, or a day is not published.
    """
    from tocsin.spark.batch_session import shared_session

    settings, catalog = load_project()
    declared, origin = catalog.source(source), catalog.origin(source, records)
    if not files and not declared.is_derived:
        raise typer.BadParameter("name the files to import", param_hint="FILE")
    with progress(), shared_session():
        done = [
            (not isinstance(outcome, ConfigError), _tell(declared, name, outcome))
            for name, outcome in _import_each(settings, catalog, (declared, origin), files, form)
        ]
        is_good, has_landed = all(is_whole for _, is_whole in done), any(landed for landed, _ in done)
        if not done:
            line(f"no day of {origin.name} is published; tocsin history import --source {origin.name} FILE brings some")
        elif has_landed and not (seal or backfill):
            line(f"tocsin history seal --source {source} publishes the days")
        if has_landed and (seal or backfill):
            is_good &= seal_and_tell(settings, declared, reads=False)
        if has_landed and backfill:
            is_good &= run_due(settings, [spec.name for spec in catalog.backfilled_of(source)])
    if not is_good:
        raise typer.Exit(1)


def withdraw(
    source: Annotated[str, typer.Argument(help="Its name.")],
    day: _Day = None,
    file: _File = None,
) -> None:
    """Take back what was imported by mistake: the rows of a file, or all imported rows of a day.

    A day with other events is sealed without them by the next seal. A day without any counts no more, nor do its
    findings. Importing the file again, or a better one, is possible at any time.
    """
    from tocsin.history.backfill.backfill_retention import retract_days
    from tocsin.history.care import withdraw as take_back
    from tocsin.history.places import writing_history

    what = day.date() if day is not None else file
    if what is None or (day is not None and file is not None):
        raise typer.BadParameter("name one of them", param_hint="--day, --file")
    settings, catalog = load_project()
    declared = catalog.source(source)
    with writing_history(settings):
        done = take_back(settings, declared, what)
        retract_days(settings, declared, catalog, done.emptied)
    line(f"{counted(done.events, 'event')} of {', '.join(done.files)} withdrawn from {days_text(list(done.days))}")
    if done.emptied:
        line(f"{days_text(list(done.emptied))}: nothing is left; no longer published, and without findings")
    if rest := [day for day in done.days if day not in done.emptied]:
        line(f"{days_text(rest)}: tocsin history seal --source {source} publishes them without these events")


def seal_and_tell(settings: Settings, declared: Source, days: Sequence[date] = (), *, reads: bool = True) -> bool:
    """Seal `days`, or all that need it, and tell the outcome; return whether each is published that could be.

    `reads` says whether new events are read from Kafka before.
    """
    from tocsin.history.backfill.backfill_retention import tidy_after_sealing
    from tocsin.history.places import writing_history
    from tocsin.history.sealing import seal as seal_days

    with writing_history(settings), progress():
        outcome = seal_days(settings, declared, days, reads=reads)
        if not outcome.disk:
            tidy_after_sealing(settings, declared)
    if outcome.unread:
        note(f"new events not read: {outcome.unread}", style="yellow" if outcome.sealed else "red")
    for sealed in outcome.sealed:
        part = "" if sealed.version.whole else " up to now; backfills wait until it is over and sealed again"
        line(f"{sealed.day} {sealed.version.version}: {sealed.version.state}{part}. {sealed.verdict.text}")
    if refused := [sealed.day for sealed in outcome.sealed if not sealed.verdict.publishable]:
        from tocsin.quality.verdict import judge_or_accept

        again, accept = judge_or_accept(declared.name, refused[0])
        note(f"when the rules or the data are mended: {again}", style="yellow")
        note(f"to publish a refused day as it is: {accept}", style="yellow")
    for day, why in outcome.failed.items():
        note(why if why.startswith(declared.name) else f"{declared.name} {day}: {why}", style="red")
    for day, why in outcome.waiting.items():
        line(f"{day} {why}")
    if not outcome.sealed and not outcome.failed:
        line("nothing to seal")
    has_looked = not outcome.unread or bool(outcome.sealed)
    return has_looked and not outcome.failed and all(sealed.verdict.publishable for sealed in outcome.sealed)


def _import_each(
    settings: Settings,
    catalog: Catalog,
    sources: tuple[Source, Source],
    files: list[Path] | None,
    form: FileForm | None,
) -> Iterator[tuple[str, Imported | ConfigError]]:
    from tocsin.history.places import writing_history
    from tocsin.history.spark.import_days import import_days
    from tocsin.history.spark.import_files import import_files

    declared, origin = sources
    with writing_history(settings):
        if files:
            paths = list(list_files(files))
            yield from zip(map(str, paths), import_files(settings, declared, paths, form, origin), strict=True)
        else:
            for done in import_days(settings, catalog, declared, origin):
                yield done.entry.imported.name if done.entry.imported else "", done


def _tell(source: Source, path: str, done: Imported | ConfigError) -> bool:
    """Tell the outcome of one file; return whether all its rows could be used."""
    from tocsin.history.seal_planning import oldest_kept

    if isinstance(done, ConfigError):
        note(str(done), style="red")
        return False
    file = done.entry.imported
    if done.known or file is None:
        line(f"{path}: was imported before, as run {done.entry.run}; nothing to do")
        return True
    days = sorted({landed.day for landed in done.entry.files})
    span = f" of {days[0]} to {days[-1]}" if days else ""
    line(f"{path}: {counted(done.entry.events, 'event')}{span}, as run {done.entry.run}")
    kept = timedelta(days=source.history_days)
    if old := [day for day in days if day < oldest_kept(done.entry.ended, kept).date()]:
        what = f"older than history_days = {source.history_days} of sources/{source.name}.toml"
        until = f"until {(done.entry.ended + kept).date()} at least, counted from the import"
        line(f"{path}: {counted(len(old), 'day')} up to {old[-1]} {what}: kept {until}", style="yellow")
    if source.is_derived:
        line(f"{path}: flows made them of {counted(file.rows - file.refused, 'row')}")
    elif ignored := file.rows - file.refused - done.entry.events:
        line(f"{path}: {counted(ignored, 'row')} ignored, as `ignore` in the source's file says")
    if done.refused is not None:
        reasons = ", ".join(f"{why} {count}" for why, count in sorted(done.reasons.items()))
        what = f"{counted(file.refused, 'row')} cannot be used ({reasons})"
        line(f"{path}: {what}; see {done.refused}", style="yellow")
    return not file.refused
