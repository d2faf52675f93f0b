"""Make a backup: what an installation cannot make anew, as of nearly one moment, while its jobs run.

What the jobs have written to Kafka stays there. So each part may be as old as it likes, if it is no newer than what it
rests on: offsets are read before the database that holds what came before them. Batches write history and its ledgers;
they are kept from running meanwhile, by their own locks.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from tocsin.alerts.store.database import Database
from tocsin.alerts.store.database_copy import copy_all
from tocsin.kafka.reader import TopicReader
from tocsin.kafka.topics import cluster_id
from tocsin.model import names
from tocsin.model.errors import ConfigError, TransientError
from tocsin.model.names import COMPUTE, INDEXER
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.recovery import state_parts
from tocsin.recovery.manifest import Manifest, files_in, mark_of, origin_of
from tocsin.runtime.lead import try_lead
from tocsin.runtime.lock import LockHeld
from tocsin.storage.job_folders import JobFolders, checkpoint_root
from tocsin.views.rebuild.rebuild_request import ask_rebuild

_LOCK_SECONDS = 60.0


def make_backup(settings: Settings, catalog: Catalog, folder: Path, *, lock_seconds: float = _LOCK_SECONDS) -> Manifest:
    """Write a backup of this installation to `folder`, which must not exist: it appears whole or not at all.

    Args:
        settings: of the installation.
        catalog: all that is declared.
        folder: of the backup.
        lock_seconds: how long to wait for a batch that runs.

    Raises:
        ConfigError: there is nothing to back up, `folder` exists, or the alerts DB has another schema.
        TransientError: Kafka, the alerts DB is away, or a batch runs too long; a retry helps.
        OSError: `folder` cannot be written.
    """
    if not (settings.state / state_parts.CHECKPOINTS).is_dir():
        raise ConfigError.one(settings.state, "holds no installation: no job has run there", key="state")
    if folder.exists():
        raise ConfigError.one(folder, "exists; name a folder that does not")
    if folder.resolve().is_relative_to(settings.state.resolve()):
        raise ConfigError.one(folder, "lies in the state folder that it is to replace; choose another disk")
    draft = folder.with_name(f"{folder.name}.unfinished-{secrets.token_hex(4)}")
    draft.mkdir(parents=True, mode=0o700)
    try:
        manifest = _write(settings, catalog, draft, lock_seconds)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


def _write(settings: Settings, catalog: Catalog, draft: Path, lock_seconds: float) -> Manifest:
    made_at, origin = datetime.now(UTC), origin_of(settings.state, settings.names.prefix, cluster_id(settings))
    with _no_batches(settings, catalog, lock_seconds):
        indexed = _indexed(settings)
        _copy_alerts(settings, draft)
        _copy_checkpoints(settings, draft)
        state_parts.copy_other_parts(settings.state, draft)
        for view in catalog.views:  # totals of a lost state must not be mixed with those before
            ask_rebuild(draft, view)
    files = {str(path.relative_to(draft)): mark_of(path) for path in files_in(draft)}
    manifest = Manifest(origin=origin, made_at=made_at, indexed=indexed, files=files)
    manifest.write(draft)
    return manifest


@contextlib.contextmanager
def _no_batches(settings: Settings, catalog: Catalog, seconds: float) -> Iterator[None]:
    """Let no batch run that writes history or its ledgers; wait so long for those that do."""
    kinds: tuple[tuple[Callable[[str], str], list[str]], ...] = (
        (names.landing_job, [*catalog.sources]),
        (names.sealing_job, [*catalog.sources]),
        (names.refresh_job, [*catalog.tables]),
        (names.backfill_job, [*catalog.detectors]),
        (names.rebuild_job, [*catalog.views]),
    )
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as held:
        for job in (job_of(name) for job_of, declared in kinds for name in declared):
            while True:
                try:
                    held.enter_context(try_lead(settings, settings.checkpoint(job) / "lock"))
                    break
                except LockHeld as error:
                    if time.monotonic() > deadline:
                        what = f"{job}, which writes history, or another backup runs: {error}"
                        raise TransientError(f"{what}; run this again when it has ended") from error
                    time.sleep(0.2)
        yield


def _indexed(settings: Settings) -> dict[int, int]:
    """Read up to where the indexer has stored the findings topic, at least."""
    with TopicReader(settings, INDEXER, settings.names.findings) as topic:
        return {partition: max(0, offset) for partition, offset in topic.committed(topic.partitions()).items()}


def _copy_alerts(settings: Settings, draft: Path) -> None:
    """Copy the alerts DB to a file of SQLite; there is none before the indexer has run."""
    source = Database(settings.alerts_database, read_only=True)
    try:
        if not source.is_ready():
            if source.is_missing:
                return
            what = "has not the schema of this Tocsin; start the indexer, or make the backup with the Tocsin that runs"
            raise ConfigError.one(source.shown, what)
        draft_db = Database(f"sqlite:///{draft / '.alerts'}")
        draft_db.migrate()
        copy_all(source, draft_db)
        draft_db.close()
    finally:
        source.close()
    state_parts.copy_file(draft / ".alerts", draft / state_parts.ALERTS)
    for left in draft.glob(".alerts*"):
        left.unlink()


def _copy_checkpoints(settings: Settings, draft: Path) -> None:
    local, stored = settings.state / state_parts.CHECKPOINTS, checkpoint_root(settings)
    for name in {path.name for path in (*local.glob("*"), *stored.glob("*__*")) if path.is_dir()}:
        if not name.startswith(f"{COMPUTE}__"):
            folders = JobFolders(local / name, stored / name)
            state_parts.copy_checkpoint(folders, draft / state_parts.CHECKPOINTS / name)
