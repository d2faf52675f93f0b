"""Do by hand what history needs of people: verify that it is whole, and take a day back to an earlier version."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from tocsin.history.day_status import known
from tocsin.history.day_table import DayTable
from tocsin.history.day_versions import BrokenVersion, DayVersion, paths, read_version, whole_versions
from tocsin.history.land.landing_ledger import Entry, LandedFile, read_ledger
from tocsin.history.parquet_files import fault as fault_of
from tocsin.history.places import Places
from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.model.names import sealing_job
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.runtime.leases.lead import lead_batch
from tocsin.storage.stored_path import find_all


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
    sealed: dict[date, DayVersion] = {}
    for day, name in published.items():
        try:
            sealed[day] = read_version(places, day, name)
        except BrokenVersion as error:
            found.append(str(error))
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
        lead_batch(settings, settings.checkpoint(sealing_job(source.name)) / "lock"),
        DayTable(settings, source) as table,
    ):
        versions = {one.version: one for one in whole_versions(table.places).get(day, ())}
        version = _earlier(source.name, day, table.published().get(day), versions, to)
        faults = list(_version_faults(table.places, day, version, False))
        if faults:
            raise ConfigError([Fault(f"{source.name} {day}", fault) for fault in faults])
        about = {"tocsin.run": version.version, "tocsin.code": version.code, "tocsin.day": str(day)}
        table.publish(day, version.version, paths(table.places, day, version), about)
    return version


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
