"""Run the daemon that forks Spark's Python workers, with two things of pyspark 4.3.0 mended.

Spark's setting `spark.python.daemon.module` names this module. The daemon arms the timer of the stacks in each worker
that it forks, and nothing disarms it: a worker that waits for its next task dumps its stack, too. Without that, a
worker arms the timer when a task has come, and disarms it at its end. And after each task a worker looks for garbage
among all that pandas and pyarrow hold, 50 ms of CPU: what its first task has left is imported code.
"""

from __future__ import annotations

import contextlib
import gc
import os
from types import SimpleNamespace

from pyspark import daemon


def collect() -> None:
    """Collect garbage, and look at what is left the first time never again."""
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()


setattr(daemon, "enable_faulthandler", contextlib.nullcontext)  # noqa: B010 - mypy refuses an assignment
setattr(daemon, "gc", SimpleNamespace(collect=collect))  # noqa: B010

if __name__ == "__main__":
    if log := os.environ.get("TOCSIN_LOG"):  # in an engine: else the log of all its jobs would get it
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    daemon.manager()
