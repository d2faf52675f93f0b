"""Run the daemon that forks Spark's Python workers, so that a worker dumps its stack only while a task keeps it busy.

Spark's setting `spark.python.daemon.module` names this module. The daemon of pyspark 4.3.0 arms the timer of the dumps
in each worker that it forks, and nothing disarms it: a worker that waits for its next task dumps its stack, too.
Without that, a worker arms the timer when a task has come, and disarms it at its end.
"""

from __future__ import annotations

import contextlib
import os

from pyspark import daemon

setattr(daemon, "enable_faulthandler", contextlib.nullcontext)  # noqa: B010 - mypy refuses an assignment

if __name__ == "__main__":
    if log := os.environ.get("TOCSIN_LOG"):  # in an engine: else the log of all its jobs would get it
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    daemon.manager()
