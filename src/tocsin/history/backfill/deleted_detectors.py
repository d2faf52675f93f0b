"""Remove what the jobs of deleted detectors have left in the state folder: checkpoints, logs, signs of life."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path

import structlog

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.detector import MODELS_OF
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.names import backfill_job, detector_job, evaluation_job, file_name, parity_job
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.lock import LockHeld, try_lead
from tocsin.platform.storage.job_folders import stored_folder
from tocsin.platform.storage.stored_path import remove_tree
from tocsin.spark.tables.dated_versions import forget_table
from tocsin.spark.tables.model_files import ModelFiles

_JOBS = (detector_job, backfill_job, parity_job, evaluation_job)
_LEFT = re.compile(rf"(?:{'|'.join(file_name(job('')) for job in _JOBS)})__([a-z][a-z0-9_]*)(?:\..*)?")
_FOLDERS = ("checkpoints", "logs", "heartbeats", "drains", "supervision/starts", "supervision/chronicle")

log = structlog.get_logger()


def forget_deleted(settings: Settings, catalog: Catalog, today: date) -> None:
    """Remove the state of detectors whose files have been gone for the longest `history_days` of all sources.

    The days are counted from the first call that finds no file. A detector that is declared again, even in a file that
    cannot be read, is no longer deleted. One of which a job still runs is left to the next call. OSError if the state
    folder cannot be written; the next call removes the rest.
    """
    path = settings.checkpoint("any").parent / "deleted.json"
    before: dict[str, date] = state_file.read(path, dict[str, date], {})
    deleted = {name: before.get(name, today) for name in sorted(_left(settings.state) - _declared(settings, catalog))}
    kept = timedelta(days=max((source.history_days for source in catalog.sources.values()), default=0))
    for name, since in list(deleted.items()) if catalog.sources else ():
        if today - since >= kept and _remove(settings, name):
            log.info("state of deleted detector removed", detector=name, deleted_before=str(since))
            del deleted[name]
    if deleted != before:
        state_file.write(path, dict[str, date], deleted)


def _left(state: Path) -> set[str]:
    return {name for name, _ in _leftovers(state, _FOLDERS)}


def _declared(settings: Settings, catalog: Catalog) -> set[str]:
    files = {path.stem for path in (settings.project / "detectors").glob("*.py")}
    return files | catalog.detectors.keys() | {place.rpartition("/")[2] for place in catalog.broken}


def _remove(settings: Settings, name: str) -> bool:
    """Remove all that jobs of the detector `name` have left; return whether none of them runs."""
    try:
        with contextlib.ExitStack() as held:
            for job in (make(name) for make in _JOBS):
                held.enter_context(try_lead(settings, settings.checkpoint(job) / "lock"))
            for job in (make(name) for make in _JOBS):
                remove_tree(stored_folder(settings, job))
                remove_tree(settings.checkpoint(job))
            for of, path in _leftovers(settings.state, _FOLDERS[1:]):
                if of == name:
                    path.unlink(missing_ok=True)
            forget_table(settings, f"{MODELS_OF}{name}")
            remove_tree(ModelFiles.of(settings, name).folder())
    except (LockHeld, TransientError) as error:
        log.info("state of deleted detector left alone", detector=name, reason=str(error))
        return False
    return True


def _leftovers(state: Path, folders: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        for path in (state / folder).glob("*"):
            if (match := _LEFT.fullmatch(path.name)) is not None:
                yield match[1], path
