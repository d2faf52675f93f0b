"""Retention: days that are no longer history, versions that count no more, and what killed programs left behind.

Expiring snapshots of an Iceberg table removes no file, so everything is removed here, after the table has let go of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import structlog

from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.day_table import KEPT, DayTable
from tocsin.history.day_versions import DayVersion
from tocsin.history.landing_ledger import LandingLedger, forget, landing_lock, read_ledger, sweep
from tocsin.history.places import Places, end
from tocsin.history.seal_planning import Retention
from tocsin.platform.lock import LockHeld
from tocsin.platform.storage.stored_path import StoredPath, modified_at, remove_tree

_UNCOMMITTED_SECONDS = 3600.0
"""A file of metadata that no commit names may belong to a commit under way, for so long."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Leftovers:
    """What may go: days no longer in history, folders of versions (by day and name) and of landing (by day and run)."""

    days: tuple[date, ...]
    versions: tuple[tuple[date, str], ...]
    landed: tuple[tuple[date, str], ...]


@dataclass(frozen=True)
class Held:
    """The present content of history, as far as retention asks for it."""

    published: dict[date, str]
    versions: dict[date, list[DayVersion]]
    version_folders: tuple[tuple[date, str], ...]
    landed_folders: tuple[tuple[date, str], ...]
    now: datetime
    retention: Retention
    grace: timedelta


def leftovers(held: Held) -> Leftovers:
    """List what nobody needs any more.

    A version goes with its day; else a week after a later one was published, so that a day can be rolled back and a
    batch that reads it can end; a refused one stays until a later one is published; one that is not whole goes at once.
    A landed folder goes once its day is published with it, over and past its grace, or no longer history.
    """
    is_kept = held.retention.has
    days = tuple(day for day in held.published if not is_kept(day))
    versions = [(d, name) for d, name in held.version_folders if not (is_kept(d) and _needed(held, d, name))]
    landed = [(day, run) for day, run in held.landed_folders if not is_kept(day) or _sealed(held, day, run)]
    return Leftovers(days, tuple(versions), tuple(landed))


def tidy(settings: Settings, source: Source, table: DayTable) -> Leftovers:
    """Remove what nobody needs any more; only for the holder of the sealing lock. Returns what went.

    While landing runs, its folders are left alone until the next time. TransientError if the catalogue does not answer;
    a retry helps. OSError if the disk is full or not writable; the next time removes the rest.
    """
    places, now = table.places, datetime.now(UTC)
    published, versions = table.published(), table.rows.versions()
    held = Held(
        published=published,
        versions=versions,
        version_folders=tuple((day, name) for day, name, _ in places.version_folders()),
        landed_folders=tuple((day, run) for day, run, _ in places.landed_folders()),
        now=now,
        retention=Retention.of(read_ledger(places), versions, published, now, timedelta(days=source.history_days)),
        grace=settings.history.grace,
    )
    gone = leftovers(held)
    table.withdraw(gone.days, {"tocsin.run": "retention"})
    for branch in table.audits():
        if not any(branch.endswith(f"{day}-{name}") for day, name in _waiting(held, gone)):
            table.drop_audit(branch)
    table.expire(now - KEPT)
    for day, name in gone.versions:
        table.rows.remove(day, name)
    _remove(places.version(day, name) for day, name in gone.versions)
    _sweep_metadata(table)
    _tidy_landing(settings, places, gone, held)
    table.rows.forget_unsealed(held.retention.first)
    if gone.days:
        log.info("old days removed", source=source.name, days=[str(day) for day in gone.days])
    return gone


def _needed(held: Held, day: date, name: str) -> bool:
    version = next((one for one in held.versions.get(day, ()) if one.version == name), None)
    if held.published.get(day) == name or version is None:
        return held.published.get(day) == name
    later = [one.published_at for one in held.versions[day] if one.version > name and one.published_at is not None]
    if version.published_at is None:
        return version.refused and not later
    replaced = min(later, default=held.now)
    return held.now - replaced < KEPT


def _sealed(held: Held, day: date, run: str) -> bool:
    name = held.published.get(day)
    version = next((one for one in held.versions.get(day, ()) if one.version == name), None)
    return version is not None and run in version.runs and end(day) + held.grace <= held.now


def _waiting(held: Held, gone: Leftovers) -> Iterable[tuple[date, str]]:
    """Refused versions that stay to be looked at."""
    for day, versions in held.versions.items():
        for version in versions:
            if version.refused and (day, version.version) not in gone.versions:
                yield day, version.version


def _tidy_landing(settings: Settings, places: Places, gone: Leftovers, held: Held) -> None:
    try:
        with landing_lock(settings, places.source):
            ledger = read_ledger(places)
            _remove(places.landed(day, run) for day, run in gone.landed)
            sweep(places, ledger)
            _forget(places, ledger, held.retention)
    except LockHeld:
        log.info("clean-up deferred, landing runs", source=places.source)


def _forget(places: Places, ledger: LandingLedger, retention: Retention) -> None:
    """Entries without a day in history are obsolete, except the last, which holds the offsets to resume from."""
    for entry in ledger.entries:
        is_old = entry.ended < retention.edge and not any(retention.has(file.day) for file in entry.files)
        if entry is not ledger.last and is_old:
            forget(places, entry)


def _sweep_metadata(table: DayTable) -> None:
    used = {location.rpartition("/")[2] for location in table.metadata_in_use()}
    for path in (table.places.table / "metadata").glob("*"):
        if path.name not in used and time.time() - modified_at(path) > _UNCOMMITTED_SECONDS:
            path.unlink(missing_ok=True)


def _remove(folders: Iterable[StoredPath]) -> None:
    for folder in folders:
        remove_tree(folder)
        if folder.parent.exists() and not any(folder.parent.iterdir()):
            remove_tree(folder.parent)
