"""Do by hand what history needs of people: verify, roll a day back, accept one that the gate refuses, withdraw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import structlog

from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.names import sealing_job
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.day_status import known, statuses
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import DayVersion, paths
from tocsin.history.landing_ledger import Entry, LandedFile, LandingLedger, landing_lock, read_ledger, take_back
from tocsin.history.parquet_files import digest
from tocsin.history.parquet_files import fault as fault_of
from tocsin.history.places import Places
from tocsin.history.verdict_index import write_index
from tocsin.platform.lock import try_lead
from tocsin.platform.storage.stored_path import find_all
from tocsin.quality.data_drift import weekdays_before
from tocsin.quality.report_page import day_page
from tocsin.quality.verdict import Acceptance
from tocsin.quality.verdict_files import Records

log = structlog.get_logger()


def verify(settings: Settings, source: Source, *, checksums: bool = False) -> list[str]:
    """List what is wrong with the history of `source`, one sentence each; empty when all is well.

    Ledger against landing, catalogue against sealed files: names, bytes and rows; with `checksums` every byte.

    Raises:
        BrokenLedger: an entry of the ledger cannot be read.
        TransientError: the catalogue does not answer; a retry helps.
    """
    places = Places.of(settings, source.name)
    ledger = read_ledger(places)
    found = ledger.breaks()
    with DayTable(settings, source) as table:
        published, counted = table.published(), table.files()
        retention = known(settings, source, table).retention
        versions = {(day, one.version): one for day, known in table.rows.versions().items() for one in known}
    sealed = {day: versions[day, name] for day, name in published.items() if (day, name) in versions}
    unknown = sorted(published.keys() - sealed.keys())
    found += [
        f"{day}: the catalogue does not know what the published version holds; seal {day} again" for day in unknown
    ]
    for day, version in sealed.items():
        found += [f"{day}: {what}" for what in _version_faults(places, day, version, checksums)]
    expected = {str(path) for day, version in sealed.items() for path in paths(places, day, version)}
    found += [f"{path} is published, but missing in the catalogue" for path in sorted(expected - counted.keys())]
    broken = [str(places.version(day, name)) for day, name in published.items() if day not in sealed]
    strangers = [path for path in sorted(counted.keys() - expected) if path.rpartition("/")[0] not in broken]
    found += [f"{path} is in the catalogue, but not part of a published version" for path in strangers]
    files = [(entry, file) for entry in ledger.entries for file in entry.files if retention.has(file.day)]
    return found + [what for entry, file in files for what in _landed_faults(places, entry, file, sealed, checksums)]


def roll_back(settings: Settings, source: Source, day: date, to: str | None = None) -> DayVersion:
    """Let an earlier version of `day` count again, in one commit: `to`, or the one before the one that counts.

    Raises:
        ConfigError: there is no such version, or it was never published, or its files are not whole.
        LockHeld: a seal of this source runs; a retry helps once it has ended.
        TransientError: the catalogue does not answer; a retry helps.
    """
    with (
        try_lead(settings, settings.checkpoint(sealing_job(source.name)) / "lock"),
        DayTable(settings, source) as table,
    ):
        versions = {one.version: one for one in table.rows.versions().get(day, ())}
        version = _earlier(source.name, day, table.published().get(day), versions, to)
        faults = list(_version_faults(table.places, day, version, False))
        if faults:
            raise ConfigError([Fault(f"{source.name} {day}", fault) for fault in faults])
        about = {"tocsin.run": version.version, "tocsin.code": version.code, "tocsin.day": str(day)}
        table.publish(day, version.version, paths(table.places, day, version), about)
    return version


def accept(settings: Settings, source: Source, day: date, by: str, reason: str) -> DayVersion:
    """Publish the latest version of `day` though the gate refuses it, and record who says so and why.

    A later version of the day is judged as any other.

    Raises:
        ConfigError: the gate does not refuse it, or its files are not whole.
        LockHeld: a seal of this source runs; a retry helps once it has ended.
        TransientError: the catalogue does not answer; a retry helps.
        OSError: the disk is full or cannot be written; a retry goes on.
    """
    where = f"{source.name} {day}"
    with (
        try_lead(settings, settings.checkpoint(sealing_job(source.name)) / "lock"),
        DayTable(settings, source) as table,
    ):
        facts = known(settings, source, table)
        found = {status.day: status for status in statuses(source.name, facts)}.get(day)
        if found is None or not found.refused:
            what = "is not refused by the quality gate" if found is None else f"is {found.state}, not refused"
            raise ConfigError.one(where, f"{what}; `tocsin history list --source {source.name}` shows the days")
        version = facts.versions[day][-1]
        faults = list(_version_faults(table.places, day, version, False))
        if faults:
            raise ConfigError([Fault(where, fault) for fault in faults])
        acceptance = Acceptance(by=by, at=datetime.now(UTC), reason=reason)
        about = {"tocsin.run": version.version, "tocsin.code": version.code, "tocsin.day": str(day)}
        about |= {"tocsin.report": version.report or "", "tocsin.accepted_by": by}
        table.publish(day, version.version, paths(table.places, day, version), about)
        version = version.model_copy(update={"published_at": acceptance.at, "accepted": acceptance})
        table.rows.write(day, version)
        log.warning("refused day accepted", source=source.name, day=str(day), by=by, reason=reason)
        _show_accepted(settings, source, version, acceptance)
    return version


def _show_accepted(settings: Settings, source: Source, version: DayVersion, acceptance: Acceptance) -> None:
    records, day = Records(settings.state), version.facts.day
    record = records.latest(source.name, day)
    if record is not None and record.verdict.run_id == version.version:
        verdict = record.verdict.model_copy(update={"accepted": acceptance})
        record = record.model_copy(update={"verdict": verdict})
        before = records.profiles(source.name, weekdays_before(day))
        records.write(record, day_page(record, records, before, source))
    write_index(settings)


def _earlier(
    source: str, day: date, current: str | None, versions: dict[str, DayVersion], to: str | None
) -> DayVersion:
    good = {name: one for name, one in versions.items() if one.published_at is not None and name != current}
    if to is not None:
        if to in good:
            return good[to]
        what = "is already published" if to == current else "was never published" if to in versions else "is not there"
        raise ConfigError([Fault(f"{source} {day}", f"version {to} {what}", nearest=nearest(to, good))])
    before = [name for name in good if current is None or name < current]
    if not before:
        raise ConfigError.one(f"{source} {day}", "has no earlier published version")
    return good[max(before)]


def _version_faults(places: Places, day: date, version: DayVersion, checksums: bool) -> Iterator[str]:
    folder = places.version(day, version.version)
    for file in version.files:
        sha256 = file.sha256 if checksums else None
        fault = fault_of(folder / file.name, size=file.bytes, rows=file.rows, sha256=sha256)
        if fault is not None:
            yield fault
    names = {file.name for file in version.files}
    for path in find_all(folder, "[!._]*"):
        if path.name not in names:
            yield f"{path} does not belong there; Spark would read it"


def _landed_faults(
    places: Places, entry: Entry, file: LandedFile, sealed: dict[date, DayVersion], checksums: bool
) -> Iterator[str]:
    """List what is wrong with a landed file; nothing if it is gone and what is published has got its events."""
    path, version = places.root / file.path, sealed.get(file.day)
    if path.exists():
        fault = fault_of(path, size=file.bytes, rows=file.total, sha256=file.sha256 if checksums else None)
        if fault is not None:
            yield f"{file.day}: {fault}"
    elif version is None or entry.run not in version.runs:
        yield f"{file.day}: {path} is gone, and no published version has its {file.total} events"


@dataclass(frozen=True)
class Withdrawn:
    """The imported files that were taken back, by name as given, and the events landed from them for `days`.

    `emptied` are those of `days` for which nothing else has landed; no version of them counts any more.
    """

    files: tuple[str, ...]
    events: int
    days: tuple[date, ...]
    emptied: tuple[date, ...]


def withdraw(settings: Settings, source: Source, what: date | Path) -> Withdrawn:
    """Take back what the file `what` brought in, or all that imports brought in for the day `what`.

    A day with other events counts as it is until the next seal leaves the withdrawn ones out of it.

    Raises:
        ConfigError: no import has brought that in.
        LockHeld: landing, an import or a seal of this source runs; a retry helps once it has ended.
        TransientError: the catalogue does not answer; a retry helps.
        BrokenLedger: an entry of the ledger cannot be read.
        OSError: the ledger cannot be written; a retry goes on.
    """
    places, now = Places.of(settings, source.name), datetime.now(UTC)
    with (
        try_lead(settings, settings.checkpoint(sealing_job(source.name)) / "lock"),
        landing_lock(settings, source.name),
        DayTable(settings, source) as table,
    ):
        chosen = _chosen(read_ledger(places), source.name, what)
        for entry, days in chosen:
            take_back(places, entry, days, now)
        left = read_ledger(places)
        days = sorted({day for _, own in chosen for day in own})
        emptied = tuple(day for day in days if not left.runs(day))
        published, versions = table.published(), table.rows.versions()
        table.withdraw([day for day in emptied if day in published], {"tocsin.run": "withdrawal"})
        for day in emptied:
            for version in versions.get(day, ()):
                if version.refused:
                    table.rows.remove(day, version.version)  # nothing is left to judge again
    files = tuple(entry.imported.name for entry, _ in chosen if entry.imported is not None)
    events = sum(file.total for entry, own in chosen for day in own for file in entry.of(day))
    log.info("import withdrawn", source=source.name, files=files, days=[str(day) for day in days])
    return Withdrawn(files, events, tuple(days), emptied)


def _chosen(ledger: LandingLedger, source: str, what: date | Path) -> list[tuple[Entry, list[date]]]:
    imports = [entry for entry in ledger.entries if entry.imported is not None and entry.files]
    if isinstance(what, Path):
        runs = _runs_of(what, ledger, imports)
        chosen = [(entry, sorted({file.day for file in entry.files})) for entry in imports if entry.run in runs]
    else:
        chosen = [(entry, [what]) for entry in imports if entry.of(what)]
    if not chosen:
        raise ConfigError.one(f"{source} {what}", "is in no import; `tocsin history list` shows what there is")
    return chosen


def _runs_of(path: Path, ledger: LandingLedger, imports: Iterable[Entry]) -> set[str]:
    """Find the runs that imported `path`: by its content, or if it is gone by its name, or by the name of the run."""
    if path.is_file():
        return {entry.run for entry in ledger.imports(digest(path))}
    return {entry.run for entry in imports if entry.imported and str(path) in (entry.imported.name, entry.run)}
