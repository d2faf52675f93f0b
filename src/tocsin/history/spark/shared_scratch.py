"""The folder of a batch for passing files that this process writes and tasks read, or the other way round."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from tocsin.declare.blocks.spark_settings import LOCAL
from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.history.places import history_root, stamp
from tocsin.platform.storage.job_folders import claim_history
from tocsin.platform.storage.stored_path import StoredPath, remove_tree
from tocsin.spark.session import scratch_folder

_LONGEST = timedelta(days=1)


@contextlib.contextmanager
def shared_scratch(spark: SparkSession, settings: Settings, job: str) -> Iterator[StoredPath]:
    """Name a folder for the block, in which a running `job` of `spark` finds nothing; it is removed behind it.

    It is on the disk of this machine if tasks run here, else where history is: executors read and write that in any
    case. What killed runs have left there is removed after a day.

    Raises:
        ConfigError: another installation writes history there, or the store refuses.
        TransientError: the store does not answer; a retry helps.
        OSError: the folder cannot be written.
    """
    folder: StoredPath = scratch_folder(settings, job) / "shared"
    if not str(spark.sparkContext.master).startswith(LOCAL):
        claim_history(settings)
        parent, now = history_root(settings) / "scratch" / settings.checkpoint(job).name, datetime.now(UTC)
        for left in [one for one in parent.glob("*") if one.name < stamp(now - _LONGEST)]:
            remove_tree(left)
        folder = parent / f"{stamp(now)}-{os.getpid()}"
    if isinstance(folder, Path):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        with contextlib.suppress(TransientError):
            remove_tree(folder)
