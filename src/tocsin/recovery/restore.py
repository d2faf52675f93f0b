"""Restore a backup into an empty installation: all of it, or nothing that a job would take for its state.

The mark of an unfinished restore lies in the state folder before anything else changes, and goes last. While it is
there no job starts, and only the same backup can be restored: that begins from the start.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tocsin.alerts.store.database import Database
from tocsin.alerts.store.database_copy import copy_all, is_empty
from tocsin.kafka.reader import TopicReader
from tocsin.kafka.topics import cluster_id
from tocsin.model.errors import ConfigError, Fault, TransientError
from tocsin.model.names import INDEXER
from tocsin.project.settings import Settings
from tocsin.recovery import state_parts
from tocsin.recovery.manifest import (
    MANIFEST,
    BackupOrigin,
    Manifest,
    faults_of_files,
    mark_of,
    origin_of,
    read_manifest,
)
from tocsin.runtime import private
from tocsin.runtime.state_file import write_whole
from tocsin.storage.claim import claim, remove_stored
from tocsin.storage.job_folders import stored_elsewhere
from tocsin.supervision.runners.runner_choice import runner_of

_SAME = {
    "format": "has form {theirs}, this Tocsin knows {ours}; restore it with the Tocsin that made it",
    "tocsin": "was made by Tocsin {theirs}, this is {ours}; install that one, restore, then upgrade",
    "alerts_schema": "has alerts DB schema {theirs}, this Tocsin {ours}; restore it with the Tocsin that made it",
    "state": "is of the state folder {theirs}, not {ours}; set `state` to that folder",
    "topic_prefix": "is of topics that begin with '{theirs}', not '{ours}'; set kafka.topic_prefix to that",
    "cluster": "holds offsets of Kafka cluster {theirs}, not of {ours}; they mean nothing there",
}


def restore(settings: Settings, folder: Path) -> Manifest:
    """Put back what the backup in `folder` holds; jobs that start then go on behind it.

    Raises:
        ConfigError: the backup is not whole, or not of this installation, or the installation is not empty; nothing was
            changed. Lists all faults.
        TransientError: jobs run, or Kafka or the alerts DB is away; a retry helps.
        OSError: the state folder cannot be written; a retry with the same backup helps.
    """
    manifest = read_manifest(folder)
    _refuse_other(folder, manifest, settings)
    if faults := faults_of_files(folder, manifest):
        raise ConfigError(faults)
    _refuse_running(settings)
    claim(settings)
    alerts = Database(settings.alerts_database)
    try:
        mark, identity = settings.state / private.RESTORING, mark_of(folder / MANIFEST).sha256
        if mark.exists():
            _refuse_another(mark, identity)
        else:
            _refuse_used(settings, alerts)
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(mark, identity)
        _remove_owned(settings)
        _restore_alerts(folder, settings.state, alerts)
        state_parts.restore_checkpoints(folder / state_parts.CHECKPOINTS, settings)
        state_parts.copy_other_parts(folder, settings.state)
        _rewind_indexer(settings, manifest)
    finally:
        alerts.close()
    mark.unlink()
    private.protect(settings.state)
    return manifest


def _refuse_other(folder: Path, manifest: Manifest, settings: Settings) -> None:
    ours = origin_of(settings.state, settings.names.prefix, cluster_id(settings))
    both = {key: (getattr(manifest.origin, key), getattr(ours, key)) for key in BackupOrigin.model_fields}
    wrong = {key: pair for key, pair in both.items() if pair[0] != pair[1]}
    if wrong:
        raise ConfigError([Fault(str(folder), _SAME[k].format(theirs=a, ours=b)) for k, (a, b) in wrong.items()])


def _refuse_running(settings: Settings) -> None:
    running = sorted({one.labels.job for one in runner_of(settings).list()})
    if running:
        raise TransientError(f"{', '.join(running)} run on {settings.state}; stop all jobs, then restore")


def _refuse_another(mark: Path, identity: str) -> None:
    if mark.read_text(encoding="utf-8") != identity:
        what = "another backup was being restored here; restore that one, or empty the state folder and the alerts DB"
        raise ConfigError.one(mark, what)


def _refuse_used(settings: Settings, alerts: Database) -> None:
    """Refuse an installation that holds anything that a restore would replace."""
    used = [settings.state / name for name in state_parts.OWNED if _holds(settings.state / name)]
    elsewhere = stored_elsewhere(settings)
    faults = [Fault(str(path), "is in the way: restore into an empty installation") for path in [*used, *elsewhere]]
    if not faults and not alerts.is_missing:
        alerts.migrate()
        if not is_empty(alerts):
            faults = [Fault(alerts.shown, "holds rows: restore into an empty alerts DB")]
    if faults:
        raise ConfigError(faults)


def _holds(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _remove_owned(settings: Settings) -> None:
    remove_stored(settings)
    state = settings.state
    for name in state_parts.OWNED:
        if (state / name).is_dir():
            shutil.rmtree(state / name)
        else:
            (state / name).unlink(missing_ok=True)


def _restore_alerts(folder: Path, state: Path, target: Database) -> None:
    if not (folder / state_parts.ALERTS).exists():
        return
    draft = state / ".alerts-of-backup"  # SQLite writes beside a file that it reads
    state_parts.copy_file(folder / state_parts.ALERTS, draft)
    source = Database(f"sqlite:///{draft}")
    try:
        target.migrate()
        copy_all(source, target)
    finally:
        source.close()
        for left in state.glob(f"{draft.name}*"):
            left.unlink()


def _rewind_indexer(settings: Settings, manifest: Manifest) -> None:
    """Let the indexer read again the findings that came after the alerts DB was copied.

    Raises:
        TransientError: Kafka did not take it.
    """
    for attempt in ("commit", "check"):
        with TopicReader(settings, INDEXER, settings.names.findings) as topic:
            if attempt == "commit":
                topic.commit(manifest.indexed)
            elif topic.committed(manifest.indexed) != manifest.indexed:
                raise TransientError(f"Kafka has not taken the offsets of {settings.names.group(INDEXER)}; try again")
